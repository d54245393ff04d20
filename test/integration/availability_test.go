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

package integration

import (
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// forbidPods creates a quota that allows no pods in the namespace.
func forbidPods(t *testing.T, namespace string) (allow func()) {
	t.Helper()
	quotas := shared.Kubernetes.CoreV1().ResourceQuotas(namespace)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "no-pods"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
	}
	if _, err := quotas.Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the quota: %v", err)
	}
	return func() {
		t.Helper()
		if err := quotas.Delete(t.Context(), quota.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatalf("deleting the quota: %v", err)
		}
	}
}

// runPodWith runs a pod of the application on the node with this status.
func runPodWith(t *testing.T, namespace string, status corev1.PodStatus) {
	t.Helper()
	pods := shared.Kubernetes.CoreV1().Pods(namespace)
	pod, err := pods.Get(t.Context(), runPod(t, namespace, "app"), metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the pod: %v", err)
	}
	pod.Status = status
	if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("reporting the status of the pod: %v", err)
	}
}

func waitingContainer(reason, message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
	}}}
}

// createAsleep creates an application that sleeps, and its ElastiService.
func createAsleep(t *testing.T, namespace string) {
	t.Helper()
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForReason(t, namespace, v1alpha1.ConditionTargetAvailable, metav1.ConditionFalse, v1alpha1.ReasonAsleep)
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue)
}

func wakeApplication(t *testing.T, namespace string) {
	t.Helper()
	if _, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking: %v", err)
	}
}

// expectProblem waits until all reports of the ElastiService have the reason why its target
// does not start.
func expectProblem(t *testing.T, namespace, reason, words string) {
	t.Helper()
	for _, conditionType := range []string{v1alpha1.ConditionTargetAvailable, v1alpha1.ConditionReady} {
		if message := waitForReason(t, namespace, conditionType, metav1.ConditionFalse, reason); !strings.Contains(message, words) {
			t.Errorf("the message of %s is %q, want one with %q", conditionType, message, words)
		}
	}
	events := waitForEvents(t, namespace, reason, 1, false)
	if events[0].Type != corev1.EventTypeWarning || !strings.Contains(events[0].Note, words) {
		t.Errorf("the Event is %+v, want a warning with %q", events[0], words)
	}
	for _, arguments := range [][]string{{"get", "elastiservice", "app"}, {"get", "elastiservice", "app", "-o", "wide"}} {
		table, err := newKubectl(t, namespace).Run(t.Context(), "", arguments...)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(table, reason) || strings.Contains(table, words) != (len(arguments) > 3) {
			t.Errorf("kubectl %s shows:\n%s", strings.Join(arguments, " "), table)
		}
	}
}

// The ReplicaSet controller and the quota are the real ones.
func TestAQuotaThatKeepsATargetFromStartingIsSaid(t *testing.T) {
	namespace := newNamespace(t)
	createAsleep(t, namespace)
	allow := forbidPods(t, namespace)
	wakeApplication(t, namespace)
	expectProblem(t, namespace, v1alpha1.ReasonPodsNotCreated, "quota")

	allow()
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	waitForCondition(t, namespace, v1alpha1.ConditionTargetAvailable, metav1.ConditionTrue)
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue)
	waitForEvents(t, namespace, v1alpha1.ReasonPodReady, 1, false)
}

func TestThePodsSayWhatKeepsATargetFromStarting(t *testing.T) {
	const words = "as the cluster words it"
	for name, test := range map[string]struct {
		status corev1.PodStatus
		reason string
	}{
		"no node": {corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: words},
		}}, v1alpha1.ReasonUnschedulable},
		"no image": {waitingContainer("ErrImagePull", words), v1alpha1.ReasonImageNotPulled},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := newNamespace(t)
			createAsleep(t, namespace)
			wakeApplication(t, namespace)
			runPodWith(t, namespace, test.status)
			expectProblem(t, namespace, test.reason, words)
		})
	}
}

// The kubelet reports problems with volumes in Events only.
func TestEventsOfAPodSayWhatKeepsATargetFromStarting(t *testing.T) {
	const words = `MountVolume.SetUp failed for volume "settings"`
	namespace := newNamespace(t)
	createAsleep(t, namespace)
	wakeApplication(t, namespace)
	runPodWith(t, namespace, waitingContainer("ContainerCreating", ""))
	pods, err := shared.Kubernetes.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := &pods.Items[0]
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: pod.Name + ".1"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod.Name, UID: pod.UID},
		Type:           corev1.EventTypeWarning, Reason: "FailedMount", Message: words, LastTimestamp: metav1.Now(),
	}
	if _, err := shared.Kubernetes.CoreV1().Events(namespace).Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
		t.Fatalf("reporting an Event of the pod: %v", err)
	}
	expectProblem(t, namespace, v1alpha1.ReasonVolumeNotMounted, words)
}

func TestATargetThatCannotStartGoesBackToSleep(t *testing.T) {
	namespace := newNamespace(t)
	createAsleep(t, namespace)
	wakeApplication(t, namespace)
	runPodWith(t, namespace, waitingContainer("ErrImagePull", "not found"))
	waitForReason(t, namespace, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonImageNotPulled)
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "app"}}
	if _, err := elastiServices(namespace).UpdateScale(t.Context(), "app", scale, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("requesting the scale-down: %v", err)
	}
	waitForReason(t, namespace, v1alpha1.ConditionTargetAvailable, metav1.ConditionFalse, v1alpha1.ReasonAsleep)
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue)
}
