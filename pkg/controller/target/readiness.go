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
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// maxProbesBytes bounds what the readiness probes of a target hold, encoded. They become
// part of the status, which the server and every resolver keep for all tenants.
const maxProbesBytes = 4 << 10

// readinessProbes returns the probes by which a resolver checks whether a pod is ready:
// each must succeed once. It returns nil when they may succeed before the kubelet sets
// the pod ready, or cannot be run from outside of the pod: when a probe runs a command,
// goes to another host or an unknown port, or uses a protocol that resolvers do not
// support; when it counts only after a delay or several successes; when there are startup probes,
// hooks or readiness gates; and when the probes are too large for the status. Resolvers
// then wait until the pod is ready.
func readinessProbes(pod *corev1.PodSpec) *v1alpha1.ReadinessProbes {
	if len(pod.ReadinessGates) > 0 {
		return nil
	}
	probes := &v1alpha1.ReadinessProbes{}
	for _, containers := range [][]corev1.Container{sidecars(pod), pod.Containers} {
		for i := range containers {
			container := &containers[i]
			if container.StartupProbe != nil || container.Lifecycle != nil && container.Lifecycle.PostStart != nil {
				return nil
			}
			if container.ReadinessProbe == nil {
				continue
			}
			action := probeAction(container.ReadinessProbe, container.Ports)
			if action == nil {
				return nil
			}
			probes.Probes = append(probes.Probes, *action)
		}
	}
	if encoded, err := json.Marshal(probes); err != nil || len(encoded) > maxProbesBytes {
		return nil
	}
	return probes
}

// knowsProbes reports whether the readiness probes of a pod template have no
// field that this version does not know: such a field may decide when a probe
// succeeds.
func knowsProbes(target *unstructured.Unstructured) bool {
	for _, field := range []string{"initContainers", "containers"} {
		value, _, _ := unstructured.NestedFieldNoCopy(target.Object, "spec", "template", "spec", field)
		containers, _ := value.([]any)
		for _, item := range containers {
			container, _ := item.(map[string]any)
			probe, ok := container["readinessProbe"].(map[string]any)
			if ok && runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(probe, &corev1.Probe{}, true) != nil {
				return false
			}
		}
	}
	return true
}

// sidecars returns the init containers that keep running, whose probes count
// for the readiness of the pod.
func sidecars(pod *corev1.PodSpec) []corev1.Container {
	var found []corev1.Container
	for _, container := range pod.InitContainers {
		if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			found = append(found, container)
		}
	}
	return found
}

// probeAction returns what a resolver does to run a probe, or nil for one that only the
// kubelet can run, or that counts for the kubelet only some time after it succeeds.
func probeAction(probe *corev1.Probe, ports []corev1.ContainerPort) *v1alpha1.ReadinessProbeAction {
	if probe.InitialDelaySeconds > 0 || probe.SuccessThreshold > 1 {
		return nil
	}
	action := &v1alpha1.ReadinessProbeAction{TimeoutSeconds: max(probe.TimeoutSeconds, 1)}
	switch {
	case probe.HTTPGet != nil:
		port, ok := portNumber(probe.HTTPGet.Port, ports)
		scheme := probe.HTTPGet.Scheme
		if scheme == "" {
			scheme = corev1.URISchemeHTTP
		}
		if !ok || probe.HTTPGet.Host != "" || (scheme != corev1.URISchemeHTTP && scheme != corev1.URISchemeHTTPS) ||
			ptr.Deref(probe.HTTPGet.Protocol, corev1.HTTPProtocolHTTP1) != corev1.HTTPProtocolHTTP1 {
			return nil
		}
		action.HTTPGet = &v1alpha1.HTTPGetAction{Path: probe.HTTPGet.Path, Port: port, Scheme: string(scheme)}
		for _, header := range probe.HTTPGet.HTTPHeaders {
			action.HTTPGet.HTTPHeaders = append(action.HTTPGet.HTTPHeaders, v1alpha1.HTTPHeader{Name: header.Name, Value: header.Value})
		}
	case probe.TCPSocket != nil:
		port, ok := portNumber(probe.TCPSocket.Port, ports)
		if !ok || probe.TCPSocket.Host != "" {
			return nil
		}
		action.TCPSocket = &v1alpha1.TCPSocketAction{Port: port}
	case probe.GRPC != nil:
		if !isPort(probe.GRPC.Port) || ptr.Deref(probe.GRPC.Mode, corev1.GRPCProbeModePlaintext) != corev1.GRPCProbeModePlaintext {
			return nil
		}
		action.GRPC = &v1alpha1.GRPCAction{Port: probe.GRPC.Port}
		if probe.GRPC.Service != nil {
			action.GRPC.Service = *probe.GRPC.Service
		}
	default:
		return nil
	}
	return action
}

func portNumber(port intstr.IntOrString, ports []corev1.ContainerPort) (int32, bool) {
	if port.Type == intstr.Int {
		return port.IntVal, isPort(port.IntVal)
	}
	for _, candidate := range ports {
		if candidate.Name == port.StrVal {
			return candidate.ContainerPort, isPort(candidate.ContainerPort)
		}
	}
	return 0, false
}

// isPort reports whether a number is a valid port. The API server does not validate
// the pod templates of all kinds.
func isPort(number int32) bool { return number > 0 && number <= 65535 }
