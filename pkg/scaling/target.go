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

package scaling

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Target names an object that is scaled.
type Target struct {
	// Namespace is the namespace of the object.
	Namespace string
	// APIVersion is the group and version of the object, such as apps/v1.
	APIVersion string
	// Kind is the kind of the object, such as Deployment. Its resource name,
	// such as deployments, is understood too.
	Kind string
	// Name is the name of the object.
	Name string
}

// TargetOf returns the target that an ElastiService of the namespace refers to.
func TargetOf(namespace string, ref v1alpha1.ScaleTargetRef) Target {
	return Target{Namespace: namespace, APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name}
}

// NamespacedName returns the namespace and name of the target, which an object of another
// kind may have too.
func (t Target) NamespacedName() types.NamespacedName {
	return types.NamespacedName{Namespace: t.Namespace, Name: t.Name}
}

// String describes the target for messages, such as "Deployment shop/cart (apps/v1)".
func (t Target) String() string {
	return fmt.Sprintf("%s %s/%s (%s)", t.Kind, t.Namespace, t.Name, t.APIVersion)
}

// Types of Autoscaler.
const (
	// AutoscalerKEDA is a KEDA ScaledObject.
	AutoscalerKEDA = "keda"
	// AutoscalerHPA is a HorizontalPodAutoscaler.
	AutoscalerHPA = "hpa"
)

// Resources of the types of Autoscaler.
var (
	// ScaledObjects is the resource of AutoscalerKEDA.
	ScaledObjects = schema.GroupVersionResource{Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"}
	// HorizontalPodAutoscalers is the resource of AutoscalerHPA.
	HorizontalPodAutoscalers = schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}
)

// AutoscalerResource returns the resource of a type of Autoscaler, and whether the type
// is known.
func AutoscalerResource(autoscalerType string) (schema.GroupVersionResource, bool) {
	switch autoscalerType {
	case AutoscalerKEDA:
		return ScaledObjects, true
	case AutoscalerHPA:
		return HorizontalPodAutoscalers, true
	default:
		return schema.GroupVersionResource{}, false
	}
}

// Autoscaler names the autoscaler of a target, in the target's namespace. The
// zero value means that there is none.
type Autoscaler struct {
	// Type is AutoscalerKEDA or AutoscalerHPA.
	Type string
	// Name is the name of the ScaledObject or HorizontalPodAutoscaler.
	Name string
}

// AutoscalerOf returns the autoscaler that a spec names, which may be nil.
func AutoscalerOf(spec *v1alpha1.AutoscalerSpec) Autoscaler {
	if spec == nil {
		return Autoscaler{}
	}
	return Autoscaler{Type: string(spec.Type), Name: spec.Name}
}

// Result is the result of a wake.
type Result struct {
	// Replicas is the number of replicas in the spec of the target's scale.
	Replicas int32
	// Scaled is true when this wake changed the scale.
	Scaled bool
	// FromZero is true when that was from no replicas.
	FromZero bool
	// AutoscalerError says why the autoscaler could not be resumed or read. The
	// target was scaled all the same.
	AutoscalerError error
}
