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

// Package clientaddress tells pods the address of a client that a resolver stands
// in front of, as spec.proxy.clientAddress says: in a header field of HTTP, or in a
// header of the PROXY protocol.
//
// It knows nothing of connections: it makes the bytes. Begin with FieldOf.
package clientaddress

import (
	"net/netip"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Field is a header field and the value that is appended to it. The zero value is none.
type Field struct {
	// Name is the name of the field, and Lower the name in lower case.
	Name, Lower string
	// Value has the address of the client.
	Value string
}

// FieldOf returns the field for a client, or none where no header is configured.
func FieldOf(header v1alpha1.ClientAddressHeader, client netip.Addr) Field {
	client = client.Unmap().WithZone("")
	switch header {
	case v1alpha1.ClientAddressXForwardedFor:
		if client.IsValid() {
			return Field{Name: "X-Forwarded-For", Lower: "x-forwarded-for", Value: client.String()}
		}
	case v1alpha1.ClientAddressForwarded:
		return Field{Name: "Forwarded", Lower: "forwarded", Value: "for=" + node(client)}
	}
	return Field{}
}

// node returns an address as a node identifier of RFC 7239 §6.
func node(client netip.Addr) string {
	switch {
	case !client.IsValid():
		return "unknown"
	case client.Is6():
		return `"[` + client.String() + `]"`
	}
	return client.String()
}

// Of returns the address of a TCP connection's end, or the zero Addr.
func Of(address string) netip.Addr {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Addr{}
	}
	return parsed.Addr()
}
