/*
Copyright The elasti-apiserver Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package startup

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Reasons that the kubelet gives for a container that waits.
const (
	containerCreating = "ContainerCreating"
	podInitializing   = "PodInitializing"
	crashLoopBackOff  = "CrashLoopBackOff"
)

// waitingReasons maps reasons of the kubelet to those of a Problem.
var waitingReasons = map[string]string{
	"ErrImagePull":              v1alpha1.ReasonImageNotPulled,
	"ImagePullBackOff":          v1alpha1.ReasonImageNotPulled,
	"InvalidImageName":          v1alpha1.ReasonImageNotPulled,
	"ErrImageNeverPull":         v1alpha1.ReasonImageNotPulled,
	"ImageInspectError":         v1alpha1.ReasonImageNotPulled,
	"RegistryUnavailable":       v1alpha1.ReasonImageNotPulled,
	"SignatureValidationFailed": v1alpha1.ReasonImageNotPulled,

	"CreateContainerConfigError": v1alpha1.ReasonContainerNotCreated,
	"CreateContainerError":       v1alpha1.ReasonContainerNotCreated,
	"PreCreateHookError":         v1alpha1.ReasonContainerNotCreated,
	"PreStartHookError":          v1alpha1.ReasonContainerNotCreated,
	"PostStartHookError":         v1alpha1.ReasonContainerNotCreated,
	"RunContainerError":          v1alpha1.ReasonContainerNotCreated,
}

// crashes is how often a container that is not ready was restarted when it counts
// as one that ends after each start, also while it runs. It may be restarted once
// because what it depends on was not there yet.
const crashes = 2

// ofPods returns what keeps every pod of a target from becoming ready. It is nil when
// one of them has no known problem. creating is a pod none of whose containers has
// been created: its Events may say why.
func ofPods(pods []corev1.Pod) (problem *Problem, creating *corev1.Pod) {
	for i := range pods {
		pod := &pods[i]
		if pod.DeletionTimestamp != nil {
			continue
		}
		found := ofPod(pod)
		switch {
		case found == nil && !isCreating(pod):
			return nil, nil
		case found == nil:
			creating = pod
		case problem == nil:
			problem = found
		}
	}
	if creating != nil {
		return nil, creating
	}
	return problem, nil
}

// ofPod returns what keeps a pod from becoming ready, as its status reports it.
func ofPod(pod *corev1.Pod) *Problem {
	if scheduled := podCondition(pod, corev1.PodScheduled); scheduled != nil && scheduled.Status == corev1.ConditionFalse {
		return newProblem(v1alpha1.ReasonUnschedulable, "%s", scheduled.Message)
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if problem := ofContainer(&statuses[i]); problem != nil {
				return problem
			}
		}
	}
	return nil
}

// ofContainer returns the problem of a container. It leaves out what the container
// itself wrote into its termination message, as clients of the service see the problem
// too, and how long the kubelet waits until the next attempt, which keeps changing.
func ofContainer(status *corev1.ContainerStatus) *Problem {
	waiting := status.State.Waiting
	switch {
	case status.Ready:
		return nil
	case waiting != nil && waiting.Reason == crashLoopBackOff, status.RestartCount >= crashes:
		return ofCrash(status)
	case waiting == nil || waiting.Reason == "" || waiting.Reason == containerCreating || waiting.Reason == podInitializing:
		return nil
	}
	reason, known := waitingReasons[waiting.Reason]
	if !known {
		reason = v1alpha1.ReasonPodNotStarted
	}
	return newProblem(reason, "container %q: %s: %s", status.Name, waiting.Reason, waiting.Message)
}

func ofCrash(status *corev1.ContainerStatus) *Problem {
	ended := status.State.Terminated
	if ended == nil {
		ended = status.LastTerminationState.Terminated
	}
	switch {
	case ended == nil:
		return newProblem(v1alpha1.ReasonContainerCrashed, "container %q: %s", status.Name, crashLoopBackOff)
	case ended.Reason == "StartError" || ended.Reason == "ContainerCannotRun":
		// The container did not run: the message is the runtime's.
		return newProblem(v1alpha1.ReasonContainerNotCreated, "container %q: %s: %s", status.Name, ended.Reason, ended.Message)
	default:
		how := fmt.Sprintf("exit code %d", ended.ExitCode)
		if ended.Reason != "" {
			how += " (" + ended.Reason + ")"
		}
		return newProblem(v1alpha1.ReasonContainerCrashed, "container %q: %s: it ended with %s", status.Name, crashLoopBackOff, how)
	}
}

// isCreating reports whether no container of a pod has been created.
func isCreating(pod *corev1.Pod) bool {
	created := func(status corev1.ContainerStatus) bool {
		return status.State.Running != nil || status.State.Terminated != nil || status.RestartCount > 0
	}
	return !slices.ContainsFunc(pod.Status.InitContainerStatuses, created) && !slices.ContainsFunc(pod.Status.ContainerStatuses, created)
}

func podCondition(pod *corev1.Pod, conditionType corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == conditionType {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// notReady returns the problem that pods have not become ready in time, with the
// message of one of them.
func notReady(pods []corev1.Pod) *Problem {
	const late = "no pod has become ready in time"
	for i := range pods {
		if ready := podCondition(&pods[i], corev1.PodReady); ready != nil && ready.Message != "" {
			return newProblem(v1alpha1.ReasonPodNotReady, late+": %s", ready.Message)
		}
	}
	return newProblem(v1alpha1.ReasonPodNotReady, late)
}
