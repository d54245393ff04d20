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
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports/proxyportstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// asleep is a cluster whose target sleeps behind resolvers, and whose controller has
// ended.
func asleep(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	c.setDeployment("basket", 1, 1)
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	stop()
	return c
}

// createOther makes an ElastiService that has nothing to do with the others: a store
// that knows it has not lost everything.
func (c *cluster) createOther() {
	c.t.Helper()
	other := cartElastiService()
	other.Name, other.UID, other.Spec.Service = "other", "other-uid", "other"
	other.Spec.ScaleTargetRef.Name = "other"
	c.create(other)
}

// remove deletes an ElastiService, whatever its finalizers are.
func (c *cluster) remove(name string) {
	c.t.Helper()
	if err := c.elasti.ElastiV1alpha1().ElastiServices(shop).Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// loseStore has the storage lose an ElastiService and all that belongs to it.
func (c *cluster) loseStore(name string) {
	c.t.Helper()
	c.remove(name)
	c.claims = proxyportstest.New()
	c.options.Claims = c.claims
}

func (c *cluster) deleteResolverSlices() {
	c.t.Helper()
	for _, slice := range c.resolverSlices("cart") {
		if err := c.host.DiscoveryV1().EndpointSlices(shop).Delete(c.t.Context(), slice.Name, metav1.DeleteOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) editPrivateService(edit func(*corev1.Service)) {
	c.t.Helper()
	private, err := c.host.CoreV1().Services(shop).Get(c.t.Context(), resources.PrivateServiceName("cart"), metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	edit(private)
	c.create(private)
}

// eventuallyNothingIsLeft waits until only the public Service is there.
func (c *cluster) eventuallyNothingIsLeft() {
	c.t.Helper()
	c.eventually(func() string {
		if found := c.resolverSlices("cart"); len(found) > 0 || len(c.serviceNames()) > 1 {
			return fmt.Sprintf("the end of %v, %v", found, c.serviceNames())
		}
		return ""
	})
}

// While no controller runs, the target changes, and what records the previous one is
// lost but for one record.
func TestPreviousTargetIsWokenByWhatStillRecordsIt(t *testing.T) {
	t.Parallel()
	losePrivate := func(c *cluster) { c.deleteService(resources.PrivateServiceName("cart")) }
	loseSlices := func(c *cluster) { c.deleteResolverSlices() }
	loseStatus := func(c *cluster) {
		c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status = v1alpha1.ElastiServiceStatus{} })
	}
	forge := func(c *cluster) {
		c.editPrivateService(func(private *corev1.Service) { private.Annotations[v1alpha1.AnnotationOwner] = "none" })
	}
	for name, losses := range map[string][]func(*cluster){
		"the private Service is deleted":      {losePrivate},
		"the private Service is edited":       {forge},
		"the resolver slice is deleted":       {loseSlices},
		"the status alone is left":            {losePrivate, loseSlices},
		"the private Service alone is left":   {loseSlices, loseStatus},
		"the resolver slice alone is left":    {losePrivate, loseStatus},
		"the resolver slice and edits remain": {forge, loseStatus},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := asleep(t)
			for _, lose := range losses {
				lose(c)
			}
			c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Name = "basket" })
			c.start()
			c.eventuallyReplicas(2)
			// Nothing records it any more: it is the user's.
			c.eventually(func() string {
				recorded := c.elastiService("cart").Status.ManagedTarget
				if recorded == nil || recorded.ScaleTargetRef.Name != "basket" {
					return fmt.Sprintf("the record of the new target, it is %+v", recorded)
				}
				return ""
			})
		})
	}
}

// A Service is deleted while its target sleeps. That is no reason to wake it. Its
// private Service stays as the record of it that is in the cluster.
func TestTargetWhoseServiceIsDeletedIsNotForgotten(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(c *cluster){
		"another target": func(c *cluster) {
			c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Name = "basket" })
			c.start()
		},
		"another target, later": func(c *cluster) {
			c.start()
			c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Name = "basket" })
		},
		"deletion": func(c *cluster) {
			c.markDeleted("cart", 0)
			c.start()
			c.eventuallyReleased("cart")
		},
		"its finalizer is removed by hand": func(c *cluster) {
			c.start()
			c.settled("late")
			c.remove("cart")
		},
		"an uninstallation that cannot read statuses": func(c *cluster) {
			_, ctx := ktesting.NewTestContext(c.t)
			if err := c.teardown().Run(ctx); err != nil {
				c.t.Error(err)
			}
		},
		"its namespace is not worked on any more": func(c *cluster) {
			c.options.Namespaces = []string{"elsewhere"}
			c.start()
			c.eventuallyReleased("cart")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.setDeployment("basket", 1, 1)
			c.create(cartElastiService())
			stop := c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			c.deleteService("cart")
			c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonServiceNotFound)
			c.eventually(func() string {
				if left := c.resolverSlices("cart"); len(left) > 0 {
					return fmt.Sprintf("the end of %v", left)
				}
				return ""
			})
			c.sync("cart")
			if names := c.serviceNames(); !slices.Equal(names, []string{resources.PrivateServiceName("cart")}) {
				t.Errorf("the Services are %v, want the record of the target", names)
			}
			stop()
			if replicas := c.scaling.replicas(t, "cart"); replicas != 0 {
				t.Fatalf("the target was scaled to %d", replicas)
			}
			leave(c)
			c.eventuallyReplicas(2)
			c.eventuallyNoServices()
		})
	}
}

// eventuallyNoServices waits until no Service is left.
func (c *cluster) eventuallyNoServices() {
	c.t.Helper()
	c.eventually(func() string {
		if names := c.serviceNames(); len(names) > 0 {
			return fmt.Sprintf("the end of %v", names)
		}
		return ""
	})
}

// withoutService is a cluster whose target sleeps, and whose Service was deleted.
func withoutService(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.deleteService("cart")
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonServiceNotFound)
	c.eventually(func() string {
		if left := c.resolverSlices("cart"); len(left) > 0 {
			return fmt.Sprintf("the end of %v", left)
		}
		return ""
	})
	return c
}

// A target that is awake needs no record.
func TestRecordOfATargetWithoutServiceIsDroppedWhenItIsWoken(t *testing.T) {
	t.Parallel()
	c := withoutService(t)
	c.setDeployment("cart", 1, 1)
	c.eventuallyNoServices()
}

// The private Service that stayed is the one of the Service that comes back.
func TestRecordOfATargetServesTheServiceThatComesBack(t *testing.T) {
	t.Parallel()
	c := withoutService(t)
	name := resources.PrivateServiceName("cart")
	before, err := c.host.CoreV1().Services(shop).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.create(cartService())
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	after, err := c.host.CoreV1().Services(shop).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || after.UID != before.UID || c.elastiService("cart").Status.PrivateService != name {
		t.Errorf("the private Service is %v, it was %v (%v)", after, before, err)
	}
	if replicas := c.scaling.replicas(t, "cart"); replicas != 0 {
		t.Errorf("the target was scaled to %d", replicas)
	}
}

// The last ElastiService that the store knew was deleted after its finalizer was removed by
// hand.
func TestTargetOfTheLastElastiServiceIsWokenWhenItsDeletionIsReported(t *testing.T) {
	t.Parallel()
	c := asleep(t)
	c.start()
	c.settled("late")
	// The claims of its proxy ports record the same.
	for proxyPort, claim := range c.claims.Stored() {
		if err := c.claims.Release(t.Context(), proxyPort, claim.Owner.UID); err != nil {
			t.Fatal(err)
		}
	}
	c.remove("late")
	c.remove("cart")
	c.eventuallyReplicas(2)
	if len(c.resolverSlices("cart")) == 0 {
		t.Error("the resolvers left before an endpoint was ready")
	}
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventuallyNothingIsLeft()
}

// Likewise while no controller runs: the storage still has the claims of its ports.
func TestTargetOfTheLastElastiServiceIsWokenAfterARestart(t *testing.T) {
	t.Parallel()
	c := asleep(t)
	c.remove("cart")
	c.start()
	c.eventuallyReplicas(2)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventuallyNothingIsLeft()
}

// A target that a user scales to zero after the ElastiService was cleaned up is the
// user's, although the deletion is reported after that.
func TestDeletionThatWasCleanedUpWakesNothingAgain(t *testing.T) {
	t.Parallel()
	c := asleep(t)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.markDeleted("cart", 0)
	c.start()
	c.eventuallyReleased("cart")
	c.eventuallyNothingIsLeft()
	c.setDeployment("cart", 0, 0)
	c.remove("cart")
	c.settled("late")
	if replicas := c.scaling.replicas(t, "cart"); replicas != 0 {
		t.Errorf("the target was scaled to %d", replicas)
	}
}

// The store does not know the ElastiService any more, and a tenant has edited or
// deleted its private Service.
func TestTargetOfALostElastiServiceIsWokenWithoutItsPrivateService(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(c *cluster){
		"deleted": func(c *cluster) { c.deleteService(resources.PrivateServiceName("cart")) },
		"another owner": func(c *cluster) {
			c.editPrivateService(func(private *corev1.Service) { private.Annotations[v1alpha1.AnnotationOwner] = "none" })
		},
		"another target": func(c *cluster) {
			c.editPrivateService(func(private *corev1.Service) {
				private.Annotations[v1alpha1.AnnotationTarget] = forgedService(c.t, "", "").Annotations[v1alpha1.AnnotationTarget]
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := asleep(t)
			c.setDeployment("database", 0, 0)
			c.createOther()
			lose(c)
			c.remove("cart")
			c.start()
			c.eventuallyReplicas(2)
			if len(c.resolverSlices("cart")) == 0 {
				t.Error("the resolvers left before an endpoint was ready")
			}
			c.setEndpoints(shop, "cart", "10.1.0.1")
			c.eventuallyNothingIsLeft()
			if replicas := c.scaling.replicas(t, "database"); replicas != 0 {
				t.Errorf("the database was scaled to %d", replicas)
			}
		})
	}
}

// A store that is replaced by an older one may have lost thousands of ElastiServices.
// Their pods are not started all at once, and resolvers stand in for them until then.
func TestTargetsOfLostElastiServicesAreWokenOneAfterTheOther(t *testing.T) {
	t.Parallel()
	const count = 3
	c := newCluster(t)
	// The second one would have its turn after more time than any test takes.
	c.options.WakeRate = 0.0001
	for i := range count {
		c.createCart(fmt.Sprintf("cart-%d", i))
	}
	stop := c.start()
	for i := range count {
		c.eventuallyMode(fmt.Sprintf("cart-%d", i), v1alpha1.ModeProxy)
	}
	stop()
	c.createOther()
	for i := range count {
		c.remove(fmt.Sprintf("cart-%d", i))
	}
	c.start()
	c.eventually(func() string {
		if c.awake(count) == 0 {
			return "one target to be awake"
		}
		return ""
	})
	c.settled("late")
	if woken := c.awake(count); woken != 1 {
		t.Errorf("%d targets were woken, want one", woken)
	}
	for i := range count {
		if name := fmt.Sprintf("cart-%d", i); len(c.resolverSlices(name)) == 0 {
			t.Errorf("no resolvers stand in for %s", name)
		}
	}
}

// The store lost the ElastiService, and another one takes its Service over: it writes
// over what records the target of the previous one.
func TestTargetOfALostElastiServiceIsWokenWhenAnotherTakesItsService(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*cluster){
		"nothing else is lost":              func(*cluster) {},
		"the private Service alone is left": func(c *cluster) { c.deleteResolverSlices() },
		"the resolver slice alone is left":  func(c *cluster) { c.deleteService(resources.PrivateServiceName("cart")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := asleep(t)
			c.remove("cart")
			lose(c)
			taking := cartElastiService()
			taking.Name, taking.UID, taking.Spec.ScaleTargetRef.Name = "basket", "basket-uid", "basket"
			c.create(taking)
			c.start()
			c.eventuallyReplicas(2)
			c.eventually(func() string {
				for _, slice := range c.resolverSlices("cart") {
					if slice.Annotations[v1alpha1.AnnotationOwner] != "basket" {
						return "the resolver slices of the one that takes over"
					}
				}
				return ""
			})
		})
	}
}

// What records a previous target that cannot be woken is not written over, so that it is
// woken by the next process too.
func TestPreviousTargetIsRecordedUntilItIsAwake(t *testing.T) {
	t.Parallel()
	c := asleep(t)
	c.scaling.fail(errors.New("a webhook rejects it"))
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Name = "basket" })
	stop := c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTargetNotRestored)
	stop()
	c.scaling.fail(nil)
	c.start()
	c.eventuallyReplicas(2)
}

// Clients that may write resolver slices, and may not scale, gets nothing scaled.
func TestAForgedRecordOfAResolverSliceScalesNothing(t *testing.T) {
	t.Parallel()
	c := asleep(t)
	c.setDeployment("database", 0, 0)
	slice := c.resolverSlices("cart")[0]
	slice.Annotations[v1alpha1.AnnotationTarget] = forgedService(t, "", "").Annotations[v1alpha1.AnnotationTarget]
	c.create(&slice)
	stop := c.start()
	c.settled("late")
	c.eventually(func() string {
		if found := c.resolverSlices("cart"); !c.options.Signer.Made(&found[0].ObjectMeta) {
			return "the signature of the slice"
		}
		return ""
	})
	stop()
	slice = c.resolverSlices("cart")[0]
	slice.Annotations[v1alpha1.AnnotationTarget] = forgedService(t, "", "").Annotations[v1alpha1.AnnotationTarget]
	c.create(&slice)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	_, ctx := ktesting.NewTestContext(t)
	if err := c.teardown().Run(ctx); err != nil {
		t.Error(err)
	}
	if replicas := c.scaling.replicas(t, "database"); replicas != 0 {
		t.Errorf("the database was scaled to %d", replicas)
	}
}

func TestTeardownWakesByResolverSlices(t *testing.T) {
	t.Parallel()
	c := asleep(t)
	c.deleteService(resources.PrivateServiceName("cart"))
	c.setEndpoints(shop, "cart", "10.1.0.1")
	_, ctx := ktesting.NewTestContext(t)
	if err := c.teardown().Run(ctx); err != nil {
		t.Fatal(err)
	}
	if replicas, names := c.scaling.replicas(t, "cart"), c.serviceNames(); replicas != 2 || !slices.Equal(names, []string{"cart"}) {
		t.Errorf("the target has %d replicas, want 2; the Services %v are left", replicas, names)
	}
}

// The write of the record may be behind, or lost with a storage that is restored.
func TestTargetIsRecordedBeforeItSleeps(t *testing.T) {
	t.Parallel()
	c, failing := newScaleDown(t, nil)
	var reads atomic.Int32
	informerstest.React(&c.elasti.Fake, "list", "elastiservices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.ListAction).GetListRestrictions().Fields.Empty() || reads.Add(1) > 1 {
			return false, nil, nil
		}
		stored, err := c.stored(types.NamespacedName{Namespace: shop, Name: "cart"}, "cart-uid")
		if err != nil {
			return true, nil, err
		}
		stored.Status.ManagedTarget = nil
		return true, &v1alpha1.ElastiServiceList{Items: []v1alpha1.ElastiService{*stored}}, nil
	})
	failing.toZero = func(next func() error) error {
		if reads.Load() == 1 {
			t.Error("the target is scaled to zero while the storage has no record of it")
		}
		return next()
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyReplicas(0)
}
