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

package installcheck

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/installcheck/registration"
)

const (
	serverName   = "elasti-apiserver"
	resolverName = "elasti-resolver"
)

// checkDeployment checks that every replica of a Deployment is available.
func (c *Checker) checkDeployment(ctx context.Context, name string) []Problem {
	deployment, err := c.options.Kubernetes.AppsV1().Deployments(c.options.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return []Problem{problem("Apply the manifests again, or give the namespace of the installation",
			"There is no Deployment %s in the namespace %s", name, c.options.Namespace)}
	case err != nil:
		return []Problem{unreadable("Deployment "+name, err)}
	case deployment.Spec.Replicas != nil && *deployment.Spec.Replicas == 0:
		return []Problem{problem("Scale it up", "The Deployment %s has no replicas", name)}
	case isRolledOut(deployment):
		return nil
	}
	pods, err := c.options.Kubernetes.CoreV1().Pods(c.options.Namespace).List(ctx, metav1.ListOptions{LabelSelector: registration.NameLabel + "=" + name})
	if err != nil {
		return []Problem{unreadable("pods of "+name, err)}
	}
	var problems []Problem
	for i := range pods.Items {
		if found, ok := c.checkPod(ctx, &pods.Items[i]); ok && !slices.Contains(problems, found) {
			problems = append(problems, found)
		}
	}
	if len(problems) > 0 {
		return problems
	}
	for _, condition := range deployment.Status.Conditions {
		if condition.Type == appsv1.DeploymentReplicaFailure && condition.Status == corev1.ConditionTrue {
			return []Problem{problem("Change what rejects the pods, such as a quota, a policy or a Pod Security Standard of the namespace",
				"The cluster rejects the pods of %s: %s", name, strings.TrimSuffix(condition.Message, "."))}
		}
	}
	return []Problem{problem(fmt.Sprintf("See its pods and their log: kubectl describe pods --namespace %[1]s --selector %[2]s=%[3]s; kubectl logs --namespace %[1]s deployment/%[3]s", c.options.Namespace, registration.NameLabel, name),
		"The Deployment %s has %d of %d replicas available", name, deployment.Status.AvailableReplicas, desiredReplicas(deployment))}
}

func desiredReplicas(deployment *appsv1.Deployment) int32 {
	if deployment.Spec.Replicas == nil {
		return 1
	}
	return *deployment.Spec.Replicas
}

// isRolledOut reports whether all replicas are those of the current template, and
// available.
func isRolledOut(deployment *appsv1.Deployment) bool {
	status := deployment.Status
	return status.ObservedGeneration >= deployment.Generation && status.UpdatedReplicas >= desiredReplicas(deployment) &&
		status.AvailableReplicas >= desiredReplicas(deployment) && status.Replicas == status.UpdatedReplicas
}

// checkPod returns what keeps a pod from being ready, where the cluster says it.
func (c *Checker) checkPod(ctx context.Context, pod *corev1.Pod) (Problem, bool) {
	name := pod.Labels[registration.NameLabel]
	for _, status := range pod.Status.ContainerStatuses {
		if found, ok := c.checkContainer(name, status); ok {
			return found, true
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			if found, ok := c.checkClaims(ctx, pod); ok {
				return found, true
			}
			return problem("Give the cluster a node that fits, or change the resources, the nodeSelector, the tolerations or the port on the network of the node",
				"No node fits a pod of %s: %s", name, strings.TrimSuffix(condition.Message, ".")), true
		}
	}
	return Problem{}, false
}

// checkContainer returns what keeps a container from running.
func (c *Checker) checkContainer(name string, status corev1.ContainerStatus) (Problem, bool) {
	if status.Ready {
		return Problem{}, false
	}
	if terminated := status.LastTerminationState.Terminated; terminated != nil && status.RestartCount > 0 {
		return problem(fmt.Sprintf("See the end of its log: kubectl logs --namespace %s deployment/%s --previous", c.options.Namespace, name),
			"The container of %s exited with code %d (%s) and was restarted", name, terminated.ExitCode, terminated.Reason), true
	}
	waiting := status.State.Waiting
	if waiting == nil {
		return Problem{}, false
	}
	message := strings.TrimSuffix(waiting.Message, ".")
	switch waiting.Reason {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName":
		return problem("Push the image to where the nodes find it, set global.image.registry and global.image.tag, and global.imagePullSecrets where the registry needs a credential",
			"The image %s of %s cannot be pulled (%s): %s", status.Image, name, waiting.Reason, message), true
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
		return problem("Create what the container refers to, such as a Secret, or correct the reference",
			"The container of %s cannot be created (%s): %s", name, waiting.Reason, message), true
	}
	return Problem{}, false
}

// checkClaims returns the first volume of a pod that has no storage.
func (c *Checker) checkClaims(ctx context.Context, pod *corev1.Pod) (Problem, bool) {
	claims, err := c.options.Kubernetes.CoreV1().PersistentVolumeClaims(c.options.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		// The unschedulable pod itself is reported by the caller.
		return Problem{}, false
	}
	for _, volume := range pod.Spec.Volumes {
		for i := range claims.Items {
			claim := &claims.Items[i]
			if volume.PersistentVolumeClaim == nil || volume.PersistentVolumeClaim.ClaimName != claim.Name || claim.Status.Phase == corev1.ClaimBound {
				continue
			}
			class := "the default one, which the cluster may not have"
			if claim.Spec.StorageClassName != nil {
				class = *claim.Spec.StorageClassName
			}
			return problem("Name a StorageClass of the cluster in storage.embedded.storageClassName, or use --storage=cluster, which needs no volume",
				"The PersistentVolumeClaim %s has no volume: its StorageClass is %s", claim.Name, class), true
		}
	}
	return Problem{}, false
}
