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
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
)

// beforeDeletion has something happen right before the first deletion of a resolver
// slice. It returns whether that came. It must be called while no controller runs.
func (c *cluster) beforeDeletion(happens func(*discoveryv1.EndpointSlice)) *atomic.Bool {
	var came atomic.Bool
	informerstest.React(&c.host.Fake, "delete", "endpointslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if !came.CompareAndSwap(false, true) {
			return false, nil, nil
		}
		found, err := c.host.Tracker().Get(action.GetResource(), action.GetNamespace(), action.(clienttesting.DeleteAction).GetName())
		if err != nil {
			return true, nil, err
		}
		happens(found.(*discoveryv1.EndpointSlice))
		return false, nil, nil
	})
	return &came
}

// A slice that another replica has just written anew is what has resolvers in the path of
// the Service.
func TestAResolverSliceThatWasWrittenAnewIsNotDeleted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	came := c.beforeDeletion(func(slice *discoveryv1.EndpointSlice) {
		// What is observed of the slice then comes after the reason for it.
		c.setEndpoints(shop, "cart")
		c.create(slice)
	})
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	before := c.resolverSlices("cart")[0].UID
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventually(func() string {
		if !came.Load() {
			return "the deletion of the slice"
		}
		return ""
	})
	c.sync("cart")
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	if after := c.resolverSlices("cart")[0].UID; after != before {
		t.Errorf("the slice %s was deleted, and %s is there", before, after)
	}
	// What does not change any more is deleted.
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventuallyMode("cart", v1alpha1.ModeServe)
}

func TestATeardownDeletesOnlyTheSlicesThatItListed(t *testing.T) {
	t.Parallel()
	c := asleepWithAutoscaler(t)
	came := c.beforeDeletion(func(slice *discoveryv1.EndpointSlice) {
		slice.UID = types.UID("made-anew")
		c.create(slice)
	})
	_, ctx := ktesting.NewTestContext(t)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	if err := c.teardown().Run(ctx); err == nil || !strings.Contains(err.Error(), "deleting resolver slice") {
		t.Errorf("the error is %v", err)
	}
	if left := c.resolverSlices("cart"); len(left) != 1 || !came.Load() {
		t.Errorf("the slices %v are left", left)
	}
	if err := c.teardown().Run(ctx); err != nil {
		t.Errorf("running it again: %v", err)
	}
	if left := c.resolverSlices("cart"); len(left) > 0 {
		t.Errorf("the slices %v are left", left)
	}
}

// A server whose clock is ahead gives a deletion a time that is still to come. The wait
// for an endpoint does not get longer by that.
func TestADeletionWaitsNotLongerWhenTheClockOfTheServerIsAhead(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.markDeleted("cart", -time.Hour)
	c.eventuallyReleased("cart")
	c.eventuallyNothingIsLeft()
}
