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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

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
		"the ElastiService is deleted": {func(c *cluster) { c.markDeleted("cart", 0) }, "one of its Services is no longer managed"},
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
