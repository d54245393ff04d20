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
	"fmt"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// scaledObjects is the kind of KEDA's autoscalers. KEDA does not run here.
var scaledObjects = targetKind{apiVersion: "keda.sh/v1alpha1", kind: "ScaledObject", resource: "scaledobjects", spec: map[string]any{
	"scaleTargetRef": map[string]any{"name": "app"},
}}

const (
	// pausedAnnotation pauses a ScaledObject.
	pausedAnnotation = "autoscaling.keda.sh/paused"
	// userAnnotation is an annotation of the user.
	userAnnotation = "example.com/owner"
)

// putToSleepWithAutoscaler creates an application with a ScaledObject, whose
// kind is installed, and lets it sleep.
func putToSleepWithAutoscaler(t *testing.T, namespace string) {
	t.Helper()
	scaledObjects.create(t, namespace)
	annotateScaledObject(t, namespace)
	createApplication(t, namespace, 1)
	object := newElastiService("app")
	object.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "app"}
	createElastiService(t, namespace, object)
	pod := runPod(t, namespace, "app")
	setReady(t, namespace, pod, true)
	waitForMode(t, namespace, v1alpha1.ModeServe)
	waitForReplicas(t, namespace, 1)

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
	removePod(t, namespace, pod)
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	if paused := scaledObjectAnnotations(t, namespace)[pausedAnnotation]; paused != "true" {
		t.Errorf("the ScaledObject has %s=%q while its target sleeps", pausedAnnotation, paused)
	}
}

func annotateScaledObject(t *testing.T, namespace string) {
	t.Helper()
	if _, err := newKubectl(t, namespace).Run(t.Context(), "", "annotate", "scaledobject", "app", userAnnotation+"=shop"); err != nil {
		t.Fatal(err)
	}
}

func scaledObjectAnnotations(t *testing.T, namespace string) map[string]string {
	t.Helper()
	object, err := scaledObjects.objects(t, namespace).Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the ScaledObject: %v", err)
	}
	return object.GetAnnotations()
}

func expectResumed(t *testing.T, namespace string) {
	t.Helper()
	if annotations := scaledObjectAnnotations(t, namespace); len(annotations) != 1 || annotations[userAnnotation] != "shop" {
		t.Errorf("the ScaledObject is left with the annotations %v", annotations)
	}
}

func TestDeletionResumesTheAutoscaler(t *testing.T) {
	scaledObjects.install(t)
	namespace := newNamespace(t)
	putToSleepWithAutoscaler(t, namespace)
	if err := elastiServices(namespace).Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting: %v", err)
	}
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	eventually(t, "the ElastiService is deleted", func(ctx context.Context) string {
		if _, err := elastiServices(namespace).Get(ctx, "app", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("reading it returns %v", err)
		}
		return ""
	})
	expectResumed(t, namespace)
}
