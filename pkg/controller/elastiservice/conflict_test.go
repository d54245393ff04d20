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
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// newConflict is a cluster with the ElastiService "cart", whose target sleeps, and an
// older one "basket" with a Service and a target of its own, which is awake. takeOver
// has the older one name the Service of the other one.
func newConflict(t *testing.T) (c *cluster, failing *failingScaling, takeOver func()) {
	t.Helper()
	c = newCluster(t)
	failing = &failingScaling{fakeScaling: c.scaling}
	c.options.Scaling = failing
	conflicting := cartElastiService()
	conflicting.CreationTimestamp = metav1.Unix(2000, 0)
	c.create(conflicting)
	older, service := cartElastiService(), cartService()
	service.Name, service.UID, service.Spec.ClusterIP = "basket", "basket-service", "10.96.0.11"
	older.Name, older.UID, older.Spec.Service, older.Spec.ScaleTargetRef.Name = "basket", "basket-uid", "basket", "basket"
	older.CreationTimestamp = metav1.Unix(1000, 0)
	c.create(service)
	c.setEndpoints(shop, "basket", "10.1.0.1")
	c.setDeployment("basket", 2, 2)
	c.create(older)
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyMode("basket", v1alpha1.ModeServe)
	return c, failing, func() {
		c.edit("basket", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.Service = "cart" })
	}
}

// ownersOf returns for which ElastiServices the resolver slice and the private Service of
// the Service "cart" were made.
func (c *cluster) ownersOf() string {
	c.t.Helper()
	private, err := c.host.CoreV1().Services(shop).Get(c.t.Context(), resources.PrivateServiceName("cart"), metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	owners := private.Annotations[v1alpha1.AnnotationOwner]
	for _, slice := range c.resolverSlices("cart") {
		owners += " " + slice.Annotations[v1alpha1.AnnotationOwner]
	}
	return owners
}

func (c *cluster) eventuallyOwners(want string) {
	c.t.Helper()
	c.eventually(func() string {
		if owners := c.ownersOf(); owners != want {
			return fmt.Sprintf("the owners %s, they are %s", want, owners)
		}
		return ""
	})
}

// The target of the one that loses its Service is woken before its resolvers lead to
// another target.
func TestTargetOfOneThatLosesItsServiceIsWokenFirst(t *testing.T) {
	t.Parallel()
	c, failing, takeOver := newConflict(t)
	var wakes atomic.Int32
	failing.mu.Lock()
	failing.wake = func(next func() error) error {
		if c.scaling.replicas(t, "cart") == 0 {
			wakes.Add(1)
			if owners := c.ownersOf(); owners != "cart cart" {
				t.Errorf("the target sleeps, and the owners of the slices of its Service are %s", owners)
			}
		}
		return next()
	}
	failing.mu.Unlock()
	takeOver()
	c.eventuallyReplicas(2)
	c.eventuallyCondition("cart", v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonServiceTaken)
	c.eventuallyOwners("basket basket")
	if wakes.Load() == 0 {
		t.Error("the target was not woken")
	}
	c.setEndpoints(shop, "cart", "10.1.0.2")
	c.eventuallyMode("basket", v1alpha1.ModeServe)
}

// While it cannot be woken, its clients still reach the resolvers that would wake it.
func TestServiceIsNotTakenOverFromATargetThatCannotBeWoken(t *testing.T) {
	t.Parallel()
	c, _, takeOver := newConflict(t)
	before := c.elastiService("cart").Status.ProxyPorts
	c.scaling.fail(errors.New("a webhook rejects it"))
	takeOver()
	c.eventuallyCondition("basket", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTargetNotRestored)
	c.eventuallyCondition("cart", v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonServiceTaken)
	c.sync("basket")
	c.sync("cart")
	if owners := c.ownersOf(); owners != "cart cart" {
		t.Errorf("the target sleeps, and the owners of the slices of its Service are %s", owners)
	}
	if after := c.elastiService("cart").Status.ProxyPorts; len(after) != len(before) || after[0] != before[0] {
		t.Errorf("the proxy ports of the resolvers in the path are %v, they were %v", after, before)
	}
	c.scaling.fail(nil)
	c.eventuallyReplicas(2)
	c.eventuallyOwners("basket basket")
	c.eventuallyCondition("basket", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}
