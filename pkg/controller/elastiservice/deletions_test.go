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
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// markDeleted does what the API server does for an object with a finalizer.
func (c *cluster) markDeleted(name string, since time.Duration) {
	c.t.Helper()
	at := metav1.NewTime(c.options.Clock.Now().Add(-since))
	c.edit(name, func(elastiService *v1alpha1.ElastiService) { elastiService.DeletionTimestamp = &at })
}

// eventuallyReleased waits until the finalizer is removed.
func (c *cluster) eventuallyReleased(name string) {
	c.t.Helper()
	c.eventually(func() string {
		if finalizers := c.elastiService(name).Finalizers; len(finalizers) > 0 {
			return fmt.Sprintf("the end of the finalizers %v", finalizers)
		}
		return ""
	})
}

// The watch may be behind what the controller itself wrote.
func TestDeletionBeforeTheResolverSliceIsObservedDeletesIt(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	deliver := informerstest.HoldWatch(t, &c.host.Fake, "endpointslices")
	c.create(cartElastiService())
	c.start()
	c.eventually(func() string {
		if len(c.resolverSlices("cart")) == 0 {
			return "a resolver slice"
		}
		return ""
	})
	c.markDeleted("cart", 0)
	c.eventuallyReplicas(2)
	if !hasFinalizer(c.elastiService("cart")) || len(c.resolverSlices("cart")) == 0 {
		t.Error("the resolvers left before an endpoint was ready")
	}
	c.setEndpoints(shop, "cart", "10.1.0.1")
	deliver()
	c.eventuallyReleased("cart")
	c.eventuallyNothingIsLeft()
}

// The namespace controller may delete the RoleBinding of the server first.
func TestDeletedNamespaceWithoutPermissionsIsNotHeldUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	deleted := metav1.Now()
	c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop, DeletionTimestamp: &deleted}})
	c.forbidLists(shop, "endpointslices")
	informerstest.React(&c.host.Fake, "get", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("services"), "cart", nil)
	})
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.markDeleted("cart", 0)
	c.eventuallyReleased("cart")
}

// The resolvers stand in for the previous Service until its clients can be served, whatever
// pods the one has that is named now.
func TestDeletionWaitsForTheServiceThatResolversStandInFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	other := cartService()
	other.Name = "basket"
	c.create(other)
	c.setEndpoints(shop, "basket", "10.1.0.9")
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.Service = "basket" })
	c.eventuallyReplicas(2)
	c.markDeleted("cart", 0)
	marked := c.options.Clock.Now()
	c.eventually(func() string {
		if c.options.Clock.Since(marked) < lingerTime {
			return "the time that a removal takes to remove everything"
		}
		return ""
	})
	if len(c.resolverSlices("cart")) == 0 {
		t.Error("the resolvers left before an endpoint of the Service was ready")
	}
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventuallyReleased("cart")
}

// Nothing else brings an ElastiService back that does not exist any more, but the end of the
// time that an endpoint is waited for.
func TestResolversOfAnOrphanLeaveWithTheFirstReadyEndpoint(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	// That time does not pass.
	c.options.Clock = clocktesting.NewFakeClock(time.Now())
	c.createOther()
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.remove("cart")
	c.eventuallyReplicas(2)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventually(func() string {
		if left := len(c.resolverSlices("cart")); left > 0 {
			return fmt.Sprintf("the end of %d resolver slices", left)
		}
		return ""
	})
}

// Another finalizer, such as that of a GitOps controller, may keep the ElastiService.
func TestTargetWhoseFinalizerIsRemovedByHandIsWoken(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		now := metav1.Now()
		elastiService.DeletionTimestamp, elastiService.Finalizers = &now, []string{"example.com/other"}
	})
	c.eventuallyReplicas(2)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventually(func() string {
		if found := c.resolverSlices("cart"); len(found) > 0 || len(c.serviceNames()) > 1 {
			return fmt.Sprintf("the end of %v, %v", found, c.serviceNames())
		}
		return ""
	})
	if finalizers := c.elastiService("cart").Finalizers; !slices.Equal(finalizers, []string{"example.com/other"}) {
		t.Errorf("the finalizers are %v", finalizers)
	}
}

func TestDeletionWakesTheTargetBeforeResolversLeave(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	elastiService := cartElastiService()
	elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
	c.create(elastiService)
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.markDeleted("cart", 0)
	c.eventually(func() string {
		if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
			return fmt.Sprintf("2 replicas, there are %d", replicas)
		}
		return ""
	})
	if len(c.resolverSlices("cart")) == 0 || len(c.elastiService("cart").Finalizers) == 0 {
		t.Error("the resolvers left before an endpoint was ready")
	}
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventuallyReleased("cart")
	if len(c.resolverSlices("cart")) > 0 || !slices.Equal(c.serviceNames(), []string{"cart"}) {
		t.Errorf("left behind: %v, Services %v", c.resolverSlices("cart"), c.serviceNames())
	}
	c.scaling.mu.Lock()
	defer c.scaling.mu.Unlock()
	if !slices.Contains(c.scaling.resumed, "cart") {
		t.Error("the autoscaler was not resumed")
	}
}

func TestDeletionNeverHangs(t *testing.T) {
	for name, test := range map[string]func(*cluster){
		"the target is deleted": func(c *cluster) {
			if err := c.dynamic.Tracker().Delete(deploymentsResource, shop, "cart"); err != nil {
				c.t.Error(err)
			}
		},
		"the kind is deleted": func(c *cluster) { c.scaling.forgetKind("Deployment") },
		"the target is awake, and its scale cannot be read": func(c *cluster) {
			c.scaling.hide(apierrors.NewForbidden(deploymentsResource.GroupResource(), "cart", nil))
			c.setEndpoints(shop, "cart", "10.1.0.1")
		},
		"the target cannot be woken, and its namespace is deleted": func(c *cluster) {
			c.scaling.fail(errors.New("denied"))
			now := metav1.Now()
			c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop, DeletionTimestamp: &now}})
		},
		"no endpoint ever gets ready":     func(*cluster) {},
		"the Service is deleted":          func(c *cluster) { c.deleteService("cart") },
		"everything of it is deleted too": func(c *cluster) { c.deleteService("cart"); c.deleteService(resources.PrivateServiceName("cart")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.create(cartElastiService())
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			test(c)
			c.markDeleted("cart", restoreTimeout)
			c.eventuallyReleased("cart")
		})
	}
}

func TestTargetThatCannotBeWokenHoldsUpADeletion(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.scaling.fail(errors.New("denied for a moment"))
	c.markDeleted("cart", 0)
	c.eventually(func() string {
		if c.scaling.attempts() < 2 {
			return "attempts"
		}
		return ""
	})
	if len(c.elastiService("cart").Finalizers) == 0 {
		t.Error("the ElastiService was deleted although its target could not be woken")
	}
	c.scaling.fail(nil)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventuallyReleased("cart")
}

// The target is awake, so that its deletion need not wait for ever. The user learns what is
// left to do.
func TestAutoscalerThatCannotBeResumedIsReported(t *testing.T) {
	t.Parallel()
	c, failing := newScaleDown(t, nil)
	failing.resume = func(func() error) error { return errUnavailable }
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.markDeleted("cart", 2*restoreTimeout)
	c.eventuallyEventWith(corev1.EventTypeWarning, v1alpha1.ReasonAutoscalerNotResumed, "the autoscaler of Deployment cart may still be paused")
	c.eventuallyReleased("cart")
}

// The target is awake, and its autoscaler is left for the user to resume.
func TestAutoscalerThatTheLastWakeLeavesPausedIsReported(t *testing.T) {
	t.Parallel()
	c, failing := newScaleDown(t, nil)
	failing.autoscalerError = errUnavailable
	c.setDeployment("cart", 0, 0)
	c.setEndpoints(shop, "cart")
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.markDeleted("cart", 0)
	c.eventuallyEventWith(corev1.EventTypeWarning, v1alpha1.ReasonAutoscalerNotResumed, errUnavailable.Error())
	c.setDeployment("cart", 1, 1)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventuallyReleased("cart")
}

// A target at zero without resolvers would not be woken by any traffic, so it is not
// given up, whatever took them away.
func TestTargetThatCannotBeWokenKeepsItsResolvers(t *testing.T) {
	for name, test := range map[string]struct {
		takeAway func(*cluster)
		// reported is false when there is no ElastiService to say so.
		reported bool
	}{
		"its ElastiService is deleted": {func(c *cluster) { c.markDeleted("cart", time.Hour) }, true},
		"its ElastiService does not exist any more": {func(c *cluster) {
			if err := c.elasti.ElastiV1alpha1().ElastiServices(shop).Delete(c.t.Context(), "cart", metav1.DeleteOptions{}); err != nil {
				c.t.Error(err)
			}
		}, false},
		"its Service is not supported any more": {func(c *cluster) {
			service := cartService()
			service.Spec.Selector = nil
			c.put(c.host.Tracker(), service)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}})
			staying := cartElastiService()
			staying.Name, staying.UID, staying.Spec.Service, staying.Spec.ScaleTargetRef.Name = "staying", "staying-uid", "staying", "staying"
			c.create(staying)
			c.create(cartElastiService())
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			// The message of a webhook has no bound.
			c.scaling.fail(errors.New("a webhook rejects it: " + strings.Repeat("no", maxMessageBytes)))
			test.takeAway(c)
			c.eventuallyEvent(v1alpha1.ReasonTargetNotRestored)
			if test.reported {
				c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTargetNotRestored)
				message := findCondition(c.elastiService("cart"), v1alpha1.ConditionReady).Message
				if !strings.Contains(message, "a webhook rejects it") || len(message) > maxMessageBytes {
					t.Errorf("the message does not say why, or has %d bytes: %.300s", len(message), message)
				}
			}
			attempts := c.scaling.attempts()
			c.eventually(func() string {
				if c.scaling.attempts() == attempts {
					return "another attempt"
				}
				return ""
			})
			if len(c.resolverSlices("cart")) == 0 {
				t.Error("the resolvers have left the path of a target that sleeps")
			}
			c.scaling.fail(nil)
			c.eventuallyReplicas(2)
			c.setEndpoints(shop, "cart", "10.1.0.1")
			c.eventually(func() string {
				if left := c.resolverSlices("cart"); len(left) > 0 {
					return fmt.Sprintf("the end of %v", left)
				}
				return ""
			})
		})
	}
}

// An ElastiService that is not in the store any more, because its finalizer was
// removed by hand or an older store was restored, leaves a target asleep. It is
// woken before the resolvers leave.
func TestTargetOfADeletedElastiServiceIsWokenBeforeResolversLeave(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	staying := cartElastiService()
	staying.Name, staying.UID, staying.Spec.Service = "staying", "staying-uid", "staying"
	staying.Spec.ScaleTargetRef.Name = "staying"
	c.create(staying)
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	stop()
	if err := c.elasti.ElastiV1alpha1().ElastiServices(shop).Delete(t.Context(), "cart", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.start()
	c.eventually(func() string {
		if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
			return fmt.Sprintf("2 replicas, there are %d", replicas)
		}
		return ""
	})
	c.eventuallyEvent(v1alpha1.ReasonTargetRestored)
	if len(c.resolverSlices("cart")) == 0 {
		t.Error("the resolvers left before an endpoint was ready")
	}
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventually(func() string {
		if found := c.resolverSlices("cart"); len(found) > 0 || len(c.serviceNames()) > 1 {
			return fmt.Sprintf("the end of %v, %v", found, c.serviceNames())
		}
		return ""
	})
}

// A resolver slice that another client has edited does not say any more whose it is. It
// is deleted with the others all the same.
func TestEditedResolverSliceOfADeletedElastiServiceIsRemoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	staying := cartElastiService()
	staying.Name, staying.UID, staying.Spec.Service = "staying", "staying-uid", "staying"
	staying.Spec.ScaleTargetRef.Name = "staying"
	c.create(staying)
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	stop()
	edited := c.resolverSlices("cart")[0]
	edited.Annotations[v1alpha1.AnnotationOwner] = "none"
	if _, err := c.host.DiscoveryV1().EndpointSlices(shop).Update(t.Context(), &edited, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.elasti.ElastiV1alpha1().ElastiServices(shop).Delete(t.Context(), "cart", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.start()
	c.eventually(func() string {
		if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
			return fmt.Sprintf("2 replicas, there are %d", replicas)
		}
		return ""
	})
	if len(c.resolverSlices("cart")) == 0 {
		t.Error("the resolvers left before an endpoint was ready")
	}
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventually(func() string {
		if found := c.resolverSlices("cart"); len(found) > 0 || len(c.serviceNames()) > 1 {
			return fmt.Sprintf("the end of %v, %v", found, c.serviceNames())
		}
		return ""
	})
}

func TestAnEmptyStoreIsNoReasonToRemoveSlices(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	stop()
	c.loseStore("cart")
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	c.startWith(klog.NewContext(t.Context(), logger))
	c.eventually(func() string {
		if !strings.Contains(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "the store has no ElastiService at all") {
			return "the log to say that the objects are kept"
		}
		return ""
	})
	if len(c.resolverSlices("cart")) != 1 {
		t.Error("the slice was removed")
	}
}

// What an empty store has lost does not stay for ever: it is made again, or
// deleted when the store knows others.
func TestWhatAnEmptyStoreLostIsRemovedWhenItHasOthers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	stop()
	c.loseStore("cart")
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	c.startWith(klog.NewContext(t.Context(), logger))
	c.eventually(func() string {
		if !strings.Contains(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "the store has no ElastiService at all") {
			return "the log to say that the objects are kept"
		}
		return ""
	})
	other := cartElastiService()
	other.Name, other.UID, other.Spec.Service = "other", "other-uid", "other"
	other.Spec.ScaleTargetRef.Name = "other"
	c.create(other)
	c.eventually(func() string {
		if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
			return fmt.Sprintf("2 replicas, there are %d", replicas)
		}
		return ""
	})
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventually(func() string {
		if found := c.resolverSlices("cart"); len(found) > 0 || len(c.serviceNames()) > 1 {
			return fmt.Sprintf("the end of %v, %v", found, c.serviceNames())
		}
		return ""
	})
}
