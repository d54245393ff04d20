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
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// TargetTraits are the properties of a target that findings are about.
type TargetTraits struct {
	// NoReadinessProbe is true when nothing tells Kubernetes when its pods
	// accept connections: they are ready as soon as they run.
	NoReadinessProbe bool
	// DeletesVolumes is true when scaling it down deletes
	// PersistentVolumeClaims, and the data with them.
	DeletesVolumes bool
}

// TraitsOf returns the properties of a target. pod is the template of its pods, or nil
// when its kind has none that is known.
func TraitsOf(target *unstructured.Unstructured, pod *corev1.PodSpec) TargetTraits {
	return TargetTraits{
		NoReadinessProbe: pod != nil && !hasReadiness(pod),
		DeletesVolumes:   deletesVolumes(target),
	}
}

// AcceptsVolumeDeletion reports whether the annotations of an ElastiService
// accept that the volumes of its target are deleted when it is put to sleep.
func AcceptsVolumeDeletion(annotations map[string]string) bool {
	return annotations[v1alpha1.AnnotationAcceptVolumeDeletion] == "true"
}

// kindsThatKeepVolumes are the kinds whose volumes are not deleted when they are scaled
// down, whatever is in their objects.
var kindsThatKeepVolumes = map[schema.GroupResource]bool{
	{Group: "apps", Resource: "deployments"}:     true,
	{Group: "apps", Resource: "replicasets"}:     true,
	{Resource: "replicationcontrollers"}:         true,
	{Group: "argoproj.io", Resource: "rollouts"}: true,
}

// OfTarget returns the findings about the target that an ElastiService with
// these annotations names. resource is that of its kind; traits is nil when the target
// cannot be read.
func OfTarget(resource schema.GroupResource, kind, name string, annotations map[string]string, traits *TargetTraits) []Finding {
	finding := func(reason, message string) Finding {
		return Finding{Condition: v1alpha1.ConditionTargetCompatible, Reason: reason, Message: fmt.Sprintf("%s %q %s", kind, name, message)}
	}
	var findings []Finding
	switch {
	case AcceptsVolumeDeletion(annotations):
	case traits == nil && !kindsThatKeepVolumes[resource]:
		unknown := finding(v1alpha1.ReasonVolumePolicyUnknown, fmt.Sprintf("is not put to sleep, because it cannot be read whether that would delete its volumes: allow elasti-apiserver to get, list and watch %s, or accept a loss with the annotation %s=true on the ElastiService", resource, v1alpha1.AnnotationAcceptVolumeDeletion))
		unknown.KeepsAwake = true
		findings = append(findings, unknown)
	case traits != nil && traits.DeletesVolumes:
		deletes := finding(v1alpha1.ReasonVolumesDeletedAtZero, "is not put to sleep, because its persistentVolumeClaimRetentionPolicy.whenScaled is Delete, so that its volumes would be deleted with their data: set it to Retain, or accept the loss with the annotation "+v1alpha1.AnnotationAcceptVolumeDeletion+"=true on the ElastiService")
		deletes.KeepsAwake = true
		findings = append(findings, deletes)
	}
	if traits != nil && traits.NoReadinessProbe {
		findings = append(findings, finding(v1alpha1.ReasonNoReadinessProbe, "makes pods without a readiness or startup probe: Kubernetes calls them ready as soon as they run, and new connections are refused until they listen; give the container that serves a readinessProbe"))
	}
	return findings
}

// hasReadiness reports whether something tells Kubernetes when pods accept
// connections. A pod whose startup probe has not succeeded is not ready.
func hasReadiness(pod *corev1.PodSpec) bool {
	if len(pod.ReadinessGates) > 0 {
		return true
	}
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range containers {
			if containers[i].ReadinessProbe != nil || containers[i].StartupProbe != nil {
				return true
			}
		}
	}
	return false
}

// deletesVolumes reports whether scaling a target down deletes its volumes. The
// field is that of StatefulSets, which kinds of operators have too.
func deletesVolumes(target *unstructured.Unstructured) bool {
	policy, _, _ := unstructured.NestedString(target.Object, "spec", "persistentVolumeClaimRetentionPolicy", "whenScaled")
	if policy != "Delete" {
		return false
	}
	if target.GetKind() == "StatefulSet" && strings.HasPrefix(target.GetAPIVersion(), "apps/") {
		templates, _, _ := unstructured.NestedFieldNoCopy(target.Object, "spec", "volumeClaimTemplates")
		list, _ := templates.([]any)
		return len(list) > 0
	}
	return true
}
