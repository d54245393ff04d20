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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// sliceWrites has when the resolvers were last put in the path of each Service.
type sliceWrites struct {
	mu     sync.Mutex
	byName map[string]time.Time
}

// recordSliceWrites records when the resolver slices of each Service are written.
func (c *cluster) recordSliceWrites() *sliceWrites {
	writes := &sliceWrites{byName: map[string]time.Time{}}
	for _, verb := range []string{"create", "update"} {
		informerstest.React(&c.host.Fake, verb, "endpointslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
			writes.mu.Lock()
			defer writes.mu.Unlock()
			// Creations are updates with an object too.
			slice := action.(clienttesting.CreateAction).GetObject().(*discoveryv1.EndpointSlice)
			writes.byName[slice.Labels[discoveryv1.LabelServiceName]] = c.options.Clock.Now()
			return false, nil, nil
		})
	}
	return writes
}

func (w *sliceWrites) last(service string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.byName[service]
}

// endpointSlicesResource is the resource of resolver slices.
var endpointSlicesResource = discoveryv1.SchemeGroupVersion.WithResource("endpointslices")

// beforeSliceIsChecked has change called right before the resolver slice of a Service is
// read from the host because its target is about to be scaled to zero: too late for the
// watch. change must not use the client of the host.
func (c *cluster) beforeSliceIsChecked(service string, change func()) {
	name := resources.ResolverSliceName(service, discoveryv1.AddressTypeIPv4, 0)
	var checking atomic.Bool
	c.beforeRequestsAreChecked(func() { checking.Store(true) })
	informerstest.React(&c.host.Fake, "get", "endpointslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		// Writes that find another slice read it too.
		if checking.Load() && action.(clienttesting.GetAction).GetName() == name {
			change()
		}
		return false, nil, nil
	})
}

// A client deletes or edits a resolver slice right before the target is scaled, and the
// watch does not show that yet.
func TestTargetIsNotScaledWhileTheServerHasNoResolverSlice(t *testing.T) {
	remove := func(c *cluster, slice *discoveryv1.EndpointSlice) {
		if err := c.host.Tracker().Delete(endpointSlicesResource, shop, slice.Name); err != nil {
			c.t.Error(err)
		}
	}
	for name, test := range map[string]struct {
		service string
		change  func(*cluster, *discoveryv1.EndpointSlice)
		// signed is true when the slice stays where it is.
		stays bool
	}{
		"deleted":                    {service: "cart", change: remove},
		"deleted, of the other one":  {service: "cart-grpc", change: remove},
		"no endpoints":               {service: "cart", change: func(c *cluster, slice *discoveryv1.EndpointSlice) { slice.Endpoints = nil; c.create(slice) }},
		"no endpoints, of the other": {service: "cart-grpc", change: func(c *cluster, slice *discoveryv1.EndpointSlice) { slice.Endpoints = nil; c.create(slice) }},
		"other ports": {service: "cart-grpc", change: func(c *cluster, slice *discoveryv1.EndpointSlice) {
			slice.Ports[0].Port = ptr.To[int32](1)
			c.create(slice)
		}},
		"no resolver": {service: "cart", change: func(c *cluster, slice *discoveryv1.EndpointSlice) {
			slice.Endpoints = slice.Endpoints[:1]
			slice.Endpoints[0].Addresses = []string{"10.9.9.9"}
			c.create(slice)
		}},
		"without signature": {service: "cart-grpc", stays: true, change: func(c *cluster, slice *discoveryv1.EndpointSlice) {
			delete(slice.Annotations, v1alpha1.AnnotationSignature)
			c.create(slice)
		}},
		"of another owner": {service: "cart", stays: true, change: func(c *cluster, slice *discoveryv1.EndpointSlice) {
			slice.Annotations[v1alpha1.AnnotationOwner] = "other"
			c.options.Signer.Sign(&slice.ObjectMeta)
			c.create(slice)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, failing := newSharedTarget(t)
			writes := c.recordSliceWrites()
			c.beforeSliceIsChecked(test.service, sync.OnceFunc(func() {
				object, err := c.host.Tracker().Get(endpointSlicesResource, shop, resources.ResolverSliceName(test.service, discoveryv1.AddressTypeIPv4, 0))
				if err != nil {
					t.Error(err)
					return
				}
				test.change(c, object.(*discoveryv1.EndpointSlice).DeepCopy())
			}))
			failing.toZero = func(next func() error) error {
				for _, service := range []string{"cart", "cart-grpc"} {
					found := c.resolverSlices(service)
					if len(found) != 1 || len(found[0].Endpoints) == 0 || !c.options.Signer.Made(&found[0].ObjectMeta) || found[0].Annotations[v1alpha1.AnnotationOwner] != service {
						t.Errorf("the target is scaled to zero with the resolver slices %v of %s", found, service)
						continue
					}
					if port, address := *found[0].Ports[0].Port, found[0].Endpoints[0].Addresses[0]; port < 10000 || address != "10.0.0.1" {
						t.Errorf("the target is scaled to zero with a resolver slice of %s that leads to port %d of %s", service, port, address)
					}
				}
				if waited := c.options.Clock.Since(writes.last(test.service)); !test.stays && waited < DefaultConvergenceTime {
					t.Errorf("the target is scaled to zero %s after the resolvers were put back", waited)
				}
				return next()
			}
			c.startAwake()
			c.requestSleep("cart")
			c.requestSleep("cart-grpc")
			c.eventuallyEvent(v1alpha1.ReasonResolverSliceMissing)
			c.eventuallyReplicas(0)
		})
	}
}

// Clients of one IP family would reach nothing.
func TestTargetIsNotScaledWhileASliceOfOneFamilyIsMissing(t *testing.T) {
	t.Parallel()
	c, failing := newScaleDown(t, nil)
	c.makeDualStack("cart")
	c.setResolversOfIPv6("fd00::1")
	c.beforeSliceIsChecked("cart", sync.OnceFunc(func() {
		if err := c.host.Tracker().Delete(endpointSlicesResource, shop, resources.ResolverSliceName("cart", discoveryv1.AddressTypeIPv6, 0)); err != nil {
			t.Error(err)
		}
	}))
	failing.toZero = func(next func() error) error {
		if found := c.resolverSlices("cart"); len(found) != 2 {
			t.Errorf("the target is scaled to zero with the resolver slices %v", found)
		}
		return next()
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyEvent(v1alpha1.ReasonResolverSliceMissing)
	c.eventuallyReplicas(0)
}

// A slice that cannot be read is not there for all that is known.
func TestTargetIsNotScaledWhileTheResolverSliceCannotBeRead(t *testing.T) {
	t.Parallel()
	c, failing := newScaleDown(t, nil)
	var mu sync.Mutex
	reads := 0
	informerstest.React(&c.host.Fake, "get", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		reads++
		if reads > 2 {
			return false, nil, nil
		}
		return true, nil, errUnavailable
	})
	failing.toZero = func(next func() error) error {
		mu.Lock()
		defer mu.Unlock()
		if reads < 3 {
			t.Errorf("the target is scaled to zero after %d reads that failed", reads)
		}
		return next()
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyReplicas(0)
}

// The data plane has to see the resolvers for the whole time.
func TestConvergenceTimeBeginsAgainWhenASliceIsPutBack(t *testing.T) {
	const convergence = 10
	for name, change := range map[string]func(*cluster){
		"deleted": func(c *cluster) { c.deleteResolverSlices() },
		"edited": func(c *cluster) {
			slice := c.resolverSlices("cart")[0]
			slice.Endpoints = nil
			c.create(&slice)
		},
		"other ports": func(c *cluster) {
			slice := c.resolverSlices("cart")[0]
			slice.Ports[0].Port = ptr.To[int32](1)
			c.create(&slice)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, failing := newScaleDown(t, func(elastiService *v1alpha1.ElastiService) {
				elastiService.Spec.Proxy = &v1alpha1.ProxySpec{ConvergenceSeconds: ptr.To[int32](convergence)}
			})
			writes := c.recordSliceWrites()
			failing.toZero = func(next func() error) error {
				if waited := c.options.Clock.Since(writes.last("cart")); waited < convergence*time.Second {
					t.Errorf("the target is scaled to zero %s after the resolvers were put back", waited)
				}
				return next()
			}
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart")
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			before := writes.last("cart")
			change(c)
			c.eventually(func() string {
				if !writes.last("cart").After(before) {
					return "the slice to be put back"
				}
				return ""
			})
			c.eventuallyReplicas(0)
		})
	}
}

// Resolvers that come and go do not put off a scale-down for ever.
func TestConvergenceTimeGoesOnWhileAResolverStays(t *testing.T) {
	t.Parallel()
	endpoint := func(address string) discoveryv1.Endpoint { return discoveryv1.Endpoint{Addresses: []string{address}} }
	slice := func(addresses ...string) *discoveryv1.EndpointSlice {
		made := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{discoveryv1.LabelServiceName: "cart"}}}
		for _, address := range addresses {
			made.Endpoints = append(made.Endpoints, endpoint(address))
		}
		return made
	}
	for _, test := range []struct {
		name           string
		desired, owned *discoveryv1.EndpointSlice
		want           bool
	}{
		{"the same", slice("10.0.0.1"), slice("10.0.0.1"), true},
		{"one has come", slice("10.0.0.1", "10.0.0.2"), slice("10.0.0.1"), true},
		{"one has left", slice("10.0.0.1"), slice("10.0.0.1", "10.0.0.2"), true},
		{"all are others", slice("10.0.0.3"), slice("10.0.0.1", "10.0.0.2"), false},
		{"there were none", slice("10.0.0.1"), slice(), false},
		{"a family has none", slice(), slice(), true},
	} {
		owned := []*observedSlice{{ObjectMeta: test.owned.ObjectMeta, slice: test.owned}}
		if got := inPlace([]*discoveryv1.EndpointSlice{test.desired}, owned); got != test.want {
			t.Errorf("%s: %t", test.name, got)
		}
	}
	if inPlace([]*discoveryv1.EndpointSlice{slice("10.0.0.1")}, nil) {
		t.Error("a slice that is not there is in place")
	}
}

// Resolvers find pods by the private Service: without one, what wakes the target could
// not be forwarded.
func TestTargetIsNotPutToSleepWithoutItsPrivateService(t *testing.T) {
	services := corev1.Resource("services")
	private := resources.PrivateServiceName("cart")
	for name, test := range map[string]struct {
		err    error
		reason string
	}{
		"the name is taken":          {nil, v1alpha1.ReasonNameTaken},
		"a quota":                    {apierrors.NewForbidden(services, private, fmt.Errorf("exceeded quota")), v1alpha1.ReasonWriteFailed},
		"a webhook rejects it":       {&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 400, Message: "admission webhook denied the request"}}, v1alpha1.ReasonWriteFailed},
		"a webhook cannot be called": {apierrors.NewInternalError(fmt.Errorf("failed calling webhook")), v1alpha1.ReasonWriteFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := newScaleDown(t, nil)
			var mu sync.Mutex
			failing := test.err
			if failing == nil {
				c.create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: private}, Spec: corev1.ServiceSpec{Selector: map[string]string{"their": "own"}}})
			}
			informerstest.React(&c.host.Fake, "create", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
				mu.Lock()
				defer mu.Unlock()
				return failing != nil, nil, failing
			})
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, test.reason)
			c.requestSleep("cart")
			c.sync("cart")
			if mode, found := c.elastiService("cart").Status.Mode, c.resolverSlices("cart"); mode != v1alpha1.ModeServe || len(found) > 0 {
				t.Errorf("the mode is %q, the resolver slices are %v: the scale-down has begun", mode, found)
			}
			if test.err == nil {
				c.deleteService(private)
			}
			mu.Lock()
			failing = nil
			mu.Unlock()
			c.eventuallyReplicas(0)
		})
	}
}
