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
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/compatibility"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/startup"
)

// kindsWithReplicas are the kinds whose spec.replicas is that of their scale, which
// report status.replicas and status.readyReplicas, and whose pods come from
// spec.template. For other kinds, the scale is read.
var kindsWithReplicas = map[schema.GroupResource]bool{
	{Group: "apps", Resource: "deployments"}:         true,
	{Group: "apps", Resource: "statefulsets"}:        true,
	{Group: "apps", Resource: "replicasets"}:         true,
	{Resource: "replicationcontrollers"}:             true,
	{Group: "argoproj.io", Resource: "rollouts"}:     true,
	{Group: "apps.kruise.io", Resource: "clonesets"}: true,
}

// Object is the part of a target that the cache keeps, without the pod template.
type Object struct {
	metav1.ObjectMeta
	// Resource is that of its kind.
	Resource schema.GroupResource
	// Scale is the scale according to the object, or nil when its kind is not one
	// of kindsWithReplicas.
	Scale *Scale
	// Probes are the probes by which a resolver checks whether its pods are ready.
	Probes *v1alpha1.ReadinessProbes
	// ScaledBy is the field manager that last set the number of replicas,
	// through the object or its scale. Empty when none is known.
	ScaledBy string
	// Traits are what findings about it depend on, or nil when it cannot be read.
	Traits *compatibility.TargetTraits
	// CreationProblem is why its pods are not created, as its conditions report it,
	// or nil.
	CreationProblem *startup.Problem
	// Requests is what one of its pods requests. Zero when that is not known.
	Requests PodRequests
}

// PodRequests is what a pod requests of its node.
type PodRequests struct {
	// CPUCores is in cores, MemoryBytes in bytes.
	CPUCores, MemoryBytes float64
}

// Scale is the scale of a target.
type Scale struct {
	// Desired is the number of replicas in the spec of the scale.
	Desired int32
	// Existing is the number of pods that there are, without those that are
	// terminating.
	Existing int32
	// Ready is the number of ready pods, or -1 when that is not known.
	Ready int32
}

func scaleOf(scale *autoscalingv1.Scale) *Scale {
	return &Scale{Desired: scale.Spec.Replicas, Existing: scale.Status.Replicas, Ready: -1}
}

// keepTarget returns the transform for the objects of a resource.
func keepTarget(resource schema.GroupResource) func(any) (any, error) {
	return func(object any) (any, error) {
		target, ok := object.(*unstructured.Unstructured)
		if !ok {
			return informers.AlreadyTransformed[*Object](object)
		}
		kept := &Object{Resource: resource, ObjectMeta: metav1.ObjectMeta{
			Namespace:       target.GetNamespace(),
			Name:            target.GetName(),
			UID:             target.GetUID(),
			ResourceVersion: target.GetResourceVersion(),
		}}
		kept.ScaledBy = scaledBy(target)
		kept.CreationProblem = startup.OfConditions(target)
		var pod *corev1.PodSpec
		if kindsWithReplicas[resource] {
			kept.Scale = &Scale{
				Desired:  intField(target, 1, "spec", "replicas"),
				Existing: intField(target, 0, "status", "replicas"),
				Ready:    intField(target, 0, "status", "readyReplicas"),
			}
			if pod = templateSpec(target); pod != nil {
				kept.Requests = requestsOf(pod)
				if knowsProbes(target) {
					kept.Probes = readinessProbes(pod)
				}
			}
		}
		kept.Traits = ptr.To(compatibility.TraitsOf(target, pod))
		return kept, nil
	}
}

// scaledBy returns the manager of spec.replicas, the latest one if there are
// several. It reads without copying, as it is called for every change of every target.
func scaledBy(target *unstructured.Unstructured) string {
	entries, _, _ := unstructured.NestedFieldNoCopy(target.Object, "metadata", "managedFields")
	list, _ := entries.([]any)
	manager, latest := "", ""
	for _, item := range list {
		entry, ok := item.(map[string]any)
		if !ok || entry["subresource"] == "status" {
			continue
		}
		if _, owned, _ := unstructured.NestedFieldNoCopy(entry, "fieldsV1", "f:spec", "f:replicas"); !owned {
			continue
		}
		// Times are in RFC 3339 and UTC, so that they sort as text.
		if at, _ := entry["time"].(string); manager == "" || at > latest {
			latest = at
			manager, _ = entry["manager"].(string)
		}
	}
	return manager
}

// templateSpec returns the spec of the pod template, or nil when the object has none
// that can be read, such as a Rollout that takes it from another object.
func templateSpec(target *unstructured.Unstructured) *corev1.PodSpec {
	template, ok, err := unstructured.NestedMap(target.Object, "spec", "template", "spec")
	if !ok || err != nil {
		return nil
	}
	if _, ok := template["containers"]; !ok {
		return nil
	}
	pod := &corev1.PodSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, pod); err != nil {
		return nil
	}
	return pod
}

// requestsOf returns what the scheduler of Kubernetes reserves for a pod.
func requestsOf(pod *corev1.PodSpec) PodRequests {
	requests := resource.PodRequests(&corev1.Pod{Spec: *pod}, resource.PodResourcesOptions{})
	return PodRequests{
		CPUCores:    requests.Cpu().AsApproximateFloat64(),
		MemoryBytes: requests.Memory().AsApproximateFloat64(),
	}
}

func intField(object *unstructured.Unstructured, missing int32, path ...string) int32 {
	value, ok, err := unstructured.NestedInt64(object.Object, path...)
	if !ok || err != nil {
		return missing
	}
	return int32(value)
}
