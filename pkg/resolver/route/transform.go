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

package route

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// DropUnused is a transform for informers. It drops what resolvers do not use, as every
// resolver keeps the objects of all tenants.
func DropUnused(object any) (any, error) {
	switch object := object.(type) {
	case *v1alpha1.ElastiService:
		kept := *object
		kept.ObjectMeta = identityOfObject(&object.ObjectMeta)
		// Only the controller evaluates triggers.
		kept.Spec.Triggers = nil
		for i := range object.Spec.Triggers {
			kept.Spec.Triggers = append(kept.Spec.Triggers, v1alpha1.ScaleTrigger{Type: object.Spec.Triggers[i].Type})
		}
		return &kept, nil
	case *discoveryv1.EndpointSlice:
		kept := *object
		kept.ObjectMeta = identityOfObject(&object.ObjectMeta)
		if isOfItsService(&object.ObjectMeta) {
			kept.Labels = map[string]string{discoveryv1.LabelServiceName: object.Labels[discoveryv1.LabelServiceName]}
			// A list that is streamed is transformed twice.
			kept.OwnerReferences = []metav1.OwnerReference{*metav1.GetControllerOf(object)}
		}
		return &kept, nil
	}
	return object, nil
}

// isOfItsService reports whether the Service that an EndpointSlice is labeled with is its
// controller, as it is of those that the EndpointSlice controller of Kubernetes makes. A slice
// of a user that names a Service which does not exist as that is deleted by the garbage
// collector of Kubernetes; any other one belongs to no Service here.
func isOfItsService(slice *metav1.ObjectMeta) bool {
	controller := metav1.GetControllerOf(slice)
	return controller != nil && controller.APIVersion == "v1" && controller.Kind == "Service" && controller.Name == slice.Labels[discoveryv1.LabelServiceName]
}

// identityOfObject returns the metadata that says which object it is, and in which state.
func identityOfObject(meta *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:         meta.Namespace,
		Name:              meta.Name,
		UID:               meta.UID,
		ResourceVersion:   meta.ResourceVersion,
		Generation:        meta.Generation,
		CreationTimestamp: meta.CreationTimestamp,
		DeletionTimestamp: meta.DeletionTimestamp,
	}
}
