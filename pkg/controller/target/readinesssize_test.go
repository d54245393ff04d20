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
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A tenant writes probes as large as a pod template takes, and the status of the
// ElastiService has them too.
func TestLargeProbesAreLeftToTheKubelet(t *testing.T) {
	container := func(path string, headers ...corev1.HTTPHeader) corev1.Container {
		return corev1.Container{ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(8080), HTTPHeaders: headers},
		}}}
	}
	many := func(count int) []corev1.Container {
		containers := make([]corev1.Container, count)
		for i := range containers {
			containers[i] = container("/ready")
		}
		return containers
	}
	large := strings.Repeat("x", 4<<10)
	for name, test := range map[string]struct {
		containers []corev1.Container
		want       bool
	}{
		"a long path":     {[]corev1.Container{container("/" + strings.Repeat("x", 2<<10))}, true},
		"many containers": {many(16), true},

		"a path that is too long":        {[]corev1.Container{container("/" + large)}, false},
		"a header that is too long":      {[]corev1.Container{container("/", corev1.HTTPHeader{Name: "Cookie", Value: large})}, false},
		"the paths together":             {[]corev1.Container{container("/" + large[:3<<10]), container("/" + large[:3<<10])}, false},
		"more containers than there are": {many(1000), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := readinessProbes(&corev1.PodSpec{Containers: test.containers}); (got != nil) != test.want {
				t.Errorf("resolvers probe pods themselves: %t, want %t", got != nil, test.want)
			}
		})
	}
}
