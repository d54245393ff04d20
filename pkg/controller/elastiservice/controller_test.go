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
	"slices"
	"strconv"
	"testing"

	"go.uber.org/goleak"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// klog flushes for as long as the process lives.
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

func TestTargetAtZeroIsProxiedAtOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	c.eventuallyCondition("cart", v1alpha1.ConditionServiceFound, metav1.ConditionTrue, v1alpha1.ReasonPortsNotProxied)
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetFound, metav1.ConditionTrue, v1alpha1.ReasonFound)
	c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionTrue, v1alpha1.ReasonResolverReady)
	c.eventuallyCondition("cart", v1alpha1.ConditionConflict, metav1.ConditionFalse, v1alpha1.ReasonNoConflict)

	elastiService := c.elastiService("cart")
	if !slices.Contains(elastiService.Finalizers, v1alpha1.Finalizer) {
		t.Errorf("finalizers are %v", elastiService.Finalizers)
	}
	status := elastiService.Status
	if status.ObservedGeneration != 1 || status.Replicas != 0 || status.PrivateService != resources.PrivateServiceName("cart") {
		t.Errorf("status is %+v", status)
	}
	if len(status.ProxyPorts) != 2 || status.ProxyPorts[0].Name != "http" || status.ProxyPorts[0].AppProtocol != "http" || status.ProxyPorts[1].Name != "admin" {
		t.Fatalf("proxy ports are %+v", status.ProxyPorts)
	}
	want := &v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{{TimeoutSeconds: 1, HTTPGet: &v1alpha1.HTTPGetAction{Path: "/ready", Port: 8080, Scheme: "HTTP"}}}}
	if !equality.Semantic.DeepEqual(status.ReadinessProbes, want) {
		t.Errorf("readiness probes are %+v", status.ReadinessProbes)
	}

	slice := c.resolverSlices("cart")[0]
	if len(slice.Ports) != 2 || *slice.Ports[0].Port != status.ProxyPorts[0].ProxyPort || *slice.Ports[0].Name != "http" || *slice.Ports[1].Port != status.ProxyPorts[1].ProxyPort {
		t.Errorf("slice ports are %+v", slice.Ports)
	}
	if len(slice.Endpoints) != 2 {
		t.Fatalf("slice endpoints are %+v", slice.Endpoints)
	}
	endpoint := slice.Endpoints[0]
	if endpoint.Addresses[0] != "10.0.0.1" || *endpoint.NodeName != "node-1" || *endpoint.Zone != "zone-a" || endpoint.TargetRef != nil ||
		!*endpoint.Conditions.Ready || !*endpoint.Conditions.Serving || *endpoint.Conditions.Terminating {
		t.Errorf("endpoint is %+v", endpoint)
	}
}

func TestPrivateServiceCopiesSelectorAndPortsOnly(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	private, err := c.host.CoreV1().Services(shop).Get(t.Context(), resources.PrivateServiceName("cart"), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if private.Spec.ClusterIP != "None" || private.Spec.Type != "" || len(private.Spec.Ports) != 3 || private.Spec.Ports[0].NodePort != 0 ||
		private.Spec.Ports[0].TargetPort.StrVal != "web" || private.Spec.Selector["app"] != "cart" || private.Annotations["external-dns"] != "" {
		t.Errorf("private Service is %+v", private)
	}

	public := cartService()
	public.Spec.Selector = map[string]string{"app": "cart", "track": "stable"}
	c.create(public)
	c.eventually(func() string {
		private, err := c.host.CoreV1().Services(shop).Get(t.Context(), resources.PrivateServiceName("cart"), metav1.GetOptions{})
		if err != nil || private.Spec.Selector["track"] != "stable" {
			return "the new selector"
		}
		return ""
	})
}

func TestModeFollowsTheServicesOwnSlices(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	for range 3 {
		c.setDeployment("cart", 2, 2)
		c.setEndpoints(shop, "cart", "10.1.0.1", "10.1.0.2")
		c.eventuallyMode("cart", v1alpha1.ModeServe)
		c.setEndpoints(shop, "cart")
		c.setDeployment("cart", 0, 0)
		c.eventuallyMode("cart", v1alpha1.ModeProxy)
	}
	c.eventually(func() string {
		status := c.elastiService("cart").Status
		if status.LastScaledUpTime == nil || status.SleptTime == nil || status.LastReconciledTime == nil {
			return fmt.Sprintf("the times in %+v", status)
		}
		return ""
	})
}

func TestSliceIsInPlaceBeforeTheEndpointsOfAScaledTargetAreRemoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1", "10.1.0.2")
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.eventually(func() string {
		if c.elastiService("cart").Status.Replicas != 2 {
			return "the replicas"
		}
		return ""
	})
	c.setDeployment("cart", 0, 2)
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
}

// A target that traffic wakes as soon as it is at zero still has the endpoints
// of the pods that are leaving. They are not those that it was woken to.
func TestResolversStayWhileThePodsOfTheLastTimeAreLeaving(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("cart", 1, 1)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.eventually(func() string {
		if c.elastiService("cart").Status.Replicas != 1 {
			return "the replicas"
		}
		return ""
	})
	c.setDeployment("cart", 0, 1)
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.setDeployment("cart", 2, 1)
	c.eventually(func() string {
		if c.elastiService("cart").Status.Replicas != 2 {
			return "that it was woken"
		}
		return ""
	})
	if mode, found := c.elastiService("cart").Status.Mode, c.resolverSlices("cart"); mode != v1alpha1.ModeProxy || len(found) == 0 {
		t.Fatalf("mode %s with %d resolver slices, while the old pod is leaving", mode, len(found))
	}
	c.setEndpoints(shop, "cart")
	c.setEndpoints(shop, "cart", "10.1.0.2")
	c.eventuallyMode("cart", v1alpha1.ModeServe)
}

func TestHealsWhenServiceOrTargetComeLater(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	late := cartElastiService()
	late.Name, late.UID = "late", "late-uid"
	late.Spec.Service, late.Spec.ScaleTargetRef.Name = "late", "late"
	c.create(late)
	c.start()
	c.eventuallyCondition("late", v1alpha1.ConditionServiceFound, metav1.ConditionFalse, v1alpha1.ReasonNotFound)
	c.eventuallyCondition("late", v1alpha1.ConditionTargetFound, metav1.ConditionFalse, v1alpha1.ReasonNotFound)
	c.eventuallyCondition("late", v1alpha1.ConditionReady, metav1.ConditionFalse, "ServiceNotFound")
	service := cartService()
	service.Name = "late"
	c.create(service)
	c.eventuallyMode("late", v1alpha1.ModeProxy)
	c.eventuallyCondition("late", v1alpha1.ConditionReady, metav1.ConditionFalse, "TargetNotFound")
	c.setDeployment("late", 0, 0)
	c.eventuallyCondition("late", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

func TestNothingIsWrittenAtRest(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	ports := c.elastiService("cart").Status.ProxyPorts

	// A restart syncs everything again. What comes after it shows that it
	// is through.
	stop()
	c.host.ClearActions()
	c.elasti.ClearActions()
	writes := c.statusWrites["cart"]
	stop = c.start()
	late := cartElastiService()
	late.Name, late.UID = "other", "other-uid"
	late.Spec.Service = "other"
	c.create(late)
	c.eventuallyCondition("other", v1alpha1.ConditionServiceFound, metav1.ConditionFalse, v1alpha1.ReasonNotFound)
	for _, action := range slices.Concat(c.host.Actions(), c.elasti.Actions()) {
		if named, ok := action.(interface{ GetName() string }); ok && !slices.Contains([]string{"get", "list", "watch"}, action.GetVerb()) && named.GetName() != "other" {
			t.Errorf("wrote %s %s %s", action.GetVerb(), action.GetResource().Resource, named.GetName())
		}
	}
	stop()
	if got := c.statusWrites["cart"]; got != writes {
		t.Errorf("the status was written %d times", got-writes)
	}
	if got := c.elastiService("cart").Status.ProxyPorts; !slices.Equal(got, ports) {
		t.Errorf("proxy ports went from %v to %v in a restart", ports, got)
	}
}

func TestEditedAndDeletedSlicesArePutBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	want := c.resolverSlices("cart")[0]
	for name, edit := range map[string]func(*discoveryv1.EndpointSlice){
		"endpoints":   func(slice *discoveryv1.EndpointSlice) { slice.Endpoints[0].Addresses = []string{"10.9.9.9"} },
		"readiness":   func(slice *discoveryv1.EndpointSlice) { slice.Endpoints[0].Conditions.Ready = ptr.To(false) },
		"ports":       func(slice *discoveryv1.EndpointSlice) { slice.Ports[0].Port = ptr.To[int32](1) },
		"manager":     func(slice *discoveryv1.EndpointSlice) { delete(slice.Labels, discoveryv1.LabelManagedBy) },
		"service":     func(slice *discoveryv1.EndpointSlice) { slice.Labels[discoveryv1.LabelServiceName] = "else" },
		"annotations": func(slice *discoveryv1.EndpointSlice) { slice.Annotations = nil },
	} {
		edited := want.DeepCopy()
		edit(edited)
		c.create(edited)
		c.eventually(func() string {
			found := c.resolverSlices("cart")
			if len(found) != 1 || !resources.ResolverSliceMatches(&found[0], &want) {
				return fmt.Sprintf("the slice as it was before the edit of its %s: %+v", name, found)
			}
			return ""
		})
	}
	if err := c.host.DiscoveryV1().EndpointSlices(shop).Delete(t.Context(), want.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
}

func TestSlicesFollowTheReadyResolvers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	for _, addresses := range [][]string{{"10.0.0.2", "10.0.0.3"}, {}, {"10.0.0.4"}} {
		c.setEndpoints("elasti-system", "elasti-resolver", addresses...)
		c.eventually(func() string {
			found := c.resolverSlices("cart")
			if len(found) != 1 {
				return "the slice"
			}
			var got []string
			for _, endpoint := range found[0].Endpoints {
				got = append(got, endpoint.Addresses...)
			}
			if !slices.Equal(got, addresses) {
				return fmt.Sprintf("resolvers %v, there are %v", addresses, got)
			}
			return ""
		})
	}
}

func TestTargetOfWhichOnlyTheScaleIsKnown(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.scaling.serveKind("Widget", "widgets")
	c.setWidget(3)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.setEndpoints(shop, resources.PrivateServiceName("cart"), "10.1.0.1")
	elastiService := cartElastiService()
	elastiService.Spec.ScaleTargetRef = v1alpha1.ScaleTargetRef{APIVersion: "example.com/v1", Kind: "Widget", Name: "cart"}
	c.create(elastiService)
	c.start()
	for _, replicas := range []int32{3, 1, 0, 2} {
		c.setWidget(replicas)
		c.eventually(func() string {
			status := c.elastiService("cart").Status
			if status.Replicas != replicas || status.ReadyReplicas != 1 || status.ReadinessProbes != nil {
				return fmt.Sprintf("%d replicas in %+v", replicas, status)
			}
			return ""
		})
	}
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetFound, metav1.ConditionTrue, v1alpha1.ReasonFound)
}

// setWidget makes a Widget whose scale has a number of replicas.
func (c *cluster) setWidget(replicas int32) {
	c.t.Helper()
	c.version++
	c.put(c.dynamic.Tracker(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"namespace": shop, "name": "cart", "resourceVersion": strconv.Itoa(c.version)},
		"spec":     map[string]any{"replicas": int64(replicas)},
	}})
}
