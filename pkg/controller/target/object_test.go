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
	changed := func(change func(*corev1.Container)) corev1.PodSpec {
		web := container(http.DeepCopy())
		change(&web)
		return corev1.PodSpec{Containers: []corev1.Container{web}}
	}
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
		{"counts after a delay", changed(func(c *corev1.Container) { c.ReadinessProbe.InitialDelaySeconds = 8 }), nil},
		{"counts after several successes", changed(func(c *corev1.Container) { c.ReadinessProbe.SuccessThreshold = 3 }), nil},
		{"counts after one success", changed(func(c *corev1.Container) { c.ReadinessProbe.SuccessThreshold = 1 }), &v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{httpAction}}},
		{"starts up first", changed(func(c *corev1.Container) { c.StartupProbe = &corev1.Probe{ProbeHandler: *http} }), nil},
		{"starts up first, without a readiness probe", changed(func(c *corev1.Container) {
			c.ReadinessProbe, c.StartupProbe = nil, &corev1.Probe{ProbeHandler: *http}
		}), nil},
		{"runs a command first", changed(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}}
		}), nil},
		{"runs a command first, without a readiness probe", changed(func(c *corev1.Container) {
			c.ReadinessProbe, c.Lifecycle = nil, &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}}
		}), nil},
		{"runs a command last", changed(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}}
		}), &v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{httpAction}}},
		{"HTTP/1.1 as it is", changed(func(c *corev1.Container) {
			c.ReadinessProbe.HTTPGet.Protocol = ptr.To(corev1.HTTPProtocolHTTP1)
		}), &v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{httpAction}}},
		{"HTTP/2", changed(func(c *corev1.Container) { c.ReadinessProbe.HTTPGet.Protocol = ptr.To(corev1.HTTPProtocolHTTP2) }), nil},
		{"gRPC without TLS", changed(func(c *corev1.Container) {
			c.ReadinessProbe.ProbeHandler = corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000, Mode: ptr.To(corev1.GRPCProbeModePlaintext)}}
		}), &v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{{TimeoutSeconds: 3, GRPC: &v1alpha1.GRPCAction{Port: 9000}}}}},
		{"gRPC over TLS", changed(func(c *corev1.Container) {
			c.ReadinessProbe.ProbeHandler = corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000, Mode: ptr.To(corev1.GRPCProbeModeTLS)}}
		}), nil},
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

// A field that a newer Kubernetes added may decide when a probe succeeds.
func TestProbesWithFieldsThatAreNotKnownAreLeftToTheKubelet(t *testing.T) {
	for _, test := range []struct {
		name string
		// path is where a field is added to the first container.
		path []string
		want bool
	}{
		{"none", nil, true},
		{"in the probe", []string{"readinessProbe", "jitterSeconds"}, false},
		{"in its action", []string{"readinessProbe", "httpGet", "method"}, false},
		{"another kind of action", []string{"readinessProbe", "file"}, false},
		{"elsewhere in the container", []string{"restartJitter"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			target := targettest.Deployment(namespace, "cart", 1, 1, 7)
			containers, _, err := unstructured.NestedSlice(target.Object, "spec", "template", "spec", "containers")
			if err != nil {
				t.Fatal(err)
			}
			if test.path != nil {
				if err := unstructured.SetNestedField(containers[0].(map[string]any), "x", test.path...); err != nil {
					t.Fatal(err)
				}
			}
			if err := unstructured.SetNestedSlice(target.Object, containers, "spec", "template", "spec", "containers"); err != nil {
				t.Fatal(err)
			}
			kept, err := keepTarget(schema.GroupResource{Group: "apps", Resource: "deployments"})(target)
			if err != nil {
				t.Fatal(err)
			}
			if got := kept.(*Object).Probes != nil; got != test.want {
				t.Errorf("probed by resolvers: %t, want %t", got, test.want)
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
	if target.ResourceVersion != "7" || *target.Scale != (Scale{Desired: 2, Existing: 1, Ready: 1}) || len(target.Probes.Probes) != 1 {
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
		"no field manager":  {nil, ""},
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
