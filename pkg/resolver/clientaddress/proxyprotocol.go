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

package clientaddress

import (
	"encoding/binary"
	"net/netip"
)

// The parts of a header of the PROXY protocol, version 2, as the specification of
// HAProxy has them.
const (
	signature = "\r\n\r\n\x00\r\nQUIT\n"
	// versionAndProxy is version 2, and the command PROXY: the connection is one
	// in the name of a client.
	versionAndProxy = 0x21
	// tcp4 and tcp6 are TCP over a family.
	tcp4, tcp6 = 0x11, 0x21
	// addresses4 and addresses6 are the lengths of two addresses and two ports.
	addresses4, addresses6 = 2*4 + 2*2, 2*16 + 2*2
)

// AppendProxyHeader appends the header of a connection from a client, whose other
// end was to. Addresses of IPv4 in the form of IPv6 are written as IPv4, unless only
// one of the two is.
func AppendProxyHeader(header []byte, client, to netip.AddrPort) []byte {
	from, dest := client.Addr().Unmap(), to.Addr().Unmap()
	header = append(append(header, signature...), versionAndProxy)
	if from.Is4() && dest.Is4() {
		header = binary.BigEndian.AppendUint16(append(header, tcp4), addresses4)
		header = append(append(header, from.AsSlice()...), dest.AsSlice()...)
	} else {
		from, dest := from.As16(), dest.As16()
		header = binary.BigEndian.AppendUint16(append(header, tcp6), addresses6)
		header = append(append(header, from[:]...), dest[:]...)
	}
	header = binary.BigEndian.AppendUint16(header, client.Port())
	return binary.BigEndian.AppendUint16(header, to.Port())
}
