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

// Package hostroute routes the requests on the shared HTTP port. That port is
// for Service ports that were not given a proxy port of their own; there, and
// only there, the host name that a client requests decides where a request is sent.
//
// It knows nothing of connections. Begin with Table.
package hostroute

import (
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Name is what a host name says.
type Name struct {
	// Service is the public Service.
	Service types.NamespacedName
	// Port is the Service port, 0 when the host name has none.
	Port int32
}

// Parse reads a host name of a Service: name.namespace, name.namespace.svc or
// name.namespace.svc.<cluster domain>, in any case, with or without a final dot
// and a port. What follows a slash is left out, as proxies that put the name in
// a header of their own may add a path.
func Parse(host, clusterDomain string) (Name, bool) {
	host, _, _ = strings.Cut(host, "/")
	host, port, ok := splitPort(host)
	if !ok {
		return Name{}, false
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if _, err := netip.ParseAddr(host); err == nil {
		return Name{}, false
	}
	labels := strings.SplitN(host, ".", 4)
	switch {
	case len(labels) < 2 || labels[0] == "" || labels[1] == "":
		return Name{}, false
	case len(labels) > 2 && labels[2] != "svc":
		return Name{}, false
	case len(labels) > 3 && labels[3] != clusterDomain:
		return Name{}, false
	}
	return Name{Service: types.NamespacedName{Namespace: labels[1], Name: labels[0]}, Port: port}, true
}

// splitPort splits a port off a host name. IPv6 addresses, which have more
// colons, are no host names.
func splitPort(host string) (name string, port int32, ok bool) {
	name, digits, found := strings.Cut(host, ":")
	if !found {
		return host, 0, true
	}
	number, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || number == 0 {
		return "", 0, false
	}
	return name, int32(number), true
}
