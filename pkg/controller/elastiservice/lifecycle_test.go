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
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
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
		t.Error("the ElastiService went although its target could not be woken")
	}
	c.scaling.fail(nil)
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

// The Service that was named before still selects the pods: its clients wait at the
// resolvers, and would find nothing without them.
func TestChangeOfServiceLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	other := cartService()
	other.Name = "basket"
	c.create(other)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Service = "basket"
		elastiService.Generation++
	})
	c.eventually(func() string {
		if len(c.resolverSlices("cart")) == 0 {
			t.Fatal("the resolvers left a Service whose target has no ready endpoint")
		}
		if c.scaling.replicas(t, "cart") == 0 {
			return "the target to be woken"
		}
		return ""
	})
	for _, service := range []string{"cart", "basket"} {
		c.setEndpoints(shop, service, "10.1.0.1")
	}
	c.setDeployment("cart", 2, 2)
	c.eventually(func() string {
		want := []string{"basket", "cart", resources.PrivateServiceName("basket")}
		if got := c.serviceNames(); !slices.Equal(got, want) {
			return fmt.Sprintf("Services %v, there are %v", want, got)
		}
		if len(c.resolverSlices("cart"))+len(c.resolverSlices("basket")) > 0 {
			return "the slices to be removed"
		}
		return ""
	})
	c.eventually(func() string {
		if status := c.elastiService("cart").Status; status.ObservedGeneration != 2 || status.PrivateService != resources.PrivateServiceName("basket") || status.Mode != v1alpha1.ModeServe {
			return "the status"
		}
		return ""
	})
	c.requestSleep("cart")
	c.eventuallyReplicas(0)
	if len(c.resolverSlices("basket")) != 1 || len(c.resolverSlices("cart")) > 0 {
		t.Error("the target sleeps, and its resolvers are not in the path of the Service that is named now, or in that of another one")
	}
}

func TestChangeOfTargetRestoresTheFormerOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("basket", 0, 0)
	elastiService := cartElastiService()
	elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
	c.create(elastiService)
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	// The change comes while no controller runs.
	stop()
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.ScaleTargetRef.Name = "basket"
		elastiService.Spec.Autoscaler = nil
	})
	c.start()
	c.eventually(func() string {
		if c.scaling.replicas(t, "cart") != 2 {
			return "the previous target to be awake"
		}
		return ""
	})
	if replicas := c.scaling.replicas(t, "basket"); replicas != 0 {
		t.Errorf("the new target was scaled to %d", replicas)
	}
}

// What records the previous target is an object of the former Service.
func TestPreviousTargetOfAnotherServiceIsWokenWhenItCanBe(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("basket", 1, 1)
	basket := cartService()
	basket.Name = "basket"
	c.create(basket)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.scaling.fail(errors.New("a webhook rejects it"))
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Service = "basket"
		elastiService.Spec.ScaleTargetRef.Name = "basket"
	})
	moved := time.Now()
	c.eventually(func() string {
		if c.scaling.attempts() < 2 || time.Since(moved) < lingerTime+time.Second {
			return "attempts to wake the previous target for longer than a private Service lingers"
		}
		return ""
	})
	c.scaling.fail(nil)
	c.eventuallyReplicas(2)
	c.eventually(func() string {
		if names := c.serviceNames(); !slices.Equal(names, []string{"basket", "cart", resources.PrivateServiceName("basket")}) {
			return fmt.Sprintf("the end of the former private Service, there are %v", names)
		}
		return ""
	})
}

// The ElastiService is deleted before any controller has seen the change.
func TestPreviousTargetOfADeletedElastiServiceIsWoken(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("basket", 1, 1)
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	stop()
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Name = "basket" })
	c.markDeleted("cart", 0)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.start()
	c.eventuallyReleased("cart")
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("the previous target has %d replicas, want 2", replicas)
	}
}

// A tenant deletes what records the previous target, and changes the target, before the
// controller has seen either.
func TestPreviousTargetIsWokenWithoutItsPrivateService(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("basket", 2, 2)
	c.create(cartElastiService())
	var changing atomic.Bool
	c.host.PrependReactor("create", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		// What is missing is put back only after both changes.
		return changing.Load() && c.elastiService("cart").Spec.ScaleTargetRef.Name == "cart", nil, errStumbled
	})
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	changing.Store(true)
	c.deleteService(resources.PrivateServiceName("cart"))
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Name = "basket" })
	c.eventuallyReplicas(2)
}

func TestSecondElastiServiceOnOneService(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	first, second := cartElastiService(), cartElastiService()
	first.CreationTimestamp = metav1.Unix(1000, 0)
	second.Name, second.UID = "a-second", "second-uid"
	second.CreationTimestamp = metav1.Unix(2000, 0)
	c.create(second)
	c.create(first)
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyCondition("cart", v1alpha1.ConditionConflict, metav1.ConditionFalse, v1alpha1.ReasonNoConflict)
	c.eventuallyCondition("a-second", v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonServiceTaken)
	c.eventuallyCondition("a-second", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonServiceTaken)
	if message := findCondition(c.elastiService("a-second"), v1alpha1.ConditionReady).Message; !strings.Contains(message, `"cart"`) {
		t.Errorf("the message does not name the other one: %s", message)
	}
	if err := c.elasti.ElastiV1alpha1().ElastiServices(shop).Delete(t.Context(), "cart", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventuallyMode("a-second", v1alpha1.ModeProxy)
	c.eventually(func() string {
		if found := c.resolverSlices("cart"); len(found) != 1 || found[0].Annotations[v1alpha1.AnnotationOwner] != "a-second" {
			return "the slice of the second one"
		}
		return ""
	})
	c.eventuallyCondition("a-second", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

func TestNoReadyResolverWakesSleepingTargets(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.ResolverGrace = 50 * time.Millisecond
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.setEndpoints("elasti-system", "elasti-resolver")
	c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoReadyResolver)
	c.eventually(func() string {
		if c.scaling.replicas(t, "cart") != 2 {
			return "the target to be awake"
		}
		return ""
	})
	c.eventuallyEventWith(corev1.EventTypeWarning, v1alpha1.ReasonNoReadyResolver, "scaled Deployment cart to 2")
	c.setEndpoints("elasti-system", "elasti-resolver", "10.0.0.3")
	c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionTrue, v1alpha1.ReasonResolverReady)
}

// The condition Sleeping names the last client that woke the target, which may be the
// controller.
func TestWakesOfTheControllerAreNamed(t *testing.T) {
	for name, test := range map[string]struct {
		wake   func(*cluster)
		reason string
	}{
		"no resolver is ready":         {func(c *cluster) { c.setEndpoints("elasti-system", "elasti-resolver") }, "no resolver is ready to hold its traffic"},
		"the ElastiService is deleted": {func(c *cluster) { c.markDeleted("cart", 0) }, "a Service of it is not managed any more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.options.ResolverGrace = 50 * time.Millisecond
			woken := make(chan string, 10)
			c.options.Woken = func(target resources.TargetKey, reason string) { woken <- target.Name + ": " + reason }
			c.create(cartElastiService())
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			test.wake(c)
			select {
			case got := <-woken:
				if want := "cart: " + test.reason; got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			case <-time.After(waitTimeout):
				t.Error("the wake was not reported")
			}
		})
	}
}

// createCart makes an ElastiService with a Service and a target of its own, at zero.
func (c *cluster) createCart(name string) {
	c.t.Helper()
	service, elastiService := cartService(), cartElastiService()
	service.Name, service.UID = name, types.UID(name)
	elastiService.Name, elastiService.UID, elastiService.Spec.Service = name, types.UID(name), name
	elastiService.Spec.ScaleTargetRef.Name = name
	c.create(service)
	c.setDeployment(name, 0, 0)
	c.create(elastiService)
}

// awake returns how many targets of the first carts are up.
func (c *cluster) awake(count int) int {
	c.t.Helper()
	awake := 0
	for i := range count {
		if c.scaling.replicas(c.t, fmt.Sprintf("cart-%d", i)) > 0 {
			awake++
		}
	}
	return awake
}

// An outage of the resolvers does not start all pods of the cluster at once, and
// targets whose turn has not come stay asleep when it is over.
func TestTargetsAreWokenOneAfterTheOtherWhileNoResolverIsReady(t *testing.T) {
	t.Parallel()
	const count = 3
	c := newCluster(t)
	c.options.ResolverGrace = 50 * time.Millisecond
	// The second one would have its turn after more time than any test takes.
	c.options.WakeRate = 0.0001
	for i := range count {
		c.createCart(fmt.Sprintf("cart-%d", i))
	}
	c.start()
	for i := range count {
		c.eventuallyMode(fmt.Sprintf("cart-%d", i), v1alpha1.ModeProxy)
	}
	c.setEndpoints("elasti-system", "elasti-resolver")
	for i := range count {
		c.eventuallyCondition(fmt.Sprintf("cart-%d", i), v1alpha1.ConditionResolverAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoReadyResolver)
	}
	c.eventually(func() string {
		if c.awake(count) == 0 {
			return "one target to be awake"
		}
		return ""
	})
	c.setEndpoints("elasti-system", "elasti-resolver", "10.0.0.3")
	for i := range count {
		c.eventuallyCondition(fmt.Sprintf("cart-%d", i), v1alpha1.ConditionResolverAvailable, metav1.ConditionTrue, v1alpha1.ReasonResolverReady)
	}
	if woken := c.awake(count); woken != 1 {
		t.Errorf("%d targets were woken, want one", woken)
	}
}

// OpenShift rejects EndpointSlices with the addresses of pods, unless their writer has a
// permission of its own for that. A target is not scaled to zero without resolvers in the
// path.
func TestResolverSlicesThatAreRejectedAreReported(t *testing.T) {
	t.Parallel()
	const words = "endpoint address 10.0.0.1 is not allowed"
	c, stumbling := newScaleDown(t, nil)
	var allowed atomic.Bool
	c.host.PrependReactor("create", "endpointslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*discoveryv1.EndpointSlice)
		if allowed.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), slice.Name, errors.New(words))
	})
	stumbling.toZero = func(next func() error) error {
		if !allowed.Load() {
			t.Error("scaled to zero without resolvers in the path")
		}
		return next()
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonWriteFailed)
	if message := findCondition(c.elastiService("cart"), v1alpha1.ConditionReady).Message; !strings.Contains(message, words) {
		t.Errorf("the message is %q", message)
	}
	c.eventuallyEventWith(corev1.EventTypeWarning, v1alpha1.ReasonWriteFailed, words)
	if mode := c.elastiService("cart").Status.Mode; mode != v1alpha1.ModeServe {
		t.Errorf("the mode is %s", mode)
	}
	allowed.Store(true)
	c.eventuallyReplicas(0)
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

func TestNoFreeProxyPort(t *testing.T) {
	for _, shared := range []int32{0, 8012} {
		c := newCluster(t)
		c.options.ProxyPortRange = utilnet.PortRange{Base: 10000, Size: 1}
		c.options.SharedProxyPort = shared
		c.create(cartElastiService())
		c.start()
		c.eventuallyMode("cart", v1alpha1.ModeProxy)
		c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProxyPortsExhausted)
		ports := c.elastiService("cart").Status.ProxyPorts
		if want := 1 + int(shared/8012); len(ports) != want || ports[0].ProxyPort != 10000 {
			t.Errorf("with the shared port %d: %+v", shared, ports)
		}
		c.eventuallyEvent(v1alpha1.ReasonProxyPortsExhausted)
	}
}

func TestObjectsOfOthersAreNotOverwritten(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	others := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: resources.PrivateServiceName("cart")}, Spec: corev1.ServiceSpec{Selector: map[string]string{"their": "own"}}}
	c.create(others)
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: resources.ResolverSliceName("cart", discoveryv1.AddressTypeIPv4, 0)}, AddressType: discoveryv1.AddressTypeIPv4}
	c.create(slice)
	c.create(cartElastiService())
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNameTaken)
	c.eventuallyEvent(v1alpha1.ReasonNameTaken)
	found, err := c.host.CoreV1().Services(shop).Get(t.Context(), others.Name, metav1.GetOptions{})
	if err != nil || found.Spec.Selector["their"] != "own" || len(found.Labels) > 0 {
		t.Errorf("their Service is %+v, %v", found, err)
	}
	c.deleteService(others.Name)
	if err := c.host.DiscoveryV1().EndpointSlices(shop).Delete(t.Context(), slice.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

func TestKindInstalledLater(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.scaling.forgetKind("Deployment")
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetFound, metav1.ConditionFalse, v1alpha1.ReasonKindNotServed)
	c.scaling.serveKind("Deployment", "deployments")
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetFound, metav1.ConditionTrue, v1alpha1.ReasonFound)
}

func TestOnlyTheNamespacesInScope(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.Namespaces = []string{shop}
	elsewhere := cartElastiService()
	elsewhere.Namespace, elsewhere.UID = "elsewhere", "elsewhere-uid"
	c.create(elsewhere)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	for _, action := range slices.Concat(c.host.Actions(), c.elasti.Actions(), c.dynamic.Actions()) {
		if action.GetVerb() == "list" && action.GetResource().Resource == "elastiservices" {
			// Those in namespaces that were worked on before are found.
			continue
		}
		if namespace := action.GetNamespace(); namespace != shop && (namespace != "elasti-system" || action.GetResource().Resource != "endpointslices") {
			t.Errorf("%s %s in namespace %q", action.GetVerb(), action.GetResource().Resource, namespace)
		}
	}
}

// A namespace that is taken off the list of those that are worked on is left as it
// was: its targets awake, nothing of the product in it, and no finalizer.
func TestNamespaceThatIsNotWorkedOnAnyMoreIsLeft(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventually(func() string {
		if len(c.elastiService("cart").Finalizers) == 0 {
			return "the finalizer"
		}
		return ""
	})
	stop()
	c.options.Namespaces = []string{"other"}
	c.start()
	c.eventuallyReleased("cart")
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("the target has %d replicas, want 2", replicas)
	}
	if found := c.resolverSlices("cart"); len(found) > 0 || !slices.Equal(c.serviceNames(), []string{"cart"}) {
		t.Errorf("left behind: %v, Services %v", found, c.serviceNames())
	}
	if status := c.elastiService("cart").Status; len(status.ProxyPorts) > 0 || status.PrivateService != "" || status.Mode != "" {
		t.Errorf("resolvers still act on %+v", status)
	}
}

func TestSleepOnRequest(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1", "10.1.0.2")
	elastiService := cartElastiService()
	elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
	c.create(elastiService)
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)

	c.requestSleep("cart")
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("scaled to %d as soon as the slice was in place", replicas)
	}
	c.eventually(func() string {
		if c.scaling.replicas(t, "cart") != 0 {
			return "the target to sleep"
		}
		return ""
	})
	c.eventually(func() string {
		if status := c.elastiService("cart").Status; status.SleepRequestedTime != nil || status.SleptTime == nil {
			return "the end of the request in the status"
		}
		return ""
	})
	c.scaling.mu.Lock()
	paused := slices.Clone(c.scaling.paused)
	c.scaling.mu.Unlock()
	if !slices.Equal(paused, []string{"cart"}) {
		t.Errorf("paused %v", paused)
	}
	c.eventuallyEvent(v1alpha1.ReasonSlept)
}

func TestSleepRequestTakenBackLeavesTheTargetAwake(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("scaled to %d", replicas)
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
// goes with the others all the same.
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

// What makes a Service one that resolvers cannot stand in for takes them
// away. The target is woken first, and what they hold is still forwarded.
func TestServiceThatBecomesUnsupportedWakesTheTargetBeforeResolversLeave(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*corev1.Service){
		"without selector": func(service *corev1.Service) { service.Spec.Selector = nil },
		"ExternalName": func(service *corev1.Service) {
			service.Spec.Type, service.Spec.ExternalName = corev1.ServiceTypeExternalName, "cart.example.com"
		},
		"headless": func(service *corev1.Service) { service.Spec.ClusterIP = corev1.ClusterIPNone },
		"only UDP": func(service *corev1.Service) {
			for i := range service.Spec.Ports {
				service.Spec.Ports[i].Protocol = corev1.ProtocolUDP
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.create(cartElastiService())
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			service := cartService()
			change(service)
			c.put(c.host.Tracker(), service)
			c.eventually(func() string {
				if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
					return fmt.Sprintf("2 replicas, there are %d", replicas)
				}
				return ""
			})
			status := c.elastiService("cart").Status
			if len(c.resolverSlices("cart")) == 0 || len(status.ProxyPorts) == 0 || status.PrivateService == "" {
				t.Errorf("the resolvers left before an endpoint was ready: %+v", status)
			}
			c.setEndpoints(shop, "cart", "10.1.0.1")
			c.eventually(func() string {
				if found := c.resolverSlices("cart"); len(found) > 0 || len(c.serviceNames()) > 1 {
					return fmt.Sprintf("the end of %v, %v", found, c.serviceNames())
				}
				return ""
			})
			c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonServiceNotSupported)
		})
	}
}

// Who renames an application edits the ElastiService, and may do so before the Service
// with the new name is there. Clients of the former one still wait at resolvers.
func TestServiceThatIsNotThereYetWakesTheTargetBeforeResolversLeaveTheFormerOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Service = "basket"
		elastiService.Generation++
	})
	c.eventuallyReplicas(2)
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
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonServiceNotFound)
}

// Likewise when the target gets another name at the same time: nothing names the
// former one any more.
func TestPreviousTargetOfAServiceThatIsNotThereYetIsWoken(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("basket", 1, 1)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Service = "basket"
		elastiService.Spec.ScaleTargetRef.Name = "basket"
		elastiService.Generation++
	})
	c.eventuallyReplicas(2)
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
		if !strings.Contains(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "no ElastiService is known at all") {
			return "the log to say that the objects are left alone"
		}
		return ""
	})
	if len(c.resolverSlices("cart")) != 1 {
		t.Error("the slice was removed")
	}
}

// What an empty store has lost does not stay for ever: it is made again, or it goes
// when the store knows others.
func TestWhatAnEmptyStoreLostGoesWhenItHasOthers(t *testing.T) {
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
		if !strings.Contains(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "no ElastiService is known at all") {
			return "the log to say that the objects are left alone"
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

func TestErrorsBecomeBoundedLabels(t *testing.T) {
	for err, want := range map[error]string{
		nil:                 errorNone,
		errors.New("other"): errorOther,
		apierrors.NewConflict(deploymentsResource.GroupResource(), "x", nil):                       errorConflict,
		fmt.Errorf("a: %w", apierrors.NewForbidden(deploymentsResource.GroupResource(), "x", nil)): errorForbidden,
		apierrors.NewNotFound(deploymentsResource.GroupResource(), "x"):                            errorNotFound,
	} {
		if got := errorClass(err); got != want || !slices.Contains(errorClasses, got) {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}
