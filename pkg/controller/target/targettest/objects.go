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

package targettest

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// ScaledObject returns a ScaledObject "cart" of KEDA for a Deployment, which it
// keeps at one replica at least.
func ScaledObject(namespace, target string, annotations map[string]string, paused bool) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
		"spec": map[string]any{"scaleTargetRef": map[string]any{"name": target}, "minReplicaCount": int64(1)},
		"status": map[string]any{"conditions": []any{
			map[string]any{"type": "Ready", "status": "True"},
			map[string]any{"type": "Paused", "status": map[bool]string{true: "True", false: "False"}[paused]},
		}},
	}}
	object.SetNamespace(namespace)
	object.SetName("cart")
	object.SetAnnotations(annotations)
	return object
}

// PausedAnnotations returns the annotations of a ScaledObject that is paused for a
// sleeping target.
func PausedAnnotations() map[string]string {
	return map[string]string{v1alpha1.AnnotationPausedAnnotations: "{}", "autoscaling.keda.sh/paused": "true"}
}

// ManagedFields returns the entry of a manager for a field in metadata.managedFields.
// The path says which field it is.
func ManagedFields(manager, subresource, at string, path ...string) map[string]any {
	fields := map[string]any{}
	innermost := fields
	for _, name := range path {
		next := map[string]any{}
		innermost["f:"+name] = next
		innermost = next
	}
	return map[string]any{"manager": manager, "subresource": subresource, "time": at, "fieldsV1": fields}
}

// Deployment returns a Deployment with these numbers of desired and of existing replicas. Its
// pods have an HTTP readiness probe.
func Deployment(namespace, name string, replicas, existing int32, version int) *unstructured.Unstructured {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), ResourceVersion: strconv.Itoa(version)},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name:           name,
				Ports:          []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}},
				ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromString("web")}}},
			}}}},
		},
		Status: appsv1.DeploymentStatus{Replicas: existing, ReadyReplicas: existing},
	})
	if err != nil {
		panic(err)
	}
	return &unstructured.Unstructured{Object: object}
}
