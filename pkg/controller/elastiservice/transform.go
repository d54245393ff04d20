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
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/compatibility"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/signature"
)

// observedSlice is what is kept of an EndpointSlice.
type observedSlice struct {
	// ObjectMeta holds the identity, and the labels and annotations that the
	// controller reads.
	metav1.ObjectMeta
	// family is the IP family of the endpoints.
	family discoveryv1.AddressType
	// ready is the number of endpoints that are ready and not terminating.
	ready int
	// slice is the whole slice if it is a resolver slice, or one of the
	// Service of the resolvers.
	slice *discoveryv1.EndpointSlice
	// resolverSlice is whether it is a resolver slice.
	resolverSlice bool
}

// managed reports whether the slice is a resolver slice.
func (s *observedSlice) managed() bool { return s.resolverSlice }

// readyPods is the number of ready pods in slices that list a pod once in each
// of its IP families.
func readyPods(endpointSlices []*observedSlice) int {
	byFamily := map[discoveryv1.AddressType]int{}
	for _, slice := range endpointSlices {
		byFamily[slice.family] += slice.ready
	}
	ready := 0
	for _, count := range byFamily {
		ready = max(ready, count)
	}
	return ready
}

func (s *observedSlice) service() types.NamespacedName { return v1alpha1.SliceServiceKey(s) }

// keepSlice returns the transform for EndpointSlices.
func keepSlice(signer *signature.Signer, resolverService types.NamespacedName) func(any) (any, error) {
	return func(object any) (any, error) {
		slice, ok := object.(*discoveryv1.EndpointSlice)
		if !ok {
			return informers.AlreadyTransformed[*observedSlice](object)
		}
		kept := &observedSlice{
			ObjectMeta: keepMeta(signer, &slice.ObjectMeta, discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy, v1alpha1.LabelRole),
			family:     discoveryv1.AddressType(once(string(slice.AddressType))),

			resolverSlice: isResolverSlice(signer, &slice.ObjectMeta),
		}
		for i := range slice.Endpoints {
			if resources.IsReady(&slice.Endpoints[i]) {
				kept.ready++
			}
		}
		if kept.managed() || kept.service() == resolverService {
			whole := *slice
			whole.ManagedFields = nil
			kept.slice = &whole
		}
		return kept, nil
	}
}

// keepService returns the transform for Services.
func keepService(signer *signature.Signer) func(any) (any, error) {
	return func(object any) (any, error) {
		service, ok := object.(*corev1.Service)
		if !ok {
			return nil, fmt.Errorf("expected a Service, got %T", object)
		}
		kept := &corev1.Service{
			ObjectMeta: keepMeta(signer, &service.ObjectMeta, v1alpha1.LabelRole),
			Spec: corev1.ServiceSpec{
				Type:           service.Spec.Type,
				ClusterIP:      service.Spec.ClusterIP,
				Selector:       service.Spec.Selector,
				Ports:          service.Spec.Ports,
				IPFamilies:     service.Spec.IPFamilies,
				IPFamilyPolicy: service.Spec.IPFamilyPolicy,

				PublishNotReadyAddresses: service.Spec.PublishNotReadyAddresses,
				TrafficDistribution:      service.Spec.TrafficDistribution,
			},
		}
		// Defaults are not worth a string for each Service.
		if policy := service.Spec.InternalTrafficPolicy; policy != nil && *policy != corev1.ServiceInternalTrafficPolicyCluster {
			kept.Spec.InternalTrafficPolicy = policy
		}
		if policy := service.Spec.ExternalTrafficPolicy; policy != corev1.ServiceExternalTrafficPolicyCluster {
			kept.Spec.ExternalTrafficPolicy = policy
		}
		if affinity := service.Spec.SessionAffinity; affinity != corev1.ServiceAffinityNone {
			kept.Spec.SessionAffinity = affinity
		}
		for _, key := range compatibility.ServiceAnnotations() {
			if value, ok := service.Annotations[key]; ok {
				metav1.SetMetaDataAnnotation(&kept.ObjectMeta, key, value)
			}
		}
		return kept, nil
	}
}

// keepElastiService is the transform for ElastiServices. Each string is decoded
// on its own; those that many have in common are kept once.
func keepElastiService(object any) (any, error) {
	elastiService, ok := object.(*v1alpha1.ElastiService)
	if !ok {
		return nil, fmt.Errorf("expected an ElastiService, got %T", object)
	}
	kept := *elastiService
	kept.ManagedFields, kept.Labels, kept.OwnerReferences = nil, nil, nil
	kept.Annotations = ownAnnotations(kept.Annotations)
	// Resolvers alone act on these, and they may be most of the object. The controller
	// writes no spec.
	kept.Spec.ProbeResponse = nil
	if kept.Spec.Proxy != nil {
		proxy := *kept.Spec.Proxy
		proxy.Passive, proxy.AllowedClients = nil, nil
		kept.Spec.Proxy = &proxy
	}
	for _, text := range []*string{
		&kept.Kind, &kept.APIVersion, &kept.Namespace,
		&kept.Spec.ScaleTargetRef.APIVersion, &kept.Spec.ScaleTargetRef.Kind, (*string)(&kept.Status.Mode),
	} {
		*text = once(*text)
	}
	if managed := kept.Status.ManagedTarget; managed != nil {
		shared := *managed
		for _, text := range []*string{&shared.ScaleTargetRef.APIVersion, &shared.ScaleTargetRef.Kind, &shared.ScaleTargetRef.Name} {
			*text = once(*text)
		}
		kept.Status.ManagedTarget = &shared
	}
	kept.Finalizers = slices.Clone(kept.Finalizers)
	for i := range kept.Finalizers {
		kept.Finalizers[i] = once(kept.Finalizers[i])
	}
	kept.Status.Conditions = slices.Clone(kept.Status.Conditions)
	for i := range kept.Status.Conditions {
		condition := &kept.Status.Conditions[i]
		for _, text := range []*string{&condition.Type, (*string)(&condition.Status), &condition.Reason} {
			*text = once(*text)
		}
	}
	return &kept, nil
}

// ownAnnotations returns the annotations with which users tell the controller something.
// The others, such as what kubectl last applied, may be as large as the object.
func ownAnnotations(annotations map[string]string) map[string]string {
	var own map[string]string
	for _, key := range []string{v1alpha1.AnnotationDryRun, v1alpha1.AnnotationAcceptVolumeDeletion} {
		if value, ok := annotations[key]; ok {
			if own == nil {
				own = map[string]string{}
			}
			own[key] = value
		}
	}
	return own
}

// once returns the copy of a text that all objects share which have it.
func once(text string) string { return unique.Make(text).Value() }

// keepMeta returns the metadata that identifies an object, the given labels, and
// the annotations of this controller if it has written them.
func keepMeta(signer *signature.Signer, meta *metav1.ObjectMeta, labels ...string) metav1.ObjectMeta {
	kept := metav1.ObjectMeta{
		Namespace:         meta.Namespace,
		Name:              meta.Name,
		UID:               meta.UID,
		ResourceVersion:   meta.ResourceVersion,
		DeletionTimestamp: meta.DeletionTimestamp,
	}
	for _, key := range labels {
		if value, ok := meta.Labels[key]; ok {
			if kept.Labels == nil {
				kept.Labels = map[string]string{}
			}
			kept.Labels[key] = value
		}
	}
	if !signer.Made(meta) {
		return kept
	}
	for _, key := range []string{v1alpha1.AnnotationOwner, v1alpha1.AnnotationTarget, v1alpha1.AnnotationSignature} {
		if value, ok := meta.Annotations[key]; ok {
			if kept.Annotations == nil {
				kept.Annotations = map[string]string{}
			}
			kept.Annotations[key] = value
		}
	}
	return kept
}
