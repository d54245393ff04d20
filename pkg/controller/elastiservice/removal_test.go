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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
)

// The end of the time for an endpoint counts from the wake: there may have been no leader
// before, or a webhook that kept the target from being woken.
func TestResolversOfALateDeletionWaitForAnEndpoint(t *testing.T) {
	for name, late := range map[string]func(*cluster, func()){
		"no leader": func(c *cluster, start func()) {
			c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
				elastiService.DeletionTimestamp = &metav1.Time{Time: c.options.Clock.Now().Add(-2 * endpointTimeout)}
			})
			start()
		},
		"a webhook": func(c *cluster, start func()) {
			c.scaling.fail(errors.New("a webhook rejects it"))
			c.markDeleted("cart", 2*endpointTimeout)
			start()
			c.eventually(func() string {
				if c.scaling.attempts() == 0 {
					return "an attempt to wake the target"
				}
				return ""
			})
			c.scaling.fail(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}})
			c.create(cartElastiService())
			stop := c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			stop()
			removed := make(chan time.Time, 1)
			informerstest.React(&c.host.Fake, "delete", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
				select {
				case removed <- c.options.Clock.Now():
				default:
				}
				return false, nil, nil
			})
			before := c.options.Clock.Now()
			late(c, func() { c.start() })
			if waited := (<-removed).Sub(before); waited < endpointTimeout {
				t.Errorf("the resolvers leave %s after the controller began to wake the target, without a ready endpoint", waited)
			}
			if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
				t.Errorf("the resolvers leave, and the target has %d replicas", replicas)
			}
		})
	}
}

// A Service may select the pods of another workload too, such as a canary.
func TestTargetThatIsKnownToSleepIsNotLeftForOtherEndpoints(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}})
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.scaling.fail(errors.New("a webhook rejects it"))
	c.setEndpoints(shop, "cart", "10.1.0.99")
	c.markDeleted("cart", 2*restoreTimeout)
	c.eventuallyEvent(v1alpha1.ReasonTargetNotRestored)
	c.eventually(func() string {
		if c.scaling.attempts() < 5 {
			return "more attempts to wake the target"
		}
		return ""
	})
	if !hasFinalizer(c.elastiService("cart")) {
		t.Fatal("the ElastiService is released, and its target sleeps")
	}
	c.scaling.fail(nil)
	c.eventuallyReplicas(2)
	c.eventuallyReleased("cart")
}

// A GitOps controller deletes any number of ElastiServices at once.
func TestTargetsOfDeletedElastiServicesAreWokenOneAfterTheOther(t *testing.T) {
	t.Parallel()
	const targets = 6
	c := newCluster(t)
	c.options.WakeRate = 1
	names := c.createAsleep(targets)
	c.start()
	for _, name := range names {
		c.eventuallyMode(name, v1alpha1.ModeProxy)
	}
	began := c.options.Clock.Now()
	for _, name := range names {
		c.markDeleted(name, 0)
	}
	c.expectWokenOneAfterTheOther(names, began)
}

// A namespace that is taken off the list may have any number of sleeping targets.
func TestTargetsOfANamespaceThatIsLeftAreWokenOneAfterTheOther(t *testing.T) {
	t.Parallel()
	const targets = 6
	c := newCluster(t)
	c.options.WakeRate = 1
	names := c.createAsleep(targets)
	stop := c.start()
	for _, name := range names {
		c.eventuallyMode(name, v1alpha1.ModeProxy)
	}
	stop()
	c.options.Namespaces = []string{"other"}
	began := c.options.Clock.Now()
	c.start()
	c.expectWokenOneAfterTheOther(names, began)
}

// expectWokenOneAfterTheOther waits until targets are awake, which is to take a second
// for each but the first since a time.
func (c *cluster) expectWokenOneAfterTheOther(names []string, began time.Time) {
	c.t.Helper()
	for _, name := range names {
		c.eventually(func() string {
			if c.scaling.replicas(c.t, name) == 0 {
				return name + " to be woken"
			}
			return ""
		})
	}
	if took := c.options.Clock.Since(began); took < time.Duration(len(names)-2)*time.Second {
		c.t.Errorf("%d targets were woken within %s, at a rate of one a second", len(names), took)
	}
}

// createAsleep makes ElastiServices with Services and targets at zero, and returns their
// names.
func (c *cluster) createAsleep(number int) (names []string) {
	c.t.Helper()
	for i := range number {
		name := fmt.Sprintf("cart-%d", i)
		service, elastiService := cartService(), cartElastiService()
		service.Name = name
		elastiService.Name, elastiService.UID = name, types.UID(name)
		elastiService.Spec.Service, elastiService.Spec.ScaleTargetRef.Name = name, name
		c.create(service)
		c.setDeployment(name, 0, 0)
		c.create(elastiService)
		names = append(names, name)
	}
	return names
}

// What decides that a target sleeps need not know of ports.
func TestTargetIsNotPutToSleepWhileAPortHasNoProxyPort(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.ProxyPortRange.Size = 1
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.create(cartElastiService())
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProxyPortsExhausted)
	c.requestSleep("cart")
	for range 3 {
		c.sync("cart")
		if replicas := c.scaling.replicas(t, "cart"); replicas != 2 || len(c.resolverSlices("cart")) > 0 {
			t.Fatalf("%d replicas, and %d slices for some of the ports", replicas, len(c.resolverSlices("cart")))
		}
	}
	// The port is there again.
	service := cartService()
	service.Spec.Ports = service.Spec.Ports[:1]
	c.create(service)
	c.eventuallyReplicas(0)
}

// Kubernetes and users name a kind by its resource too.
func TestOtherNameOfTheKindIsNoOtherTarget(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.scaling.serveKind("deployments", "deployments")
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.ScaleTargetRef.Kind = "deployments"
		elastiService.Generation++
	})
	c.eventually(func() string {
		if status := c.elastiService("cart").Status; status.ObservedGeneration != 2 || status.ManagedTarget == nil || status.ManagedTarget.ScaleTargetRef.Kind != "deployments" {
			return "the status"
		}
		return ""
	})
	if replicas := c.scaling.replicas(t, "cart"); replicas != 0 {
		t.Errorf("the target was woken to %d replicas", replicas)
	}
}
