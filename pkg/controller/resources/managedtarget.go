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
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// ManagedTarget is what private Services and resolver slices record of their
// ElastiService: the target and autoscaler that are to be restored when the
// ElastiService names others or does not exist any more. The status of the
// ElastiService records the same.
type ManagedTarget struct {
	Target            v1alpha1.ScaleTargetRef  `json:"target"`
	Autoscaler        *v1alpha1.AutoscalerSpec `json:"autoscaler,omitempty"`
	MinTargetReplicas *int32                   `json:"minTargetReplicas,omitempty"`
}

// ManagedTargetOf returns the target that an ElastiService names.
func ManagedTargetOf(elastiService *v1alpha1.ElastiService) *ManagedTarget {
	return &ManagedTarget{
		Target:            elastiService.Spec.ScaleTargetRef,
		Autoscaler:        elastiService.Spec.Autoscaler,
		MinTargetReplicas: elastiService.Spec.MinTargetReplicas,
	}
}

// ManagedTargetInStatus returns the target that a status records, nil when it
// records none.
func ManagedTargetInStatus(status *v1alpha1.ElastiServiceStatus) *ManagedTarget {
	if status.ManagedTarget == nil {
		return nil
	}
	return &ManagedTarget{
		Target:            status.ManagedTarget.ScaleTargetRef,
		Autoscaler:        status.ManagedTarget.Autoscaler,
		MinTargetReplicas: status.ManagedTarget.MinTargetReplicas,
	}
}

// ManagedTargetIn returns the target that an object records. It is nil when the
// object records none, as resolver slices of earlier versions, or none that can be
// read.
func ManagedTargetIn(meta *metav1.ObjectMeta) *ManagedTarget {
	managed := &ManagedTarget{}
	if err := json.Unmarshal([]byte(meta.Annotations[v1alpha1.AnnotationTarget]), managed); err != nil {
		return nil
	}
	return managed
}

// String returns the value of the annotation that records the target.
func (m *ManagedTarget) String() string {
	// Strings and a number are always encoded.
	encoded, _ := json.Marshal(m)
	return string(encoded)
}

// Recorded returns what the status records.
func (m *ManagedTarget) Recorded() *v1alpha1.ManagedTarget {
	return &v1alpha1.ManagedTarget{ScaleTargetRef: m.Target, Autoscaler: m.Autoscaler, MinTargetReplicas: m.MinTargetReplicas}
}

// MinReplicas returns the number of replicas that the target is woken to.
func (m *ManagedTarget) MinReplicas() int32 {
	return ptr.Deref(m.MinTargetReplicas, v1alpha1.DefaultMinTargetReplicas)
}
