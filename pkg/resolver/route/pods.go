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
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
)

// podsOf returns the pods that the EndpointSlices of one private Service list. A pod is in
// one slice for each IP family, and may temporarily be in two of the same family.
func podsOf(endpointSlices []*discoveryv1.EndpointSlice) []endpoint.Description {
	var pods []endpoint.Description
	byID := map[string]int{}
	for _, slice := range endpointSlices {
		ports := portsOf(slice)
		for i := range slice.Endpoints {
			described := &slice.Endpoints[i]
			addresses := addressesOf(described)
			if len(addresses) == 0 {
				continue
			}
			id, name := identityOf(described)
			at, known := byID[id]
			if !known {
				at = len(pods)
				byID[id] = at
				pods = append(pods, endpoint.Description{ID: id, Name: name, Ports: map[string]uint16{}})
			}
			pod := &pods[at]
			for _, address := range addresses {
				if !slices.Contains(pod.Addresses, address) {
					pod.Addresses = append(pod.Addresses, address)
				}
			}
			for name, number := range ports {
				pod.Ports[name] = number
			}
			// Unset means ready.
			pod.Ready = pod.Ready || ptr.Deref(described.Conditions.Ready, true)
			pod.Terminating = pod.Terminating || ptr.Deref(described.Conditions.Terminating, false)
		}
	}
	for i := range pods {
		// The first address of a pod does not depend on the order of the slices.
		slices.SortFunc(pods[i].Addresses, netip.Addr.Compare)
	}
	return pods
}

func identityOf(described *discoveryv1.Endpoint) (id, name string) {
	if reference := described.TargetRef; reference != nil {
		if reference.UID != "" {
			return string(reference.UID), reference.Name
		}
		return reference.Name, reference.Name
	}
	return described.Addresses[0], described.Addresses[0]
}

// addressesOf returns the IP addresses of an endpoint; endpoints that are host
// names have none.
func addressesOf(described *discoveryv1.Endpoint) []netip.Addr {
	var addresses []netip.Addr
	// The meaning of further addresses of an endpoint is not specified by the API.
	for _, text := range described.Addresses[:min(1, len(described.Addresses))] {
		if address, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

func portsOf(slice *discoveryv1.EndpointSlice) map[string]uint16 {
	ports := map[string]uint16{}
	for _, port := range slice.Ports {
		if port.Port == nil || ptr.Deref(port.Protocol, corev1.ProtocolTCP) != corev1.ProtocolTCP {
			continue
		}
		ports[ptr.Deref(port.Name, "")] = uint16(*port.Port)
	}
	return ports
}
