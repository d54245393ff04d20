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
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/signature"
)

// isPrivateService reports whether a Service is a private Service that a server of
// this installation made. Owners and targets in other objects do not count.
func isPrivateService(signer *signature.Signer, service *metav1.ObjectMeta) bool {
	return service.Labels[v1alpha1.LabelRole] == v1alpha1.RolePrivate && signer.Made(service)
}

// isResolverSlice reports whether an EndpointSlice is a resolver slice. That is one
// that a server of this installation made, and one that has the name and a mark of
// such: unsigned ones are left by earlier versions, and by users who edit labels.
// Nothing in an unsigned one is trusted; it is overwritten or deleted.
func isResolverSlice(signer *signature.Signer, slice *metav1.ObjectMeta) bool {
	if slice.Labels[v1alpha1.LabelRole] == v1alpha1.RoleResolver && signer.Made(slice) {
		return true
	}
	return resources.IsMarked(slice, v1alpha1.RoleResolver) && resources.IsResolverSliceName(slice.Name, slice.Labels[discoveryv1.LabelServiceName])
}

// isUnsigned reports whether a Service, of which the watch keeps the signature if
// it is right, has the marks of a private Service and was not made by a server of this
// installation, or only by an earlier version.
func isUnsigned(service *corev1.Service) bool {
	return service.Labels[v1alpha1.LabelRole] == v1alpha1.RolePrivate && service.Annotations[v1alpha1.AnnotationSignature] == ""
}
