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
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// pausedScaleInAnnotation keeps a ScaledObject from scaling in.
const pausedScaleInAnnotation = "autoscaling.keda.sh/paused-scale-in"

// patchService changes the Service "app", as a user does.
func patchService(t *testing.T, namespace, patch string) {
	t.Helper()
	if _, err := shared.Kubernetes.CoreV1().Services(namespace).Patch(t.Context(), "app", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatalf("changing the Service: %v", err)
	}
}

// patchElastiService changes the ElastiService "app", and waits until the controller has
// observed the change.
func patchElastiService(t *testing.T, namespace, patch string) {
	t.Helper()
	changed, err := elastiServices(namespace).Patch(t.Context(), "app", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("changing the ElastiService: %v", err)
	}
	eventually(t, "the controller has seen the change", func(context.Context) string {
		if observed := readElastiService(t, namespace).Status.ObservedGeneration; observed < changed.Generation {
			return fmt.Sprintf("it has seen generation %d of %d", observed, changed.Generation)
		}
		return ""
	})
}

// sleep requests the scale-down of the target, as kubectl scale does.
func sleep(t *testing.T, namespace string) {
	t.Helper()
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "app"}}
	if _, err := elastiServices(namespace).UpdateScale(t.Context(), "app", scale, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("requesting the scale-down: %v", err)
	}
}

// A setting of a Service that is incompatible with scale to zero is reported while it is
// set.
func TestServiceThatIsEditedLaterIsReported(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForReason(t, namespace, v1alpha1.ConditionServiceCompatible, metav1.ConditionTrue, v1alpha1.ReasonCompatible)
	for _, test := range []struct{ patch, reason string }{
		{`{"spec":{"publishNotReadyAddresses":true}}`, v1alpha1.ReasonPublishesNotReadyAddresses},
		{`{"spec":{"publishNotReadyAddresses":false,"internalTrafficPolicy":"Local"}}`, v1alpha1.ReasonInternalTrafficPolicyLocal},
		{`{"spec":{"internalTrafficPolicy":"Cluster","type":"NodePort","externalTrafficPolicy":"Local"}}`, v1alpha1.ReasonExternalTrafficPolicyLocal},
		{`{"metadata":{"annotations":{"cloud.google.com/neg":"{\"ingress\": true}"}},"spec":{"externalTrafficPolicy":"Cluster"}}`, v1alpha1.ReasonLoadBalancerTargetsPods},
		{`{"metadata":{"annotations":null},"spec":{"sessionAffinity":"ClientIP"}}`, v1alpha1.ReasonSessionAffinity},
	} {
		patchService(t, namespace, test.patch)
		waitForReason(t, namespace, v1alpha1.ConditionServiceCompatible, metav1.ConditionFalse, test.reason)
	}
	patchService(t, namespace, `{"spec":{"sessionAffinity":"None","trafficDistribution":"PreferSameZone"}}`)
	waitForReason(t, namespace, v1alpha1.ConditionServiceCompatible, metav1.ConditionTrue, v1alpha1.ReasonCompatible)
	patchElastiService(t, namespace, `{"spec":{"proxy":{"policy":"Always"}}}`)
	waitForReason(t, namespace, v1alpha1.ConditionServiceCompatible, metav1.ConditionFalse, v1alpha1.ReasonTrafficDistribution)
}

// In the slices of a Service with publishNotReadyAddresses every pod is ready. Resolvers
// stay in the path until a pod really is.
func TestResolversStayUntilAPodIsReadyWhateverTheServicePublishes(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 1)
	patchService(t, namespace, `{"spec":{"publishNotReadyAddresses":true}}`)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	pod := runPod(t, namespace, "app")
	eventually(t, "the Service publishes the pod", func(ctx context.Context) string {
		for _, slice := range slicesOf(ctx, t, namespace, discoveryv1.LabelManagedBy+"!="+v1alpha1.SliceManagedBy) {
			for _, endpoint := range slice.Endpoints {
				if conditions := endpoint.Conditions; ptr.Deref(conditions.Ready, false) && !ptr.Deref(conditions.Serving, true) {
					return ""
				}
			}
		}
		return "no endpoint is called ready that does not serve"
	})
	patchElastiService(t, namespace, `{"spec":{"cooldownPeriod":60}}`)
	if object := readElastiService(t, namespace); object.Status.Mode != v1alpha1.ModeProxy {
		t.Errorf("the mode is %s while no pod is ready", object.Status.Mode)
	}
	if len(resolverSlices(t.Context(), t, namespace)) == 0 {
		t.Error("the resolvers have left while no pod is ready")
	}
	setReady(t, namespace, pod, true)
	waitForMode(t, namespace, v1alpha1.ModeServe)
	setReady(t, namespace, pod, false)
	waitForMode(t, namespace, v1alpha1.ModeProxy)
}

// A StatefulSet whose volumes would be deleted is not put to sleep unless the loss is
// accepted, also when the scale-down is requested by hand.
func TestVolumesAreNotDeletedUnlessThatIsAccepted(t *testing.T) {
	namespace := newNamespace(t)
	kind := workload("statefulsets", "StatefulSet")
	kind.spec["replicas"] = int64(1)
	kind.spec["persistentVolumeClaimRetentionPolicy"] = map[string]any{"whenScaled": "Delete", "whenDeleted": "Retain"}
	kind.spec["volumeClaimTemplates"] = []any{map[string]any{
		"metadata": map[string]any{"name": "data"},
		"spec":     map[string]any{"accessModes": []any{"ReadWriteOnce"}, "resources": map[string]any{"requests": map[string]any{"storage": "1Mi"}}},
	}}
	kind.create(t, namespace)
	createService(t, namespace)
	createElastiService(t, namespace, kind.elastiService())
	pod := runPod(t, namespace, "app")
	setReady(t, namespace, pod, true)
	waitForMode(t, namespace, v1alpha1.ModeServe)
	waitForReason(t, namespace, v1alpha1.ConditionTargetCompatible, metav1.ConditionFalse, v1alpha1.ReasonVolumesDeletedAtZero)

	sleep(t, namespace)
	waitForEvent(t, namespace, v1alpha1.ReasonSleepFailed)
	eventually(t, "the request for sleep is given up", func(context.Context) string {
		if at := readElastiService(t, namespace).Status.SleepRequestedTime; at != nil {
			return fmt.Sprintf("it was requested at %s", at)
		}
		return ""
	})
	if replicas := kind.replicas(t, namespace); replicas != 1 {
		t.Fatalf("the StatefulSet has %d replicas", replicas)
	}

	patchElastiService(t, namespace, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationAcceptVolumeDeletion+`":"true"}}}`)
	waitForReason(t, namespace, v1alpha1.ConditionTargetCompatible, metav1.ConditionFalse, v1alpha1.ReasonNoReadinessProbe)
	sleep(t, namespace)
	eventuallyWithin(t, sleepTimeout, "the StatefulSet sleeps", func(context.Context) string {
		if replicas := kind.replicas(t, namespace); replicas != 0 {
			return fmt.Sprintf("it has %d replicas", replicas)
		}
		return ""
	})
	removePod(t, namespace, pod)
}

// By default KEDA scales to zero by itself. A wake nevertheless lasts for the cooldown, and
// the setting of the user is restored after it.
func TestKEDAThatScalesToZeroDoesNotUndoAWake(t *testing.T) {
	scaledObjects.install(t)
	namespace := newNamespace(t)
	putToSleepWithAutoscaler(t, namespace)
	waitForReason(t, namespace, v1alpha1.ConditionAutoscalerCompatible, metav1.ConditionFalse, v1alpha1.ReasonAutoscalerScalesToZero)
	const cooldown = 5 * time.Second
	patchElastiService(t, namespace, fmt.Sprintf(`{"spec":{"cooldownPeriod":%d}}`, cooldown/time.Second))

	if _, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking: %v", err)
	}
	awake := scaledObjectAnnotations(t, namespace)
	if awake[pausedScaleInAnnotation] != "true" || awake[pausedAnnotation] != "" || awake[userAnnotation] != "shop" {
		t.Fatalf("the woken target's ScaledObject has the annotations %v", awake)
	}
	woken := time.Now()
	letGo := func() string {
		if annotations := scaledObjectAnnotations(t, namespace); len(annotations) != 1 || annotations[userAnnotation] != "shop" {
			return fmt.Sprintf("it has the annotations %v", annotations)
		}
		return ""
	}
	// Only KEDA scales this target to zero.
	eventually(t, "KEDA may scale to zero after the cooldown", func(context.Context) string { return letGo() })
	// The recorded time of the wake has whole seconds.
	if after := time.Since(woken); after < cooldown-2*time.Second {
		t.Errorf("KEDA might have undone the wake after %s, the cooldown is %s", after, cooldown)
	}

	// A target with triggers is paused until it sleeps.
	patchElastiService(t, namespace, `{"spec":{"triggers":[{"type":"traffic"}],"proxy":{"policy":"Always"}}}`)
	eventually(t, "KEDA is kept from scaling to zero", func(context.Context) string {
		if annotations := scaledObjectAnnotations(t, namespace); annotations[pausedScaleInAnnotation] != "true" {
			return fmt.Sprintf("it has the annotations %v", annotations)
		}
		return ""
	})
	patchElastiService(t, namespace, `{"spec":{"autoscaler":null}}`)
	eventually(t, "an autoscaler that is not named any more is let go", func(context.Context) string { return letGo() })
}

// A pause by the user is neither treated as one of the controller nor lost.
func TestPausesOfTheUserSurvive(t *testing.T) {
	scaledObjects.install(t)
	namespace := newNamespace(t)
	scaledObjects.create(t, namespace)
	kubectl := newKubectl(t, namespace)
	if _, err := kubectl.Run(t.Context(), "", "annotate", "scaledobject", "app", pausedAnnotation+"=true", pausedAnnotation+"-replicas=0"); err != nil {
		t.Fatal(err)
	}
	before := scaledObjectAnnotations(t, namespace)
	createApplication(t, namespace, 0)
	object := newElastiService("app")
	object.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "app"}
	createElastiService(t, namespace, object)
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	waitForReason(t, namespace, v1alpha1.ConditionAutoscalerCompatible, metav1.ConditionFalse, v1alpha1.ReasonAutoscalerPausedAtZero)
	expectAsBefore := func(when string) {
		t.Helper()
		if after := scaledObjectAnnotations(t, namespace); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s, the annotations are %v, want %v", when, after, before)
		}
	}

	if _, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking: %v", err)
	}
	expectAsBefore("after a wake")
	pod := runPod(t, namespace, "app")
	setReady(t, namespace, pod, true)
	waitForMode(t, namespace, v1alpha1.ModeServe)
	expectAsBefore("awake")
	sleep(t, namespace)
	waitForDesired(t, namespace, 0)
	removePod(t, namespace, pod)
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	if _, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking: %v", err)
	}
	expectAsBefore("after a sleep")
}
