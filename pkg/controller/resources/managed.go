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
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// NameTakenError says that an object that is not managed by the controller has
// the name of one that is needed.
type NameTakenError struct{ Kind, Name string }

func (e *NameTakenError) Error() string {
	return fmt.Sprintf("%s %q exists and does not belong to elasti-apiserver: delete or rename it", e.Kind, e.Name)
}

// IsMarked reports whether an object carries a label or annotation of those that
// the controller makes for a role. Any client that may write the object may have
// put it there.
func IsMarked(meta *metav1.ObjectMeta, role string) bool {
	_, owned := meta.Annotations[v1alpha1.AnnotationOwner]
	return owned || meta.Labels[v1alpha1.LabelRole] == role || meta.Labels[discoveryv1.LabelManagedBy] == v1alpha1.SliceManagedBy
}

// OwnerOf returns the ElastiService that an object was made for. It is nil for an
// object that was not made for any.
func OwnerOf(meta *metav1.ObjectMeta) []types.NamespacedName {
	if name, ok := meta.Annotations[v1alpha1.AnnotationOwner]; ok {
		return []types.NamespacedName{{Namespace: meta.Namespace, Name: name}}
	}
	return nil
}

// PublicServiceKey returns the key of the public Service of an ElastiService.
func PublicServiceKey(elastiService *v1alpha1.ElastiService) types.NamespacedName {
	return types.NamespacedName{Namespace: elastiService.Namespace, Name: elastiService.Spec.Service}
}

// PrivateServiceKey returns the key of the private Service of a public Service.
func PrivateServiceKey(public types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: public.Namespace, Name: PrivateServiceName(public.Name)}
}

// AutoscalerKey returns the key of an autoscaler, which is in the namespace of its target
// and of the ElastiServices that name it.
func AutoscalerKey(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// KeyOf returns the namespace and name of an object.
func KeyOf(object metav1.Object) types.NamespacedName {
	return cache.MetaObjectToName(object).AsNamespacedName()
}
