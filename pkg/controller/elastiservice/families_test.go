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
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// setResolversOfIPv6 makes ready resolvers with addresses of IPv6.
func (c *cluster) setResolversOfIPv6(addresses ...string) {
	c.t.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "elasti-system", Name: "elasti-resolver-ipv6", Labels: map[string]string{
			discoveryv1.LabelServiceName: "elasti-resolver", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}},
		AddressType: discoveryv1.AddressTypeIPv6,
	}
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}})
	}
	c.create(slice)
}

// makeDualStack gives a Service both families.
func (c *cluster) makeDualStack(name string) {
	c.t.Helper()
	service, err := c.host.CoreV1().Services(shop).Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	c.create(service)
}

// Clients of a family that no resolver has an address of could not connect.
func TestTargetSleepsOnlyWithResolversOfAllFamiliesOfItsService(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	// Nothing changes any more when it ends.
	c.options.ResolverGrace = time.Second
	c.makeDualStack("cart")
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.create(cartElastiService())
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoResolverOfIPFamily)
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNoResolverOfIPFamily)
	c.requestSleep("cart")
	for range 3 {
		c.sync("cart")
	}
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("the target was scaled to %d without a resolver of IPv6", replicas)
	}
	c.setResolversOfIPv6("fd00::1")
	c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionTrue, v1alpha1.ReasonResolverReady)
	c.eventuallyReplicas(0)
	for _, slice := range c.resolverSlices("cart") {
		if len(slice.Endpoints) == 0 {
			t.Errorf("the target sleeps, and the slice of %s has no resolver", slice.AddressType)
		}
	}
}

// The resolvers of a family may be on their way: that is no outage yet, and no time to put
// the target to sleep.
func TestTargetIsNotPutToSleepWhileTheResolversOfAFamilyAreReplaced(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.ResolverGrace, c.options.ConvergenceTime = time.Hour, time.Millisecond
	var changes atomic.Int32
	c.options.ResolversChanged = func([]string) { changes.Add(1) }
	c.makeDualStack("cart")
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.setResolversOfIPv6("fd00::1")
	c.create(cartElastiService())
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionTrue, v1alpha1.ReasonResolverReady)
	before := changes.Load()
	c.setResolversOfIPv6()
	c.eventually(func() string {
		if changes.Load() == before {
			return "the controller to observe that the resolvers of IPv6 are away"
		}
		return ""
	})
	c.requestSleep("cart")
	for range 5 {
		c.sync("cart")
	}
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("the target was scaled to %d without a resolver of IPv6", replicas)
	}
	// Nothing is missing that another client would have to mend.
	for len(c.events.Events) > 0 {
		if event := <-c.events.Events; strings.Contains(event, v1alpha1.ReasonResolverSliceMissing) {
			t.Errorf("got the Event %s", event)
		}
	}
	c.setResolversOfIPv6("fd00::2")
	c.eventuallyReplicas(0)
}

// The resolvers are replaced by ones of one family: that is an outage for the Services
// that have the other one.
func TestSleepingTargetsAreWokenWhenAFamilyHasNoResolver(t *testing.T) {
	t.Parallel()
	const count = 2
	c := newCluster(t)
	c.options.ResolverGrace = 50 * time.Millisecond
	// The second one would have its turn after more time than any test takes.
	c.options.WakeRate = 0.0001
	c.setResolversOfIPv6("fd00::1")
	for i := range count {
		c.createCart(fmt.Sprintf("cart-%d", i))
		c.makeDualStack(fmt.Sprintf("cart-%d", i))
	}
	c.create(cartElastiService())
	c.start()
	for i := range count {
		c.eventuallyMode(fmt.Sprintf("cart-%d", i), v1alpha1.ModeProxy)
	}
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.setResolversOfIPv6()
	for i := range count {
		c.eventuallyCondition(fmt.Sprintf("cart-%d", i), v1alpha1.ConditionResolverAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoResolverOfIPFamily)
	}
	c.eventuallyEventWith(corev1.EventTypeWarning, v1alpha1.ReasonNoResolverOfIPFamily, "no resolver with an address of IPv6 is ready")
	c.settled("late")
	if woken := c.awake(count); woken != 1 {
		t.Errorf("%d targets are awake, want one", woken)
	}
	if replicas := c.scaling.replicas(t, "cart"); replicas != 0 {
		t.Errorf("the target of a Service of IPv4 alone was scaled to %d", replicas)
	}
	c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionTrue, v1alpha1.ReasonResolverReady)
}
