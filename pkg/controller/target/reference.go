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

package target

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// Of returns the target of an ElastiService.
func Of(elastiService *v1alpha1.ElastiService) scaling.Target {
	return scaling.TargetOf(elastiService.Namespace, elastiService.Spec.ScaleTargetRef)
}

// ReferenceTo returns a reference to a target, for Events. uid is empty when it is not
// known.
func ReferenceTo(target scaling.Target, uid types.UID) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: target.APIVersion, Kind: target.Kind, Namespace: target.Namespace, Name: target.Name, UID: uid}
}

// MinReplicas returns the number of replicas that the target of an ElastiService
// is woken to.
func MinReplicas(elastiService *v1alpha1.ElastiService) int32 {
	if elastiService.Spec.MinTargetReplicas == nil {
		return v1alpha1.DefaultMinTargetReplicas
	}
	return *elastiService.Spec.MinTargetReplicas
}
