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
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clienttesting "k8s.io/client-go/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// The Service that was named before still selects the pods: its clients wait at the
// resolvers, and would find nothing without them.
func TestChangeOfServiceLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	other := cartService()
	other.Name = "basket"
	c.create(other)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Service = "basket"
		elastiService.Generation++
	})
	c.eventually(func() string {
		if len(c.resolverSlices("cart")) == 0 {
			t.Fatal("the resolvers left a Service whose target has no ready endpoint")
		}
		if c.scaling.replicas(t, "cart") == 0 {
			return "the target to be woken"
		}
		return ""
	})
	for _, service := range []string{"cart", "basket"} {
		c.setEndpoints(shop, service, "10.1.0.1")
	}
	c.setDeployment("cart", 2, 2)
	c.eventually(func() string {
		want := []string{"basket", "cart", resources.PrivateServiceName("basket")}
		if got := c.serviceNames(); !slices.Equal(got, want) {
			return fmt.Sprintf("Services %v, there are %v", want, got)
		}
		if len(c.resolverSlices("cart"))+len(c.resolverSlices("basket")) > 0 {
			return "the slices to be removed"
		}
		return ""
	})
	c.eventually(func() string {
		if status := c.elastiService("cart").Status; status.ObservedGeneration != 2 || status.PrivateService != resources.PrivateServiceName("basket") || status.Mode != v1alpha1.ModeServe {
			return "the status"
		}
		return ""
	})
	c.requestSleep("cart")
	c.eventuallyReplicas(0)
	if len(c.resolverSlices("basket")) != 1 || len(c.resolverSlices("cart")) > 0 {
		t.Error("the target sleeps, and its resolvers are not in the path of the Service that is named now, or in that of another one")
	}
}

// The status does not name a private Service that could not be made, and the rules of nodes
// may lead the clients of the previous Service to its proxy port for a moment.
func TestProxyPortsOfAServiceWithoutAPrivateOneAreNotThoseOfTheNext(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	other := cartService()
	other.Name = "basket"
	c.create(other)
	c.create(cartElastiService())
	informerstest.React(&c.host.Fake, "create", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
		service := action.(clienttesting.CreateAction).GetObject().(*corev1.Service)
		if service.Name != resources.PrivateServiceName("cart") {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(corev1.Resource("services"), service.Name, errors.New("the quota is exceeded"))
	})
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	before := c.elastiService("cart").Status
	if before.PrivateService != "" || len(before.ProxyPorts) != 2 {
		t.Fatalf("without a private Service the status is %+v", before)
	}
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Service = "basket"
		elastiService.Generation++
	})
	for _, service := range []string{"cart", "basket"} {
		c.setEndpoints(shop, service, "10.1.0.1")
	}
	c.setDeployment("cart", 2, 2)
	var after v1alpha1.ElastiServiceStatus
	c.eventually(func() string {
		if after = c.elastiService("cart").Status; after.PrivateService != resources.PrivateServiceName("basket") {
			return "the private Service of the one that is named now"
		}
		return ""
	})
	reused := slices.ContainsFunc(after.ProxyPorts, func(port v1alpha1.ProxyPort) bool {
		return slices.ContainsFunc(before.ProxyPorts, func(previous v1alpha1.ProxyPort) bool { return previous.ProxyPort == port.ProxyPort })
	})
	if len(after.ProxyPorts) != 2 || reused {
		t.Errorf("the proxy ports were %+v for the previous Service, and are %+v", before.ProxyPorts, after.ProxyPorts)
	}
}

func TestSecondElastiServiceOnOneService(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	first, second := cartElastiService(), cartElastiService()
	first.CreationTimestamp = metav1.Unix(1000, 0)
	second.Name, second.UID = "a-second", "second-uid"
	second.CreationTimestamp = metav1.Unix(2000, 0)
	c.create(second)
	c.create(first)
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyCondition("cart", v1alpha1.ConditionConflict, metav1.ConditionFalse, v1alpha1.ReasonNoConflict)
	c.eventuallyCondition("a-second", v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonServiceTaken)
	c.eventuallyCondition("a-second", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonServiceTaken)
	if message := findCondition(c.elastiService("a-second"), v1alpha1.ConditionReady).Message; !strings.Contains(message, `"cart"`) {
		t.Errorf("the message does not name the other one: %s", message)
	}
	if err := c.elasti.ElastiV1alpha1().ElastiServices(shop).Delete(t.Context(), "cart", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventuallyMode("a-second", v1alpha1.ModeProxy)
	c.eventually(func() string {
		if found := c.resolverSlices("cart"); len(found) != 1 || found[0].Annotations[v1alpha1.AnnotationOwner] != "a-second" {
			return "the slice of the second one"
		}
		return ""
	})
	c.eventuallyCondition("a-second", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// OpenShift rejects EndpointSlices with the addresses of pods, unless their writer has a
// permission of its own for that. A target is not scaled to zero without resolvers in the
// path.
func TestResolverSlicesThatAreRejectedAreReported(t *testing.T) {
	t.Parallel()
	const words = "endpoint address 10.0.0.1 is not allowed"
	c, failing := newScaleDown(t, nil)
	var allowed atomic.Bool
	informerstest.React(&c.host.Fake, "create", "endpointslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*discoveryv1.EndpointSlice)
		if allowed.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), slice.Name, errors.New(words))
	})
	failing.toZero = func(next func() error) error {
		if !allowed.Load() {
			t.Error("scaled to zero without resolvers in the path")
		}
		return next()
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonWriteFailed)
	if message := findCondition(c.elastiService("cart"), v1alpha1.ConditionReady).Message; !strings.Contains(message, words) {
		t.Errorf("the message is %q", message)
	}
	c.eventuallyEventWith(corev1.EventTypeWarning, v1alpha1.ReasonWriteFailed, words)
	if mode := c.elastiService("cart").Status.Mode; mode != v1alpha1.ModeServe {
		t.Errorf("the mode is %s", mode)
	}
	allowed.Store(true)
	c.eventuallyReplicas(0)
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

func TestNoFreeProxyPort(t *testing.T) {
	for _, shared := range []int32{0, 8012} {
		c := newCluster(t)
		c.options.ProxyPortRange = utilnet.PortRange{Base: 10000, Size: 1}
		c.options.SharedProxyPort = shared
		c.create(cartElastiService())
		c.start()
		c.eventuallyMode("cart", v1alpha1.ModeProxy)
		c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProxyPortsExhausted)
		ports := c.elastiService("cart").Status.ProxyPorts
		if want := 1 + int(shared/8012); len(ports) != want || ports[0].ProxyPort != 10000 {
			t.Errorf("with the shared port %d: %+v", shared, ports)
		}
		c.eventuallyEvent(v1alpha1.ReasonProxyPortsExhausted)
	}
}

func TestObjectsOfOthersAreNotOverwritten(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	others := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: resources.PrivateServiceName("cart")}, Spec: corev1.ServiceSpec{Selector: map[string]string{"their": "own"}}}
	c.create(others)
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: resources.ResolverSliceName("cart", discoveryv1.AddressTypeIPv4, 0)}, AddressType: discoveryv1.AddressTypeIPv4}
	c.create(slice)
	c.create(cartElastiService())
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNameTaken)
	c.eventuallyEvent(v1alpha1.ReasonNameTaken)
	found, err := c.host.CoreV1().Services(shop).Get(t.Context(), others.Name, metav1.GetOptions{})
	if err != nil || found.Spec.Selector["their"] != "own" || len(found.Labels) > 0 {
		t.Errorf("their Service is %+v, %v", found, err)
	}
	c.deleteService(others.Name)
	if err := c.host.DiscoveryV1().EndpointSlices(shop).Delete(t.Context(), slice.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// What makes a Service one that resolvers cannot stand in for takes them
// away. The target is woken first, and what they hold is still forwarded.
func TestServiceThatBecomesUnsupportedWakesTheTargetBeforeResolversLeave(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*corev1.Service){
		"without selector": func(service *corev1.Service) { service.Spec.Selector = nil },
		"ExternalName": func(service *corev1.Service) {
			service.Spec.Type, service.Spec.ExternalName = corev1.ServiceTypeExternalName, "cart.example.com"
		},
		"headless": func(service *corev1.Service) { service.Spec.ClusterIP = corev1.ClusterIPNone },
		"only UDP": func(service *corev1.Service) {
			for i := range service.Spec.Ports {
				service.Spec.Ports[i].Protocol = corev1.ProtocolUDP
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.create(cartElastiService())
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			c.eventually(func() string {
				if c.elastiService("cart").Status.PrivateService == "" {
					return "the private Service in the status"
				}
				return ""
			})
			service := cartService()
			change(service)
			c.put(c.host.Tracker(), service)
			c.eventually(func() string {
				if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
					return fmt.Sprintf("2 replicas, there are %d", replicas)
				}
				return ""
			})
			status := c.elastiService("cart").Status
			if len(c.resolverSlices("cart")) == 0 || len(status.ProxyPorts) == 0 || status.PrivateService == "" {
				t.Errorf("the resolvers left before an endpoint was ready: %+v", status)
			}
			c.setEndpoints(shop, "cart", "10.1.0.1")
			c.eventually(func() string {
				if found := c.resolverSlices("cart"); len(found) > 0 || len(c.serviceNames()) > 1 {
					return fmt.Sprintf("the end of %v, %v", found, c.serviceNames())
				}
				return ""
			})
			c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonServiceNotSupported)
		})
	}
}

// A rename of an application edits the ElastiService, maybe before the Service with the
// new name is there. Clients of the previous one still wait at resolvers.
func TestServiceThatIsNotThereYetWakesTheTargetBeforeResolversLeaveThePreviousOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Service = "basket"
		elastiService.Generation++
	})
	c.eventuallyReplicas(2)
	if len(c.resolverSlices("cart")) == 0 {
		t.Error("the resolvers left before an endpoint was ready")
	}
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventually(func() string {
		if found := c.resolverSlices("cart"); len(found) > 0 || len(c.serviceNames()) > 1 {
			return fmt.Sprintf("the end of %v, %v", found, c.serviceNames())
		}
		return ""
	})
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonServiceNotFound)
}
