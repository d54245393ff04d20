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
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// DesiredPrivateService returns the headless copy of a public Service's selector,
// ports and IP families, and of nothing else: its EndpointSlices list the
// target's pods, and none is ready there that is not, whatever the public Service
// publishes. It records the managed target.
func DesiredPrivateService(elastiService *v1alpha1.ElastiService, public *corev1.Service, managed *ManagedTarget) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   public.Namespace,
			Name:        PrivateServiceName(public.Name),
			Labels:      map[string]string{v1alpha1.LabelRole: v1alpha1.RolePrivate, v1alpha1.LabelManagedBy: v1alpha1.ManagedBy},
			Annotations: map[string]string{v1alpha1.AnnotationOwner: elastiService.Name, v1alpha1.AnnotationTarget: managed.String()},
		},
		Spec: corev1.ServiceSpec{
			ClusterIP:      corev1.ClusterIPNone,
			Selector:       public.Spec.Selector,
			IPFamilies:     public.Spec.IPFamilies,
			IPFamilyPolicy: privateFamilyPolicy(public),
		},
	}
	for _, port := range public.Spec.Ports {
		port.NodePort = 0
		service.Spec.Ports = append(service.Spec.Ports, port)
	}
	return service
}

// privateFamilyPolicy requests the families that the public Service has, neither
// more nor fewer. A preference would be decided again, and maybe otherwise, when
// the families of the cluster have changed in between.
func privateFamilyPolicy(public *corev1.Service) *corev1.IPFamilyPolicy {
	switch len(public.Spec.IPFamilies) {
	case 0:
		return nil
	case 1:
		return ptr.To(corev1.IPFamilyPolicySingleStack)
	default:
		return ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	}
}

// PrimaryFamilyDiffers reports whether the first family differs, which cannot be
// changed: the public Service was deleted and made again with another one.
func PrimaryFamilyDiffers(current, desired *corev1.Service) bool {
	return len(current.Spec.IPFamilies) > 0 && len(desired.Spec.IPFamilies) > 0 && current.Spec.IPFamilies[0] != desired.Spec.IPFamilies[0]
}

// IsHeadless reports whether a Service is one without an address, such as private ones are.
// The EndpointSlice controller leaves those of an ExternalName as they are: what they list is
// what users write there.
func IsHeadless(service *corev1.Service) bool {
	return (service.Spec.Type == "" || service.Spec.Type == corev1.ServiceTypeClusterIP) && service.Spec.ClusterIP == corev1.ClusterIPNone
}

// PrivateServiceMatches reports whether a private Service is as desired. Labels and
// annotations of others do not count.
func PrivateServiceMatches(service, desired *corev1.Service) bool {
	return IsHeadless(service) &&
		service.Labels[v1alpha1.LabelRole] == v1alpha1.RolePrivate &&
		service.Annotations[v1alpha1.AnnotationOwner] == desired.Annotations[v1alpha1.AnnotationOwner] &&
		service.Annotations[v1alpha1.AnnotationTarget] == desired.Annotations[v1alpha1.AnnotationTarget] &&
		equality.Semantic.DeepEqual(service.Spec.Selector, desired.Spec.Selector) &&
		equality.Semantic.DeepEqual(service.Spec.Ports, desired.Spec.Ports) &&
		service.Spec.PublishNotReadyAddresses == desired.Spec.PublishNotReadyAddresses &&
		(len(desired.Spec.IPFamilies) == 0 || slices.Equal(service.Spec.IPFamilies, desired.Spec.IPFamilies) &&
			ptr.Equal(service.Spec.IPFamilyPolicy, desired.Spec.IPFamilyPolicy))
}
