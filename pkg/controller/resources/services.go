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

package resources

import (
	corev1 "k8s.io/api/core/v1"
)

// ServiceReference returns a reference to a Service, for Events.
func ServiceReference(service *corev1.Service) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: service.Namespace, Name: service.Name, UID: service.UID}
}

// Unsupported returns why resolvers cannot be in the path of a Service, and what
// to do about it. It is empty when they can be.
func Unsupported(service *corev1.Service) string {
	tcp := false
	for _, port := range service.Spec.Ports {
		tcp = tcp || IsTCP(&port)
	}
	switch {
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		return "it is of type ExternalName, whose traffic goes elsewhere: use another type"
	case service.Spec.ClusterIP == corev1.ClusterIPNone:
		return "it is headless, so clients connect to pods without it: give it a cluster IP"
	case len(service.Spec.Selector) == 0:
		return "it has no selector that tells its pods: give it one"
	case !tcp:
		return "it has no TCP port: only TCP traffic wakes the target"
	default:
		return ""
	}
}

// IsTCP reports whether a port of a Service is a TCP port, which is the default.
func IsTCP(port *corev1.ServicePort) bool {
	return port.Protocol == corev1.ProtocolTCP || port.Protocol == ""
}
