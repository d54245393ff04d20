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
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// MaxEndpoints is how many endpoints an EndpointSlice may have.
const MaxEndpoints = 1000

// DesiredResolverSlices returns the EndpointSlices that put the ready resolvers
// among the endpoints of a public Service, for each of its IP families.
// Without a ready resolver there is one without endpoints. Each records the managed
// target.
func DesiredResolverSlices(elastiService *v1alpha1.ElastiService, public *corev1.Service, managed *ManagedTarget, ports []v1alpha1.ProxyPort, ready func(discoveryv1.AddressType) []discoveryv1.Endpoint) []*discoveryv1.EndpointSlice {
	var desired []*discoveryv1.EndpointSlice
	for _, family := range AddressTypes(public) {
		chunks := slices.Collect(slices.Chunk(ready(family), MaxEndpoints))
		if len(chunks) == 0 {
			chunks = [][]discoveryv1.Endpoint{nil}
		}
		for number, endpoints := range chunks {
			desired = append(desired, &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: public.Namespace,
					Name:      ResolverSliceName(public.Name, family, number),
					Labels: map[string]string{
						discoveryv1.LabelServiceName: public.Name,
						discoveryv1.LabelManagedBy:   v1alpha1.SliceManagedBy,
						v1alpha1.LabelRole:           v1alpha1.RoleResolver,
					},
					Annotations: map[string]string{v1alpha1.AnnotationOwner: elastiService.Name, v1alpha1.AnnotationTarget: managed.String()},
				},
				AddressType: family,
				Ports:       SlicePorts(ports),
				Endpoints:   endpoints,
			})
		}
	}
	return desired
}

// SlicePorts returns the ports of the resolver slices for proxy ports.
func SlicePorts(ports []v1alpha1.ProxyPort) []discoveryv1.EndpointPort {
	var mapped []discoveryv1.EndpointPort
	for _, port := range ports {
		endpointPort := discoveryv1.EndpointPort{Name: ptr.To(port.Name), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(port.ProxyPort)}
		if port.AppProtocol != "" {
			endpointPort.AppProtocol = ptr.To(port.AppProtocol)
		}
		mapped = append(mapped, endpointPort)
	}
	return mapped
}

// AddressTypes returns the address types of the EndpointSlices of a Service.
func AddressTypes(public *corev1.Service) []discoveryv1.AddressType {
	var families []discoveryv1.AddressType
	for _, family := range public.Spec.IPFamilies {
		families = append(families, discoveryv1.AddressType(family))
	}
	if len(families) == 0 {
		return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4}
	}
	return families
}

// ResolverSliceMatches reports whether a resolver slice is as desired. Labels and
// annotations of others do not count.
func ResolverSliceMatches(current, desired *discoveryv1.EndpointSlice) bool {
	for key, value := range desired.Labels {
		if current.Labels[key] != value {
			return false
		}
	}
	for key, value := range desired.Annotations {
		if current.Annotations[key] != value {
			return false
		}
	}
	return equality.Semantic.DeepEqual(current.Ports, desired.Ports) &&
		equality.Semantic.DeepEqual(current.Endpoints, desired.Endpoints)
}

// IsReady reports whether an endpoint accepts new connections. An endpoint without the
// condition ready does not: the slices of Kubernetes always have it. The slices of a Service
// with publishNotReadyAddresses call every pod ready, and have in the condition serving
// whether it is.
func IsReady(endpoint *discoveryv1.Endpoint) bool {
	conditions := &endpoint.Conditions
	return ptr.Deref(conditions.Ready, false) && ptr.Deref(conditions.Serving, true) && !ptr.Deref(conditions.Terminating, false)
}
