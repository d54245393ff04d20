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

package route

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func sliceOf(port int32, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("http"), Port: ptr.To(port)},
			{Port: ptr.To(port + 1), Protocol: ptr.To(corev1.ProtocolTCP)},
			{Name: ptr.To("dns"), Port: ptr.To(port + 2), Protocol: ptr.To(corev1.ProtocolUDP)},
			{Name: ptr.To("every")},
		},
		Endpoints: endpoints,
	}
}

func endpointOf(uid, address string, ready, terminating *bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ready, Terminating: terminating}}
	if uid != "" {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "pod-" + uid, UID: types.UID(uid)}
	}
	return e
}

func TestPodsOf(t *testing.T) {
	yes, no := ptr.To(true), ptr.To(false)
	for name, test := range map[string]struct {
		slices []*discoveryv1.EndpointSlice
		want   string
	}{
		"none":    {nil, "[]"},
		"ready":   {[]*discoveryv1.EndpointSlice{sliceOf(80, endpointOf("a", "10.0.0.1", yes, no))}, "[a pod-a [10.0.0.1] map[:81 http:80] true false]"},
		"unset":   {[]*discoveryv1.EndpointSlice{sliceOf(80, endpointOf("a", "10.0.0.1", nil, nil))}, "[a pod-a [10.0.0.1] map[:81 http:80] true false]"},
		"leaving": {[]*discoveryv1.EndpointSlice{sliceOf(80, endpointOf("a", "10.0.0.1", no, yes))}, "[a pod-a [10.0.0.1] map[:81 http:80] false true]"},
		"two families, in any order": {[]*discoveryv1.EndpointSlice{sliceOf(80, endpointOf("a", "fd00::1", yes, no)), sliceOf(80, endpointOf("a", "10.0.0.1", yes, no))},
			"[a pod-a [10.0.0.1 fd00::1] map[:81 http:80] true false]"},
		"in two slices for a moment": {[]*discoveryv1.EndpointSlice{sliceOf(80, endpointOf("a", "10.0.0.1", no, no)), sliceOf(80, endpointOf("a", "10.0.0.1", yes, no))},
			"[a pod-a [10.0.0.1] map[:81 http:80] true false]"},
		"no pod behind it": {[]*discoveryv1.EndpointSlice{sliceOf(80, endpointOf("", "10.0.0.9", yes, no))}, "[10.0.0.9 10.0.0.9 [10.0.0.9] map[:81 http:80] true false]"},
		"a host name":      {[]*discoveryv1.EndpointSlice{sliceOf(80, endpointOf("a", "example.com", yes, no))}, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			got := "[]"
			for _, pod := range podsOf(test.slices) {
				got = fmt.Sprintf("[%s %s %v %v %t %t]", pod.ID, pod.Name, pod.Addresses, pod.Ports, pod.Ready, pod.Terminating)
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
