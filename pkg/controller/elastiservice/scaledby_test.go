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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// managed is the entry of a manager for a field, in the order of paths.
func managed(manager, subresource, at string, path ...string) map[string]any {
	fields := map[string]any{}
	innermost := fields
	for _, name := range path {
		next := map[string]any{}
		innermost["f:"+name] = next
		innermost = next
	}
	return map[string]any{"manager": manager, "subresource": subresource, "time": at, "fieldsV1": fields}
}

func TestWhoScaledATarget(t *testing.T) {
	for name, test := range map[string]struct {
		entries []any
		want    string
	}{
		"nobody":            {nil, ""},
		"the object":        {[]any{managed("kubectl", "", "2026-01-01T00:00:00Z", "spec", "replicas")}, "kubectl"},
		"the scale":         {[]any{managed("keda", "scale", "2026-01-01T00:00:00Z", "spec", "replicas")}, "keda"},
		"not the status":    {[]any{managed("kube-controller-manager", "status", "2026-01-01T00:00:00Z", "status", "replicas")}, ""},
		"not another field": {[]any{managed("kubectl", "", "2026-01-01T00:00:00Z", "spec", "template")}, ""},
		"the latest": {[]any{
			managed("first", "", "2026-01-01T00:00:00Z", "spec", "replicas"),
			managed("second", "scale", "2026-01-02T00:00:00Z", "spec", "replicas"),
			managed("third", "", "2026-01-01T12:00:00Z", "spec", "replicas"),
		}, "second"},
		"malformed": {[]any{"entry", map[string]any{"fieldsV1": "text"}}, ""},
	} {
		target := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"managedFields": test.entries}}}
		if got := scaledBy(target); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// scaleDeployment scales the Deployment "cart" as a manager.
func (c *cluster) scaleDeployment(replicas int32, manager string) {
	c.t.Helper()
	c.version++
	object := deployment("cart", replicas, replicas, c.version)
	if err := unstructured.SetNestedSlice(object.Object, []any{managed(manager, "scale", "2026-01-01T00:00:00Z", "spec", "replicas")}, "metadata", "managedFields"); err != nil {
		c.t.Fatal(err)
	}
	c.put(c.dynamic.Tracker(), object)
}

func TestScalingByOthersIsTold(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	told := make(chan string, 10)
	c.options.ScaledUp = func(_ types.NamespacedName, by string, _ time.Duration) { told <- by }
	c.setDeployment("cart", 2, 2)
	c.create(cartElastiService())
	c.start()
	eventuallyReplicas := func(want int32) {
		t.Helper()
		c.eventually(func() string {
			if c.elastiService("cart").Status.Replicas != want {
				return "the replicas in the status"
			}
			return ""
		})
	}
	eventuallyReplicas(2)
	c.scaleDeployment(0, scaling.FieldManager)
	eventuallyReplicas(0)
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.scaleDeployment(1, scaling.FieldManager)
	eventuallyReplicas(1)
	c.scaleDeployment(0, scaling.FieldManager)
	eventuallyReplicas(0)
	c.scaleDeployment(3, "their-operator")
	eventuallyReplicas(3)
	c.scaleDeployment(4, "their-operator")
	eventuallyReplicas(4)
	if len(told) != 1 {
		t.Fatalf("told %d times, want once", len(told))
	}
	if by := <-told; by != "their-operator" {
		t.Errorf("told of %s", by)
	}
}

// A watch that is far behind shows a sleep, and our wake from it, long after both:
// what tells whose wake it was is that the target had been seen to be up before.
func TestAWakeOfOursSeenLateIsStillOurs(t *testing.T) {
	up := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		memory memory
		want   time.Time
	}{
		"seen up, and the sleep late": {memory{upSince: up, zeroSince: up.Add(time.Minute)}, up},
		"seen up a moment ago":        {memory{upSince: up, zeroSince: up.Add(time.Second)}, up.Add(time.Second - observationDelay)},
		"never seen up":               {memory{zeroSince: up}, up.Add(-observationDelay)},
	} {
		if got := test.memory.asleepAfter(); !got.Equal(test.want) {
			t.Errorf("%s: put to sleep after %s, want %s", name, got, test.want)
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

// Nobody owns the replicas after a scaling from zero through the subresource.
func TestScalingThroughTheSubresourceIsTold(t *testing.T) {
	for name, test := range map[string]struct {
		foreign, othersWake bool
		want                string
	}{
		"ours":                            {false, false, ""},
		"not ours":                        {true, false, somebody},
		"maybe that of another replica's": {true, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.scaling.foreign, c.options.OthersWake = test.foreign, test.othersWake
			told := make(chan string, 10)
			c.options.ScaledUp = func(_ types.NamespacedName, by string, _ time.Duration) { told <- by }
			c.setDeployment("cart", 2, 2)
			c.create(cartElastiService())
			c.start()
			for _, replicas := range []int32{2, 0, 1} {
				c.setDeployment("cart", replicas, replicas)
				c.eventually(func() string {
					if c.elastiService("cart").Status.Replicas != replicas {
						return "the replicas in the status"
					}
					return ""
				})
			}
			close(told)
			if by := <-told; by != test.want {
				t.Errorf("told of %q, want %q", by, test.want)
			}
		})
	}
}
