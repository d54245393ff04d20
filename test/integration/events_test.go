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
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// waitForEvents waits until there are as many Events of a reason, with as many occurrences,
// as wanted, and returns them. A repeated Event has a series from its second occurrence on.
func waitForEvents(t *testing.T, namespace, reason string, wanted int, repeated bool) []eventsv1.Event {
	t.Helper()
	var found []eventsv1.Event
	eventually(t, fmt.Sprintf("there are %d Events of the reason %s (repeated: %v)", wanted, reason, repeated), func(ctx context.Context) string {
		events, err := shared.Kubernetes.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			return err.Error()
		}
		found = events.Items
		if len(found) != wanted {
			return fmt.Sprintf("there are %d: %+v", len(found), found)
		}
		for _, event := range found {
			if (event.Series != nil && event.Series.Count >= 2) != repeated {
				return fmt.Sprintf("one is %+v", event)
			}
		}
		return ""
	})
	return found
}

// expectRegarding fails unless Events are about the object with this UID.
func expectRegarding(t *testing.T, events []eventsv1.Event, uid types.UID) {
	t.Helper()
	for _, event := range events {
		if event.Regarding.Kind != "ElastiService" || event.Regarding.Name != "app" || event.Regarding.UID != uid {
			t.Errorf("the Event %q regards %+v, want the ElastiService", event.Reason, event.Regarding)
		}
	}
}

func TestEachScaleChangeLeavesAnEventAndThoseThatSayTheSameAreOne(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	object := createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	for round := range 2 {
		if _, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
			t.Fatalf("waking: %v", err)
		}
		// A target that is awake already is not changed.
		if _, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
			t.Fatalf("waking again: %v", err)
		}
		expectRegarding(t, waitForEvents(t, namespace, v1alpha1.ReasonWoken, 1, round > 0), object.UID)
		setReady(t, namespace, runPod(t, namespace, "app"), true)
		waitForMode(t, namespace, v1alpha1.ModeServe)

		scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "app"}}
		if _, err := elastiServices(namespace).UpdateScale(t.Context(), "app", scale, metav1.UpdateOptions{}); err != nil {
			t.Fatalf("requesting the scale-down: %v", err)
		}
		eventually(t, "the target sleeps", func(context.Context) string {
			if replicas := desiredReplicas(t, namespace); replicas != 0 {
				return fmt.Sprintf("it has %d replicas", replicas)
			}
			return ""
		})
		expectRegarding(t, waitForEvents(t, namespace, v1alpha1.ReasonSlept, 1, round > 0), object.UID)
		removePods(t, namespace)
		waitForMode(t, namespace, v1alpha1.ModeProxy)
	}
	described, err := newKubectl(t, namespace).Run(t.Context(), "", "describe", "elastiservice", "app")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Woken", "scaled Deployment app to 1 (no reason given)", "Slept", "(x2 over"} {
		if !strings.Contains(described, want) {
			t.Errorf("kubectl describe does not show %q:\n%s", want, described)
		}
	}
}

// removePods ends the pods of the namespace, as a kubelet does.
func removePods(t *testing.T, namespace string) {
	t.Helper()
	pods, err := shared.Kubernetes.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		waitForTerminating(t, namespace, pods.Items[i].Name)
		removePod(t, namespace, pods.Items[i].Name)
	}
}

func TestFailuresToScaleAreOneEventForEachCause(t *testing.T) {
	namespace := newNamespace(t)
	object := createElastiService(t, namespace, newElastiService("app"))
	wake := func() {
		t.Helper()
		_, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
		if !apierrors.IsNotFound(err) {
			t.Fatalf("waking a target that is not there returns %v, want not found", err)
		}
	}
	wake()
	waitForEvents(t, namespace, v1alpha1.ReasonScaleFailed, 1, false)
	label(t, namespace)
	wake()
	expectRegarding(t, waitForEvents(t, namespace, v1alpha1.ReasonScaleFailed, 1, true), object.UID)

	moved := []byte(`{"spec":{"scaleTargetRef":{"name":"other"}}}`)
	if _, err := elastiServices(namespace).Patch(t.Context(), "app", types.MergePatchType, moved, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	// Until the watch cache has the change, the previous target is read.
	eventually(t, "the other target is read", func(ctx context.Context) string {
		_, err := elastiServices(namespace).Wake(ctx, "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
		var status apierrors.APIStatus
		if !errors.As(err, &status) || status.Status().Details == nil || status.Status().Details.Name != "other" {
			return fmt.Sprintf("waking returns %v", err)
		}
		return ""
	})
	eventually(t, "an Event names the other target", func(ctx context.Context) string {
		events, err := shared.Kubernetes.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=ScaleFailed"})
		if err != nil {
			return err.Error()
		}
		if len(events.Items) != 2 || events.Items[0].Note == events.Items[1].Note {
			return fmt.Sprintf("there are %+v", events.Items)
		}
		return ""
	})
}

// label gives the ElastiService "app" a new resource version.
func label(t *testing.T, namespace string) {
	t.Helper()
	patch := []byte(`{"metadata":{"labels":{"touched":"true"}}}`)
	if _, err := elastiServices(namespace).Patch(t.Context(), "app", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
