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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// errDamaged is the response to reading an ElastiService whose stored object is damaged.
var errDamaged = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: 500, Reason: metav1.StatusReasonStoreReadError, Message: "its digest does not match its key and data",
}}

// asleepUnreadable is a cluster without a controller whose target "cart" sleeps behind
// resolvers, and whose ElastiService cannot be read: lists leave it out, and reading it is an
// error until repair is called. reads counts these errors.
func asleepUnreadable(t *testing.T, err error) (c *cluster, reads *atomic.Int32, repair func()) {
	t.Helper()
	c = newCluster(t)
	// No more than "cart" has.
	c.options.ProxyPortRange.Size = 2
	c.createOther()
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	stop()
	stored := c.elastiService("cart")
	c.remove("cart")
	reads = &atomic.Int32{}
	var repaired atomic.Bool
	informerstest.React(&c.elasti.Fake, "get", "elastiservices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.GetAction).GetName() != "cart" || repaired.Load() {
			return false, nil, nil
		}
		reads.Add(1)
		return true, nil, err
	})
	return c, reads, func() {
		repaired.Store(true)
		c.create(stored)
	}
}

// After a restart neither the controller nor any resolver has an ElastiService whose stored
// object is damaged: no traffic would wake its target.
func TestTargetOfADamagedElastiServiceIsWokenBeforeResolversLeave(t *testing.T) {
	t.Parallel()
	c, reads, repair := asleepUnreadable(t, errDamaged)
	c.start()
	c.eventuallyEventWith(corev1.EventTypeWarning, v1alpha1.ReasonStoredObjectDamaged, errDamaged.Error())
	c.eventuallyReplicas(2)
	if len(c.resolverSlices("cart")) == 0 {
		t.Error("the resolvers left before an endpoint was ready")
	}
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventuallyNothingIsLeft()
	// What the user scales to zero afterwards is the user's.
	c.setDeployment("cart", 0, 0)
	c.setEndpoints(shop, "cart")
	checks := reads.Load()
	c.eventually(func() string {
		if reads.Load() < checks+2 {
			return "another check of the damaged object"
		}
		return ""
	})
	if replicas := c.scaling.replicas(t, "cart"); replicas != 0 {
		t.Errorf("the target was woken again, to %d replicas", replicas)
	}
	// The ElastiService exists: others do not get its proxy ports.
	c.createCart("late")
	c.eventuallyCondition("late", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProxyPortsExhausted)
	repair()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
}

// That its resolver slices and its private Service were deleted does not say that the target
// was woken.
func TestTargetOfADamagedElastiServiceWithoutObjectsIsWoken(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.createOther()
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	rejected := func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("nothing can be made for now"))
	}
	informerstest.React(&c.host.Fake, "create", "services", rejected)
	informerstest.React(&c.host.Fake, "create", "endpointslices", rejected)
	c.deleteResolverSlices()
	c.deleteService(resources.PrivateServiceName("cart"))
	// The controller has observed both deletions then.
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonWriteFailed)
	informerstest.React(&c.elasti.Fake, "get", "elastiservices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.GetAction).GetName() != "cart" {
			return false, nil, nil
		}
		return true, nil, errDamaged
	})
	c.remove("cart")
	c.eventuallyReplicas(2)
}

// A storage that does not work for a while has not lost anything, and the resolvers may still
// know all ElastiServices.
func TestATransientErrorOfTheStorageWakesNothing(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"an internal error": apierrors.NewInternalError(errors.New("etcdserver: request timed out")),
		"no response":       apierrors.NewServiceUnavailable("the storage in the host cluster cannot be reached, try again"),
		"no status":         errors.New("connection refused"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, reads, _ := asleepUnreadable(t, err)
			c.start()
			c.eventually(func() string {
				if reads.Load() < 5 {
					return "more attempts to read the ElastiService"
				}
				return ""
			})
			if replicas := c.scaling.replicas(t, "cart"); replicas != 0 || len(c.resolverSlices("cart")) == 0 {
				t.Errorf("there are %d replicas and %d resolver slices", replicas, len(c.resolverSlices("cart")))
			}
		})
	}
}
