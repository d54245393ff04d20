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
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// cartGRPC is another ElastiService of the Deployment "cart", with a Service of its
// own.
func cartGRPC() *v1alpha1.ElastiService {
	elastiService := cartElastiService()
	elastiService.Name, elastiService.UID, elastiService.Spec.Service = "cart-grpc", "cart-grpc-uid", "cart-grpc"
	return elastiService
}

// newSharedTarget is a cluster with an awake target that has two ElastiServices.
func newSharedTarget(t *testing.T) (*cluster, *failingScaling) {
	t.Helper()
	c, failing := newScaleDown(t, nil)
	service := cartService()
	service.Name, service.UID, service.Spec.ClusterIP = "cart-grpc", "cart-grpc-service", "10.96.0.11"
	c.create(service)
	c.setEndpoints(shop, "cart-grpc", "10.1.0.1", "10.1.0.2")
	c.create(cartGRPC())
	return c, failing
}

// startAwake runs a controller and waits until both serve.
func (c *cluster) startAwake() {
	c.t.Helper()
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.eventuallyMode("cart-grpc", v1alpha1.ModeServe)
}

func (c *cluster) eventuallyReplicas(want int32) {
	c.t.Helper()
	c.eventually(func() string {
		if replicas := c.scaling.replicas(c.t, "cart"); replicas != want {
			return fmt.Sprintf("%d replicas, there are %d", want, replicas)
		}
		return ""
	})
}

// sync has the controller sync an ElastiService once more, and waits for that.
func (c *cluster) sync(name string) {
	c.t.Helper()
	generation := c.elastiService(name).Generation + 1
	c.edit(name, func(elastiService *v1alpha1.ElastiService) { elastiService.Generation = generation })
	c.eventually(func() string {
		if c.elastiService(name).Status.ObservedGeneration != generation {
			return "another sync of " + name
		}
		return ""
	})
}

// One of two ElastiServices alone does not put their target to sleep, and both have resolvers
// in the path before it is scaled to zero.
func TestSharedTargetIsScaledWhenEachHasResolvers(t *testing.T) {
	c, failing := newSharedTarget(t)
	var exposed atomic.Int32
	failing.toZero = func(next func() error) error {
		if len(c.resolverSlices("cart")) == 0 || len(c.resolverSlices("cart-grpc")) == 0 {
			exposed.Add(1)
		}
		return next()
	}
	c.startAwake()
	c.requestSleep("cart")
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	for range 3 {
		c.sync("cart")
	}
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Fatalf("one alone scaled the target to %d", replicas)
	}
	c.requestSleep("cart-grpc")
	c.eventuallyReplicas(0)
	if exposed.Load() > 0 {
		t.Error("the target was scaled to zero without resolvers in the path of each Service")
	}
	for _, name := range []string{"cart", "cart-grpc"} {
		c.eventually(func() string {
			if c.elastiService(name).Status.SleepRequestedTime != nil {
				return "the request of " + name + " to be fulfilled"
			}
			return ""
		})
		c.sync(name)
		c.eventuallyMode(name, v1alpha1.ModeProxy)
	}
}

// One names the kind, the other the resource, which is not the regular plural of it.
func TestSharedTargetOfAnIrregularKindIsScaledWhenEachHasResolvers(t *testing.T) {
	c, _ := newSharedTarget(t)
	c.scaling.serveKind("Rollout", "deployments")
	c.scaling.serveKind("deployments", "deployments")
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Kind = "Rollout" })
	c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Kind = "deployments" })
	c.startAwake()
	c.requestSleep("cart")
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	for range 3 {
		c.sync("cart")
	}
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Fatalf("one alone scaled the target to %d", replicas)
	}
	c.requestSleep("cart-grpc")
	c.eventuallyReplicas(0)
}

// The storage may have one that no informer has shown yet.
func TestTargetIsSharedWithAnElastiServiceThatWasNeverSynced(t *testing.T) {
	c, _ := newSharedTarget(t)
	c.scaling.serveKind("Rollout", "deployments")
	c.scaling.serveKind("deployments", "deployments")
	one, other := cartElastiService(), cartGRPC()
	one.Spec.ScaleTargetRef.Kind, other.Spec.ScaleTargetRef.Kind = "Rollout", "deployments"
	controller := &Controller{scaling: c.scaling, targetKeys: &resources.TargetKeys{}}
	if shared, err := controller.shareTarget(t.Context(), one, other); err != nil || !shared {
		t.Errorf("two names of one kind: shared is %t (%v)", shared, err)
	}
	other.Spec.ScaleTargetRef.Kind = "Unknown"
	if shared, err := controller.shareTarget(t.Context(), one, other); err != nil || shared {
		t.Errorf("a kind that does not exist: shared is %t (%v)", shared, err)
	}
}

// A worker that sees the target at zero while another one still scales it leaves its
// request to that one, which takes a request that is removed for a wake.
func TestSharedTargetIsNotWokenByOneThatSeesItAtZeroFirst(t *testing.T) {
	c, failing := newSharedTarget(t)
	const later = 1 << 10
	var scaled, removing atomic.Bool
	var wakes atomic.Int32
	failing.toZero = func(next func() error) error {
		defer scaled.Store(true)
		return next()
	}
	failing.wake = func(next func() error) error {
		wakes.Add(1)
		return next()
	}
	c.beforeStatus = func(status *v1alpha1.ElastiServiceStatus) {
		if !scaled.Load() || status.SleepRequestedTime != nil || !removing.CompareAndSwap(false, true) {
			return
		}
		// The ElastiService that does not scale the target is synced meanwhile.
		for _, name := range []string{"cart", "cart-grpc"} {
			c.edit(name, func(elastiService *v1alpha1.ElastiService) { elastiService.Generation = later })
		}
		c.eventually(func() string {
			for _, name := range []string{"cart", "cart-grpc"} {
				if status := c.elastiService(name).Status; status.ObservedGeneration == later && status.Replicas == 0 {
					return ""
				}
			}
			return "the other one to see the target at zero"
		})
	}
	c.startAwake()
	c.requestSleep("cart-grpc")
	c.requestSleep("cart")
	c.eventually(func() string {
		if c.elastiService("cart").Status.SleepRequestedTime != nil || c.elastiService("cart-grpc").Status.SleepRequestedTime != nil {
			return "both requests to be fulfilled"
		}
		return ""
	})
	c.sync("cart")
	c.sync("cart-grpc")
	if replicas := c.scaling.replicas(t, "cart"); replicas != 0 || wakes.Load() != 0 {
		t.Errorf("nothing woke the target: it has %d replicas, and was woken %d times", replicas, wakes.Load())
	}
}

// The scheduler may see that one request is removed and the other one is not yet, and
// take that back as it does after a wake.
func TestSharedTargetIsNotWokenWhenItsOtherRequestIsTakenBackHalfway(t *testing.T) {
	c, failing := newSharedTarget(t)
	var scaled, removing atomic.Bool
	var wakes atomic.Int32
	failing.toZero = func(next func() error) error {
		defer scaled.Store(true)
		return next()
	}
	failing.wake = func(next func() error) error {
		wakes.Add(1)
		return next()
	}
	c.beforeStatus = func(status *v1alpha1.ElastiServiceStatus) {
		if !scaled.Load() || status.SleepRequestedTime != nil || !removing.CompareAndSwap(false, true) {
			return
		}
		for _, name := range []string{"cart", "cart-grpc"} {
			c.edit(name, func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
		}
	}
	c.startAwake()
	c.requestSleep("cart-grpc")
	c.requestSleep("cart")
	c.eventuallyEvent(v1alpha1.ReasonSlept)
	c.sync("cart")
	c.sync("cart-grpc")
	if replicas := c.scaling.replicas(t, "cart"); replicas != 0 || wakes.Load() != 0 {
		t.Errorf("no client woke the target: it has %d replicas, and was woken %d times", replicas, wakes.Load())
	}
}

// The target may be awake again before any watch shows that it was at zero. Its
// endpoints count again when the grace of its previous pods has ended.
func TestSharedTargetServesAgainAfterItsPodsWereReplaced(t *testing.T) {
	c, failing := newSharedTarget(t)
	failing.toZero = func(func() error) error { return nil }
	c.startAwake()
	for _, name := range []string{"cart", "cart-grpc"} {
		c.setEndpoints(shop, name)
		c.eventuallyMode(name, v1alpha1.ModeProxy)
	}
	c.requestSleep("cart-grpc")
	c.requestSleep("cart")
	c.eventuallyEvent(v1alpha1.ReasonSlept)
	for _, name := range []string{"cart", "cart-grpc"} {
		c.sync(name)
		c.setEndpoints(shop, name, "10.1.0.3")
	}
	for _, name := range []string{"cart", "cart-grpc"} {
		c.eventuallyMode(name, v1alpha1.ModeServe)
	}
}

func TestSharedTargetStaysUpWhenOneIsWoken(t *testing.T) {
	for _, moment := range []string{"before", "after"} {
		t.Run(moment, func(t *testing.T) {
			c, failing := newSharedTarget(t)
			// The wake subresource does this to an ElastiService whose target is up.
			wake := func() {
				c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
			}
			if moment == "after" {
				failing.toZero = func(next func() error) error { defer wake(); return next() }
			} else {
				failing.pause = func(next func() error) error { wake(); return next() }
			}
			c.startAwake()
			c.requestSleep("cart-grpc")
			c.requestSleep("cart")
			if moment == "after" {
				c.eventuallyEvent(v1alpha1.ReasonSleepCalledOff)
			}
			c.eventually(func() string {
				if moment == "before" {
					// What the scheduler does when one is not requested to sleep any more.
					if c.elastiService("cart-grpc").Status.SleepRequestedTime == nil {
						c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
					}
				}
				switch {
				case c.elastiService("cart").Status.SleepRequestedTime != nil || c.elastiService("cart-grpc").Status.SleepRequestedTime != nil:
					return "both requests to be removed"
				case c.scaling.replicas(t, "cart") != 2:
					return "the target to be awake"
				case failing.isPaused():
					return "the autoscaler to go on"
				}
				return ""
			})
		})
	}
}
