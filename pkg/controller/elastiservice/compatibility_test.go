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

package elastiservice

import (
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target/targettest"
)

// What is incompatible with scale to zero is reported while it is so, also when the
// Service is edited later.
func TestCompatibilityConditionsFollowTheObjects(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	elastiService := cartElastiService()
	elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerHPA, Name: "cart"}
	c.create(elastiService)
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionServiceCompatible, metav1.ConditionTrue, v1alpha1.ReasonCompatible)
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetCompatible, metav1.ConditionTrue, v1alpha1.ReasonCompatible)
	if found := findCondition(c.elastiService("cart"), v1alpha1.ConditionAutoscalerCompatible); found != nil {
		t.Errorf("without an autoscaler: %+v", found)
	}

	service := cartService()
	service.Annotations["service.beta.kubernetes.io/aws-load-balancer-nlb-target-type"] = "ip"
	c.create(service)
	c.eventuallyCondition("cart", v1alpha1.ConditionServiceCompatible, metav1.ConditionFalse, v1alpha1.ReasonLoadBalancerTargetsPods)
	service = cartService()
	service.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	c.create(service)
	c.eventuallyCondition("cart", v1alpha1.ConditionServiceCompatible, metav1.ConditionFalse, v1alpha1.ReasonInternalTrafficPolicyLocal)
	service = cartService()
	service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	c.create(service)
	c.eventuallyCondition("cart", v1alpha1.ConditionServiceCompatible, metav1.ConditionFalse, v1alpha1.ReasonExternalTrafficPolicyLocal)
	c.create(cartService())
	c.eventuallyCondition("cart", v1alpha1.ConditionServiceCompatible, metav1.ConditionTrue, v1alpha1.ReasonCompatible)
	c.deleteService("cart")
	c.eventually(func() string {
		if found := findCondition(c.elastiService("cart"), v1alpha1.ConditionServiceCompatible); found != nil {
			return "the condition to be removed with the Service"
		}
		return ""
	})

	bare := targettest.Deployment(shop, "cart", 0, 0, 1000)
	unstructured.RemoveNestedField(bare.Object, "spec", "template", "spec", "containers")
	if err := unstructured.SetNestedSlice(bare.Object, []any{map[string]any{"name": "cart"}}, "spec", "template", "spec", "containers"); err != nil {
		t.Fatal(err)
	}
	c.put(c.dynamic.Tracker(), bare)
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetCompatible, metav1.ConditionFalse, v1alpha1.ReasonNoReadinessProbe)

	autoscaler := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
		"metadata": map[string]any{"namespace": shop, "name": "cart"},
		"spec":     map[string]any{"minReplicas": int64(0), "scaleTargetRef": map[string]any{"kind": "Deployment", "name": "cart"}},
	}}
	c.put(c.dynamic.Tracker(), autoscaler)
	c.eventuallyCondition("cart", v1alpha1.ConditionAutoscalerCompatible, metav1.ConditionFalse, v1alpha1.ReasonAutoscalerScalesToZero)
}

// deleteVolumesAtZero has scaling the target to zero delete its volumes.
func (c *cluster) deleteVolumesAtZero() {
	c.version++
	deletes := targettest.Deployment(shop, "cart", 2, 2, c.version)
	if err := unstructured.SetNestedField(deletes.Object, "Delete", "spec", "persistentVolumeClaimRetentionPolicy", "whenScaled"); err != nil {
		c.t.Error(err)
	}
	c.put(c.dynamic.Tracker(), deletes)
}

// A target whose volumes would be deleted is not put to sleep, however it is
// requested, unless the loss is accepted.
func TestTargetWhoseVolumesWouldBeDeletedStaysAwake(t *testing.T) {
	t.Parallel()
	c, failing := newScaleDown(t, nil)
	c.deleteVolumesAtZero()
	failing.toZero = func(next func() error) error {
		if c.elastiService("cart").Annotations[v1alpha1.AnnotationAcceptVolumeDeletion] == "" {
			t.Error("scaled to zero")
		}
		return next()
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetCompatible, metav1.ConditionFalse, v1alpha1.ReasonVolumesDeletedAtZero)
	c.requestSleep("cart")
	c.eventuallyEvent(v1alpha1.ReasonSleepFailed)
	c.eventuallyAsBefore(failing)

	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Annotations = map[string]string{v1alpha1.AnnotationAcceptVolumeDeletion: "true"}
	})
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetCompatible, metav1.ConditionTrue, v1alpha1.ReasonCompatible)
	c.requestSleep("cart")
	c.eventuallyEvent(v1alpha1.ReasonSlept)
}

// The edit that forbids sleeping comes between the check and the scaling. Only a target
// that was checked as it is may be scaled.
func TestVolumesAreNotDeletedByWhatComesRightBeforeTheScaling(t *testing.T) {
	accept := func(elastiService *v1alpha1.ElastiService) {
		elastiService.Annotations = map[string]string{v1alpha1.AnnotationAcceptVolumeDeletion: "true"}
	}
	for name, test := range map[string]struct {
		before func(*cluster)
		change func(*cluster)
		reason string
	}{
		"the target is edited": {
			before: func(*cluster) {},
			change: (*cluster).deleteVolumesAtZero,
			reason: v1alpha1.ReasonSleepFailed,
		},
		"the loss is not accepted any more": {
			before: func(c *cluster) { c.edit("cart", accept); c.deleteVolumesAtZero() },
			change: func(c *cluster) {
				c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Annotations = nil })
			},
			reason: v1alpha1.ReasonSleepCalledOff,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, failing := newScaleDown(t, nil)
			test.before(c)
			var change sync.Once
			c.beforeRequestsAreChecked(func() { change.Do(func() { test.change(c) }) })
			failing.toZero = func(next func() error) error {
				err := next()
				if err == nil {
					t.Error("scaled to zero, which deletes the volumes")
				}
				return err
			}
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart")
			c.eventuallyEvent(test.reason)
			c.eventuallyAsBefore(failing)
		})
	}
}

// With publishNotReadyAddresses, endpoints of pods that do not serve yet are
// called ready: resolvers stay until one serves.
func TestResolversStayUntilAnEndpointServes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	public := cartService()
	public.Spec.PublishNotReadyAddresses = true
	c.create(public)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	private, err := c.host.CoreV1().Services(shop).Get(t.Context(), c.elastiService("cart").Status.PrivateService, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if private.Spec.PublishNotReadyAddresses {
		t.Error("the private Service publishes addresses that are not ready")
	}

	c.setDeployment("cart", 1, 1)
	serving := func(serving bool) {
		c.create(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: shop, Name: "cart-abcde", Labels: map[string]string{discoveryv1.LabelServiceName: "cart"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{
				Ready: ptr.To(true), Serving: ptr.To(serving), Terminating: ptr.To(false),
			}}},
		})
	}
	serving(false)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Generation = 7 })
	c.eventually(func() string {
		if c.elastiService("cart").Status.ObservedGeneration != 7 {
			return "the controller to sync it once more"
		}
		return ""
	})
	if len(c.resolverSlices("cart")) == 0 {
		t.Error("the resolvers have left although no endpoint serves")
	}
	serving(true)
	c.eventuallyMode("cart", v1alpha1.ModeServe)

	// A private Service that was edited is put back.
	private.Spec.PublishNotReadyAddresses = true
	c.create(private)
	c.eventually(func() string {
		found, err := c.host.CoreV1().Services(shop).Get(t.Context(), private.Name, metav1.GetOptions{})
		if err != nil || found.Spec.PublishNotReadyAddresses {
			return "the private Service as it was"
		}
		return ""
	})
	if !slices.Contains(c.serviceNames(), private.Name) {
		t.Error("the private Service was replaced")
	}
}
