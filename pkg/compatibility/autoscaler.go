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

package compatibility

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// OfAutoscaler returns the findings about an autoscaler of a type.
func OfAutoscaler(autoscalerType string, autoscaler *unstructured.Unstructured) []Finding {
	switch autoscalerType {
	case scaling.AutoscalerKEDA:
		return OfScaledObject(autoscaler.GetName(), ScaledObjectOf(autoscaler))
	case scaling.AutoscalerHPA:
		return OfHorizontalPodAutoscaler(autoscaler.GetName(), number(autoscaler, "spec", "minReplicas"))
	default:
		return nil
	}
}

// ScaledObjectOf returns the parts of a ScaledObject of KEDA that findings are about.
func ScaledObjectOf(object *unstructured.Unstructured) *scaling.ScaledObject {
	return &scaling.ScaledObject{
		ObjectMeta: metav1.ObjectMeta{Annotations: object.GetAnnotations(), ManagedFields: object.GetManagedFields()},
		Spec: scaling.ScaledObjectSpec{
			MinReplicaCount:  number(object, "spec", "minReplicaCount"),
			IdleReplicaCount: number(object, "spec", "idleReplicaCount"),
		},
	}
}

// number returns a field, or nil when it is unset or no number.
func number(object *unstructured.Unstructured, path ...string) *int32 {
	value, ok, err := unstructured.NestedInt64(object.Object, path...)
	if !ok || err != nil {
		return nil
	}
	return ptr.To(int32(value))
}

// OfScaledObject returns the findings about a ScaledObject of KEDA.
func OfScaledObject(name string, scaledObject *scaling.ScaledObject) []Finding {
	finding := Finding{Condition: v1alpha1.ConditionAutoscalerCompatible}
	switch {
	case scaledObject.PinnedToZero():
		finding.Reason = v1alpha1.ReasonAutoscalerPausedAtZero
		finding.Message = fmt.Sprintf("ScaledObject %q is paused at 0 replicas by its annotation %s, so KEDA undoes each wake: remove the annotation", name, scaling.KEDAPausedReplicas)
	case scaledObject.ScalesToZero():
		finding.Reason = v1alpha1.ReasonAutoscalerScalesToZero
		finding.Message = fmt.Sprintf("ScaledObject %q scales the target to zero too, by KEDA's triggers: the annotation %s, which KEDA knows since 2.18, keeps it from that, and from every other scaling in, while this ElastiService has the target awake; set minReplicaCount to 1 and leave out idleReplicaCount, so that KEDA scales between 1 and the maximum and the ElastiService alone to zero", name, scaling.KEDAPausedScaleIn)
	default:
		return nil
	}
	return []Finding{finding}
}

// OfHorizontalPodAutoscaler returns the findings about a
// HorizontalPodAutoscaler. minReplicas is nil when the field is unset.
func OfHorizontalPodAutoscaler(name string, minReplicas *int32) []Finding {
	if minReplicas == nil || *minReplicas > 0 {
		return nil
	}
	return []Finding{{
		Condition: v1alpha1.ConditionAutoscalerCompatible,
		Reason:    v1alpha1.ReasonAutoscalerScalesToZero,
		Message:   fmt.Sprintf("HorizontalPodAutoscaler %q has minReplicas 0, so it scales the target to zero too, also right after a wake while its metrics are low, and it cannot be paused; traffic wakes the target again; set spec.minReplicas to 1: it then does nothing while the target has no replicas, and this ElastiService alone puts the target to sleep and wakes it", name),
	}}
}
