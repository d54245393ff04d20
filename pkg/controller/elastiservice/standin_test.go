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
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
)

// A target that cannot be woken keeps its resolvers: those that there are, not those that
// there were.
func TestSlicesOfATargetThatCannotBeWokenFollowTheResolvers(t *testing.T) {
	t.Parallel()
	for name, takeAway := range map[string]func(*cluster){
		"the ElastiService is deleted": func(c *cluster) { c.markDeleted("cart", time.Hour) },
		"the ElastiService is lost":    func(c *cluster) { c.remove("cart") },
		"the Service has no selector": func(c *cluster) {
			service := cartService()
			service.Spec.Selector = nil
			c.create(service)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}})
			c.createOther()
			c.create(cartElastiService())
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			c.scaling.fail(errors.New("a webhook rejects it"))
			takeAway(c)
			c.eventuallyEvent(v1alpha1.ReasonTargetNotRestored)
			c.setEndpoints("elasti-system", "elasti-resolver", "10.0.0.3", "10.0.0.4")
			c.eventuallyListed("cart", "10.0.0.3", "10.0.0.4")
		})
	}
}

// Of deletions that wait for their turn, the same is true, and Ready says what they wait for.
func TestSlicesOfADeletionThatWaitsForItsTurnFollowTheResolvers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	// The second one would have its turn after more time than any test takes.
	c.options.WakeRate = 0.0001
	for _, name := range []string{"first", "second"} {
		c.createCart(name)
	}
	c.start()
	for _, name := range []string{"first", "second"} {
		c.eventuallyMode(name, v1alpha1.ModeProxy)
	}
	c.markDeleted("first", time.Hour)
	c.eventually(func() string {
		if c.scaling.replicas(t, "first") == 0 {
			return "the first target to be awake"
		}
		return ""
	})
	c.markDeleted("second", time.Hour)
	c.eventuallyCondition("second", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonWaitingForWake)
	c.setEndpoints("elasti-system", "elasti-resolver", "10.0.0.3", "10.0.0.4")
	c.eventuallyListed("second", "10.0.0.3", "10.0.0.4")
}

// A target that does not exist cannot be asleep.
func TestDeletionsWithoutATargetDoNotWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.WakeRate = 0.0001
	names := []string{"cart-0", "cart-1", "cart-2"}
	for _, name := range names {
		service := cartService()
		service.Name, service.UID = name, types.UID(name)
		c.create(service)
		elastiService := cartElastiService()
		elastiService.Name, elastiService.UID, elastiService.Spec.Service, elastiService.Spec.ScaleTargetRef.Name = name, types.UID(name), name, name
		c.create(elastiService)
	}
	c.start()
	for _, name := range names {
		c.eventuallyMode(name, v1alpha1.ModeProxy)
	}
	for _, name := range names {
		c.markDeleted(name, time.Hour)
	}
	for _, name := range names {
		c.eventuallyReleased(name)
	}
}

// A quota or a webhook may reject resolver slices that another client has deleted.
func TestSleepingTargetWhoseSliceCannotBePutBackIsWoken(t *testing.T) {
	t.Parallel()
	c := asleep(t)
	var rejecting atomic.Bool
	informerstest.React(&c.host.Fake, "create", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return rejecting.Load(), nil, apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), "cart", errors.New("exceeded quota"))
	})
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	rejecting.Store(true)
	c.deleteResolverSlices()
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonWriteFailed)
	c.eventuallyEvent(v1alpha1.ReasonResolverSliceMissing)
	c.eventuallyReplicas(2)
}
