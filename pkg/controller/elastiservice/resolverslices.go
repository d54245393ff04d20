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
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// maxEndpoints is how many endpoints an EndpointSlice may have.
const maxEndpoints = 1000

// desiredResolverSlices are the EndpointSlices that put the ready resolvers
// among the endpoints of a public Service, for each of its IP families.
// Without a ready resolver there is one without endpoints.
func desiredResolverSlices(elastiService *v1alpha1.ElastiService, public *corev1.Service, ports []v1alpha1.ProxyPort, ready func(discoveryv1.AddressType) []discoveryv1.Endpoint) []*discoveryv1.EndpointSlice {
	var desired []*discoveryv1.EndpointSlice
	for _, family := range addressTypes(public) {
		chunks := slices.Collect(slices.Chunk(ready(family), maxEndpoints))
		if len(chunks) == 0 {
			chunks = [][]discoveryv1.Endpoint{nil}
		}
		for number, endpoints := range chunks {
			desired = append(desired, &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: public.Namespace,
					Name:      resolverSliceName(public.Name, family, number),
					Labels: map[string]string{
						discoveryv1.LabelServiceName: public.Name,
						discoveryv1.LabelManagedBy:   v1alpha1.SliceManagedBy,
						v1alpha1.LabelRole:           v1alpha1.RoleResolver,
					},
					Annotations: map[string]string{v1alpha1.AnnotationOwner: elastiService.Name},
				},
				AddressType: family,
				Ports:       slicePorts(ports),
				Endpoints:   endpoints,
			})
		}
	}
	return desired
}

func slicePorts(ports []v1alpha1.ProxyPort) []discoveryv1.EndpointPort {
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

func addressTypes(public *corev1.Service) []discoveryv1.AddressType {
	var families []discoveryv1.AddressType
	for _, family := range public.Spec.IPFamilies {
		families = append(families, discoveryv1.AddressType(family))
	}
	if len(families) == 0 {
		return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4}
	}
	return families
}

// ensureResolverSlices makes the resolver slices as desired, then deletes the
// others of owned. It works on all of them, whatever fails, and reports whether
// it deleted one.
func (c *Controller) ensureResolverSlices(ctx context.Context, desired []*discoveryv1.EndpointSlice, owned []*observedSlice) (bool, error) {
	known := map[string]*discoveryv1.EndpointSlice{}
	for _, slice := range owned {
		known[slice.Name] = slice.slice
	}
	var problems []error
	for _, slice := range desired {
		if err := c.ensureResolverSlice(ctx, slice, known[slice.Name]); err != nil {
			problems = append(problems, err)
		}
		delete(known, slice.Name)
	}
	if len(problems) > 0 {
		// The traffic still depends on what is there.
		return false, errors.Join(problems...)
	}
	for name, slice := range known {
		if err := c.deleteResolverSlice(ctx, slice.Namespace, name); err != nil {
			problems = append(problems, err)
		}
	}
	return len(known) > len(problems), errors.Join(problems...)
}

func (c *Controller) ensureResolverSlice(ctx context.Context, desired, current *discoveryv1.EndpointSlice) error {
	endpointSlices := c.host.DiscoveryV1().EndpointSlices(desired.Namespace)
	if current == nil {
		_, err := endpointSlices.Create(ctx, desired, metav1.CreateOptions{FieldManager: fieldManager})
		if err == nil {
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating resolver slice %q: %w", desired.Name, err)
		}
		if current, err = endpointSlices.Get(ctx, desired.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("reading resolver slice %q: %w", desired.Name, err)
		}
		if !isOurs(&current.ObjectMeta, v1alpha1.RoleResolver) {
			return &nameTakenError{kind: "EndpointSlice", name: desired.Name}
		}
	}
	if resolverSliceMatches(current, desired) {
		return nil
	}
	updated := current.DeepCopy()
	for key, value := range desired.Labels {
		metav1.SetMetaDataLabel(&updated.ObjectMeta, key, value)
	}
	for key, value := range desired.Annotations {
		metav1.SetMetaDataAnnotation(&updated.ObjectMeta, key, value)
	}
	updated.Ports = desired.Ports
	updated.Endpoints = desired.Endpoints
	if _, err := endpointSlices.Update(ctx, updated, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("updating resolver slice %q: %w", desired.Name, err)
	}
	return nil
}

func (c *Controller) deleteResolverSlice(ctx context.Context, namespace, name string) error {
	err := c.host.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting resolver slice %q: %w", name, err)
	}
	return nil
}

func resolverSliceMatches(current, desired *discoveryv1.EndpointSlice) bool {
	for key, value := range desired.Labels {
		if current.Labels[key] != value {
			return false
		}
	}
	return current.Annotations[v1alpha1.AnnotationOwner] == desired.Annotations[v1alpha1.AnnotationOwner] &&
		equality.Semantic.DeepEqual(current.Ports, desired.Ports) &&
		equality.Semantic.DeepEqual(current.Endpoints, desired.Endpoints)
}
