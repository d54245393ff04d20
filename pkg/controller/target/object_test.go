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
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target/targettest"
)

func TestReadinessProbes(t *testing.T) {
	container := func(probe *corev1.ProbeHandler) corev1.Container {
		found := corev1.Container{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}}
		if probe != nil {
			found.ReadinessProbe = &corev1.Probe{ProbeHandler: *probe, TimeoutSeconds: 3}
		}
		return found
	}
	http := &corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromString("web"), Scheme: "HTTPS", HTTPHeaders: []corev1.HTTPHeader{{Name: "Host", Value: "cart"}}}}
	httpAction := v1alpha1.ReadinessProbeAction{TimeoutSeconds: 3, HTTPGet: &v1alpha1.HTTPGetAction{Path: "/ready", Port: 8080, Scheme: "HTTPS", HTTPHeaders: []v1alpha1.HTTPHeader{{Name: "Host", Value: "cart"}}}}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := container(&corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000, Service: ptr.To("health")}})
	sidecar.RestartPolicy = &always
	for _, test := range []struct {
		name string
		pod  corev1.PodSpec
		want *v1alpha1.ReadinessProbes
	}{
		{"no probe", corev1.PodSpec{Containers: []corev1.Container{container(nil)}}, &v1alpha1.ReadinessProbes{}},
		{"HTTP with a named port", corev1.PodSpec{Containers: []corev1.Container{container(http)}}, &v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{httpAction}}},
		{"TCP and a container without", corev1.PodSpec{Containers: []corev1.Container{container(nil), container(&corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(5432)}})}},
			&v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{{TimeoutSeconds: 3, TCPSocket: &v1alpha1.TCPSocketAction{Port: 5432}}}}},
		{"gRPC in a sidecar", corev1.PodSpec{InitContainers: []corev1.Container{sidecar}, Containers: []corev1.Container{container(nil)}},
			&v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{{TimeoutSeconds: 3, GRPC: &v1alpha1.GRPCAction{Port: 9000, Service: "health"}}}}},
		{"exec", corev1.PodSpec{Containers: []corev1.Container{container(http), container(&corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}})}}, nil},
		{"another host", corev1.PodSpec{Containers: []corev1.Container{container(&corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "example.com", Port: intstr.FromInt32(80)}})}}, nil},
		{"unknown port", corev1.PodSpec{Containers: []corev1.Container{container(&corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("db")}})}}, nil},
		{"readiness gates", corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.com/ok"}}, Containers: []corev1.Container{container(http)}}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := readinessProbes(&test.pod)
			if (got == nil) != (test.want == nil) || !equality.Semantic.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestTargetsKeepNoPodTemplate(t *testing.T) {
	kept, err := keepTarget(schema.GroupResource{Group: "apps", Resource: "deployments"})(targettest.Deployment(namespace, "cart", 2, 1, 7))
	if err != nil {
		t.Fatal(err)
	}
	target := kept.(*Object)
	if target.ResourceVersion != "7" || *target.Scale != (Scale{Wanted: 2, Existing: 1, Ready: 1}) || len(target.Probes.Probes) != 1 {
		t.Errorf("kept %+v", target)
	}
	if again, err := keepTarget(schema.GroupResource{})(target); err != nil || again != kept {
		t.Errorf("the second time: %v, %v", again, err)
	}
}

func TestScaledBy(t *testing.T) {
	for name, test := range map[string]struct {
		entries []any
		want    string
	}{
		"nobody":            {nil, ""},
		"the object":        {[]any{targettest.ManagedFields("kubectl", "", "2026-01-01T00:00:00Z", "spec", "replicas")}, "kubectl"},
		"the scale":         {[]any{targettest.ManagedFields("keda", "scale", "2026-01-01T00:00:00Z", "spec", "replicas")}, "keda"},
		"not the status":    {[]any{targettest.ManagedFields("kube-controller-manager", "status", "2026-01-01T00:00:00Z", "status", "replicas")}, ""},
		"not another field": {[]any{targettest.ManagedFields("kubectl", "", "2026-01-01T00:00:00Z", "spec", "template")}, ""},
		"the latest": {[]any{
			targettest.ManagedFields("first", "", "2026-01-01T00:00:00Z", "spec", "replicas"),
			targettest.ManagedFields("second", "scale", "2026-01-02T00:00:00Z", "spec", "replicas"),
			targettest.ManagedFields("third", "", "2026-01-01T12:00:00Z", "spec", "replicas"),
		}, "second"},
		"malformed": {[]any{"entry", map[string]any{"fieldsV1": "text"}}, ""},
	} {
		target := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"managedFields": test.entries}}}
		if got := scaledBy(target); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

func TestRequestsOfATarget(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	container := func(cpu, memory string) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}}}
	}
	sidecar := container("100m", "10Mi")
	sidecar.RestartPolicy = &always
	pod := &corev1.PodSpec{
		InitContainers: []corev1.Container{sidecar, container("2", "1Mi")},
		Containers:     []corev1.Container{container("500m", "100Mi"), container("250m", "28Mi")},
		Overhead:       corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Mi")},
	}
	// The largest init container needs more CPU than the others together.
	if got, want := requestsOf(pod), (PodRequests{CPUCores: 2.1, MemoryBytes: 140 << 20}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := requestsOf(&corev1.PodSpec{}); got != (PodRequests{}) {
		t.Errorf("without requests: %+v", got)
	}
}
