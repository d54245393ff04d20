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

package resources

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestNamesFitAndDiffer(t *testing.T) {
	long := strings.Repeat("a", 62)
	names := map[string]bool{}
	for _, service := range []string{"cart", long + "b", long + "c"} {
		name := PrivateServiceName(service)
		if problems := validation.IsDNS1035Label(name); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
		names[name] = true
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			for number := range 2 {
				name := ResolverSliceName(service, family, number)
				if !IsResolverSliceName(name, service) || IsResolverSliceName(name, service+"d") || IsResolverSliceName("x"+name, service) {
					t.Errorf("%s is not known as the name of a resolver slice of %s alone", name, service)
				}
				if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
					t.Errorf("%s: %v", name, problems)
				}
				names[name] = true
			}
		}
	}
	if len(names) != 15 {
		t.Errorf("%d names, want 15 that differ", len(names))
	}
	// The names that KubeElasti gives.
	if got, want := PrivateServiceName("cart"), "elasti-cart-pvt-1c42ddc028"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := ResolverSliceName("cart", discoveryv1.AddressTypeIPv4, 0), "elasti-cart-endpointslice-to-resolver-1c42ddc028"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestOnlyReadyEndpointsCount(t *testing.T) {
	for _, test := range []struct {
		name       string
		conditions discoveryv1.EndpointConditions
		want       bool
	}{
		{"ready", discoveryv1.EndpointConditions{Ready: ptr.To(true)}, true},
		{"not ready", discoveryv1.EndpointConditions{Ready: ptr.To(false)}, false},
		{"not said", discoveryv1.EndpointConditions{}, false},
		{"called ready and not serving", discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(false)}, false},
		{"serving", discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true)}, true},
		{"terminating", discoveryv1.EndpointConditions{Ready: ptr.To(true), Terminating: ptr.To(true)}, false},
		{"serving while terminating", discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}, false},
	} {
		if got := IsReady(&discoveryv1.Endpoint{Conditions: test.conditions}); got != test.want {
			t.Errorf("%s: got %t", test.name, got)
		}
	}
}

func TestResolverSlicesOfFamiliesAndMany(t *testing.T) {
	public := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"}}
	public.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	ready := func(family discoveryv1.AddressType) []discoveryv1.Endpoint {
		if family == discoveryv1.AddressTypeIPv6 {
			return nil
		}
		return make([]discoveryv1.Endpoint, MaxEndpoints+1)
	}
	elastiService := &v1alpha1.ElastiService{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"}}
	slices := DesiredResolverSlices(elastiService, public, ManagedTargetOf(elastiService), []v1alpha1.ProxyPort{{Port: 80, ProxyPort: 10001}}, ready)
	if len(slices) != 3 {
		t.Fatalf("%d slices, want 3", len(slices))
	}
	sizes := []int{MaxEndpoints, 1, 0}
	for i, slice := range slices {
		if len(slice.Endpoints) != sizes[i] {
			t.Errorf("%s has %d endpoints, want %d", slice.Name, len(slice.Endpoints), sizes[i])
		}
		if *slice.Ports[0].Name != "" || *slice.Ports[0].Port != 10001 {
			t.Errorf("%s has ports %+v", slice.Name, slice.Ports)
		}
	}
	if slices[2].AddressType != discoveryv1.AddressTypeIPv6 || !strings.HasSuffix(slices[2].Name, "-ipv6") {
		t.Errorf("the last slice is %s %s", slices[2].Name, slices[2].AddressType)
	}
}
