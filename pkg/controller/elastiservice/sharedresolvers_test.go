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
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
)

// The deletion of the last ElastiService restores the target. Each deletion before wakes it,
// for what its resolvers hold, and leaves the autoscaler to the others.
func TestDeletionOfOneOfSeveralWakesTheTarget(t *testing.T) {
	c, _ := newSharedTarget(t)
	c.setDeployment("cart", 0, 0)
	c.setEndpoints(shop, "cart")
	c.setEndpoints(shop, "cart-grpc")
	c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
	})
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyMode("cart-grpc", v1alpha1.ModeProxy)
	now := metav1.Now()
	c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) { elastiService.DeletionTimestamp = &now })
	c.eventuallyReplicas(2)
	if len(c.resolverSlices("cart-grpc")) == 0 {
		t.Error("the resolvers left before the target was ready")
	}
	c.setEndpoints(shop, "cart-grpc", "10.1.0.1")
	c.eventually(func() string {
		if len(c.resolverSlices("cart-grpc")) > 0 {
			return "the resolvers to leave"
		}
		return ""
	})
}

// An ElastiService whose Service belongs to another one does not block the scale-down.
func TestSharedTargetIgnoresOneWithoutAService(t *testing.T) {
	c, _ := newSharedTarget(t)
	c.edit("cart-grpc", takeServiceOfCart)
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.eventuallyCondition("cart-grpc", v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonServiceTaken)
	c.requestSleep("cart")
	c.eventuallyReplicas(0)
}

// An ElastiService whose Service cannot have resolvers blocks the scale-down.
func TestSharedTargetIsNotScaledWithoutResolversForEach(t *testing.T) {
	c, _ := newSharedTarget(t)
	c.create(externalService("cart-grpc"))
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart-grpc")
	c.requestSleep("cart")
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	for range 3 {
		c.sync("cart")
	}
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("scaled to %d", replicas)
	}
}

// An ElastiService that waits for another one scales the target as soon as that agrees or
// stays out.
func TestSharedTargetIsScaledWhenTheOneWithoutResolversChanges(t *testing.T) {
	for name, change := range map[string]func(*cluster){
		"it can have resolvers": func(c *cluster) {
			service := cartService()
			service.Name, service.UID, service.Spec.ClusterIP = "cart-grpc", "cart-grpc-service", "10.96.0.11"
			c.create(service)
		},
		"it does not exist any more": func(c *cluster) { c.remove("cart-grpc") },
		"it names another target": func(c *cluster) {
			c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Name = "basket" })
		},
		"it names a Service of another one": func(c *cluster) { c.edit("cart-grpc", takeServiceOfCart) },
		"another one takes its Service": func(c *cluster) {
			older := cartGRPC()
			older.Name, older.UID, older.Spec.ScaleTargetRef.Name = "older", "older-uid", "basket"
			older.CreationTimestamp = metav1.Unix(1000, 0)
			c.create(older)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, failing := newSharedTarget(t)
			c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) { elastiService.CreationTimestamp = metav1.Unix(2000, 0) })
			c.setDeployment("basket", 1, 1)
			c.create(externalService("cart-grpc"))
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart-grpc")
			c.requestSleep("cart")
			c.eventually(failing.pausing)
			c.sync("cart")
			change(c)
			c.eventuallyReplicas(0)
		})
	}
}

// pausing returns nothing when the autoscaler is paused: what agrees waits for the
// others then.
func (s *failingScaling) pausing() string {
	if !s.isPaused() {
		return "the autoscaler to be paused"
	}
	return ""
}

// Nothing is polled for as long as one of them cannot have resolvers.
func TestSharedTargetIsNotPolledWhileOneHasNoResolvers(t *testing.T) {
	t.Parallel()
	c, failing := newSharedTarget(t)
	now := clocktesting.NewFakeClock(time.Now())
	c.options.Clock = now
	var syncs atomic.Int32
	c.options.Requests = func(key types.NamespacedName, _ target.PodRequests) {
		if key.Name == "cart" {
			syncs.Add(1)
		}
	}
	// untilThen has time pass until check returns nothing.
	untilThen := func(check func() string) {
		c.eventually(func() string {
			now.Step(50 * time.Millisecond)
			return check()
		})
	}
	c.createOther()
	c.create(externalService("cart-grpc"))
	c.start()
	for _, name := range []string{"cart", "cart-grpc", "other"} {
		untilThen(func() string {
			if c.elastiService(name).Status.ObservedGeneration == 0 {
				return "the first status of " + name
			}
			return ""
		})
	}
	c.requestSleep("cart-grpc")
	c.requestSleep("cart")
	untilThen(failing.pausing)
	c.sync("cart")
	before := syncs.Load()
	const steps = 100
	for range steps {
		now.Step(time.Second)
		// What was due by then is before it in the queue.
		c.sync("other")
	}
	if polled := syncs.Load() - before; polled > steps/10 {
		t.Errorf("it was synced %d times in %d s", polled, steps)
	}
	c.remove("cart-grpc")
	untilThen(func() string {
		if replicas := c.scaling.replicas(t, "cart"); replicas != 0 {
			return fmt.Sprintf("0 replicas, there are %d", replicas)
		}
		return ""
	})
}

// A previous target that another ElastiService has stays at zero only if that one has
// resolvers in the path of a Service.
func TestPreviousTargetStaysAsleepOnlyWhileResolversOfAnotherElastiServiceStandInForIt(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*cluster)
		want   int32
	}{
		"it does":                 {func(*cluster) {}, 0},
		"its Service is deleted":  {func(c *cluster) { c.deleteService("cart-grpc") }, 2},
		"another one has it":      {func(c *cluster) { c.edit("cart-grpc", takeServiceOfCart) }, 2},
		"it is being deleted":     {func(c *cluster) { c.markDeleted("cart-grpc", 0) }, 2},
		"its Service is external": {func(c *cluster) { c.create(externalService("cart-grpc")) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			c, failing := newSharedTarget(t)
			var resumed atomic.Int32
			failing.resume = func(next func() error) error {
				resumed.Add(1)
				return next()
			}
			c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) {
				elastiService.Spec.Autoscaler = c.elastiService("cart").Spec.Autoscaler
			})
			c.setDeployment("cart", 0, 0)
			c.setEndpoints(shop, "cart")
			c.setEndpoints(shop, "cart-grpc")
			c.setDeployment("basket", 2, 2)
			test.change(c)
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			c.sync("cart")
			resumed.Store(0)
			c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
				elastiService.Spec.ScaleTargetRef.Name, elastiService.Spec.Autoscaler = "basket", nil
			})
			c.sync("cart")
			if replicas := c.scaling.replicas(t, "cart"); replicas != test.want {
				t.Errorf("the previous target has %d replicas, want %d", replicas, test.want)
			}
			if test.want == 0 && resumed.Load() != 0 {
				t.Error("the autoscaler that another ElastiService has was resumed")
			}
		})
	}
}

func takeServiceOfCart(elastiService *v1alpha1.ElastiService) {
	elastiService.Spec.Service = "cart"
	elastiService.CreationTimestamp = metav1.Now()
}

// externalService is a Service that resolvers cannot stand in for.
func externalService(name string) *corev1.Service {
	service := cartService()
	service.Name, service.UID = name, types.UID(name+"-service")
	service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
	return service
}
