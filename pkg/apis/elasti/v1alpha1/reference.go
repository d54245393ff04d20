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

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ReferenceTo returns a reference to an ElastiService, for Events. It names this
// version, whichever version the object has.
func ReferenceTo(elastiService metav1.Object) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion:      SchemeGroupVersion.String(),
		Kind:            "ElastiService",
		Namespace:       elastiService.GetNamespace(),
		Name:            elastiService.GetName(),
		UID:             elastiService.GetUID(),
		ResourceVersion: elastiService.GetResourceVersion(),
	}
}

// SliceServiceKey returns the key of the Service that an EndpointSlice belongs to, by its
// label.
func SliceServiceKey(slice metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: slice.GetNamespace(), Name: slice.GetLabels()[discoveryv1.LabelServiceName]}
}
