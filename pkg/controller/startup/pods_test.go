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
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// podWith returns a pod on a node that has these containers.
func podWith(containers ...corev1.ContainerStatus) corev1.Pod {
	return corev1.Pod{Status: corev1.PodStatus{
		Conditions:        []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}},
		ContainerStatuses: containers,
	}}
}

func waiting(reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
}

func running() corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: "app", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func unschedulable(message string) corev1.Pod {
	return corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message},
	}}}
}

// crashed returns a container that ended after each of its starts.
func crashed(now corev1.ContainerState, restarts int32, last corev1.ContainerStateTerminated) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: "app", State: now, RestartCount: restarts, LastTerminationState: corev1.ContainerState{Terminated: &last}}
}

func TestWhatKeepsAPodFromStarting(t *testing.T) {
	backOff := waiting("CrashLoopBackOff", "back-off 10s restarting failed container=app").State
	failed := corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "password=hunter2"}
	for name, test := range map[string]struct {
		pod    corev1.Pod
		reason string
		want   string
	}{
		"no node":                  {unschedulable("0/3 nodes are available: 3 Insufficient cpu."), v1alpha1.ReasonUnschedulable, "0/3 nodes are available: 3 Insufficient cpu."},
		"image not found":          {podWith(waiting("ErrImagePull", "nope:1: not found")), v1alpha1.ReasonImageNotPulled, `container "app": ErrImagePull: nope:1: not found`},
		"image backed off":         {podWith(waiting("ImagePullBackOff", "Back-off pulling image")), v1alpha1.ReasonImageNotPulled, `container "app": ImagePullBackOff: Back-off pulling image`},
		"no such Secret":           {podWith(waiting("CreateContainerConfigError", `secret "x" not found`)), v1alpha1.ReasonContainerNotCreated, `container "app": CreateContainerConfigError: secret "x" not found`},
		"a reason of a later time": {podWith(waiting("FluxCapacitorEmpty", "fill it")), v1alpha1.ReasonPodNotStarted, `container "app": FluxCapacitorEmpty: fill it`},
		"crashes":                  {podWith(crashed(backOff, 1, failed)), v1alpha1.ReasonContainerCrashed, `container "app": CrashLoopBackOff: it ended with exit code 1 (Error)`},
		"crashes, runs again":      {podWith(crashed(running().State, 2, failed)), v1alpha1.ReasonContainerCrashed, `container "app": CrashLoopBackOff: it ended with exit code 1 (Error)`},
		"out of memory":            {podWith(crashed(backOff, 3, corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"})), v1alpha1.ReasonContainerCrashed, `container "app": CrashLoopBackOff: it ended with exit code 137 (OOMKilled)`},
		"no such command":          {podWith(crashed(backOff, 1, corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: `exec: "nope": not found`})), v1alpha1.ReasonContainerNotCreated, `container "app": StartError: exec: "nope": not found`},
		"restarted once":           {podWith(crashed(running().State, 1, failed)), "", ""},
		"runs":                     {podWith(running()), "", ""},
		"is being created":         {podWith(waiting("ContainerCreating", "")), "", ""},
		"initializes":              {podWith(waiting("PodInitializing", "")), "", ""},
		"new":                      {corev1.Pod{}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ofPod(&test.pod)
			var want *Problem
			if test.reason != "" {
				want = &Problem{Reason: test.reason, Message: test.want}
			}
			if !equal(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if got != nil && strings.Contains(got.Message, "hunter2") {
				t.Error("what the container wrote goes to clients")
			}
		})
	}
	initializing := podWith(waiting("PodInitializing", ""))
	initializing.Status.InitContainerStatuses = []corev1.ContainerStatus{waiting("ErrImagePull", "not found")}
	if got := ofPod(&initializing); got == nil || got.Reason != v1alpha1.ReasonImageNotPulled {
		t.Errorf("image of an init container: got %+v", got)
	}
}

func TestATargetHasAProblemWhenEachOfItsPodsHas(t *testing.T) {
	stuck, other, starting, creating := unschedulable("no node"), podWith(waiting("ErrImagePull", "not found")), podWith(running()), podWith(waiting("ContainerCreating", ""))
	leaving := starting
	leaving.DeletionTimestamp = &metav1.Time{}
	for name, test := range map[string]struct {
		pods     []corev1.Pod
		reason   string
		creating bool
	}{
		"one":                         {[]corev1.Pod{stuck}, v1alpha1.ReasonUnschedulable, false},
		"two":                         {[]corev1.Pod{stuck, other}, v1alpha1.ReasonUnschedulable, false},
		"another one starts":          {[]corev1.Pod{stuck, starting}, "", false},
		"another one is leaving":      {[]corev1.Pod{leaving, stuck}, v1alpha1.ReasonUnschedulable, false},
		"another one is being made":   {[]corev1.Pod{stuck, creating}, "", true},
		"one is being made, one runs": {[]corev1.Pod{creating, starting}, "", false},
		"none":                        {nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			problem, found := ofPods(test.pods)
			if (found != nil) != test.creating || (problem == nil) != (test.reason == "") || problem != nil && problem.Reason != test.reason {
				t.Errorf("got %+v, %v", problem, found)
			}
		})
	}
}
