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
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestFieldOf(t *testing.T) {
	for _, test := range []struct {
		header v1alpha1.ClientAddressHeader
		client string
		want   string
	}{
		{"", "192.0.2.1", ": "},
		{v1alpha1.ClientAddressNone, "192.0.2.1", ": "},
		{v1alpha1.ClientAddressXForwardedFor, "192.0.2.1", "X-Forwarded-For: 192.0.2.1"},
		{v1alpha1.ClientAddressXForwardedFor, "::ffff:192.0.2.1", "X-Forwarded-For: 192.0.2.1"},
		{v1alpha1.ClientAddressXForwardedFor, "2001:db8::1", "X-Forwarded-For: 2001:db8::1"},
		{v1alpha1.ClientAddressXForwardedFor, "fe80::1%eth0", "X-Forwarded-For: fe80::1"},
		{v1alpha1.ClientAddressXForwardedFor, "", ": "},
		{v1alpha1.ClientAddressForwarded, "192.0.2.1", "Forwarded: for=192.0.2.1"},
		{v1alpha1.ClientAddressForwarded, "::ffff:192.0.2.1", "Forwarded: for=192.0.2.1"},
		{v1alpha1.ClientAddressForwarded, "2001:db8::1", `Forwarded: for="[2001:db8::1]"`},
		{v1alpha1.ClientAddressForwarded, "", "Forwarded: for=unknown"},
	} {
		client, _ := netip.ParseAddr(test.client)
		if field := FieldOf(test.header, client); field.Name+": "+field.Value != test.want {
			t.Errorf("%s of %q is %q, want %q", test.header, test.client, field.Name+": "+field.Value, test.want)
		}
	}
}

// The headers are those of the specification, byte by byte.
func TestProxyHeader(t *testing.T) {
	const prefix = "\x0D\x0A\x0D\x0A\x00\x0D\x0A\x51\x55\x49\x54\x0A\x21"
	for name, test := range map[string]struct{ client, to, want string }{
		"IPv4":               {"192.0.2.1:4660", "10.0.0.2:80", prefix + "\x11\x00\x0C\xC0\x00\x02\x01\x0A\x00\x00\x02\x12\x34\x00\x50"},
		"IPv4 as IPv6":       {"[::ffff:192.0.2.1]:4660", "[::ffff:10.0.0.2]:80", prefix + "\x11\x00\x0C\xC0\x00\x02\x01\x0A\x00\x00\x02\x12\x34\x00\x50"},
		"IPv6":               {"[2001:db8::1]:4660", "[2001:db8::2]:80", prefix + "\x21\x00\x24\x20\x01\x0D\xB8" + zeros(11) + "\x01\x20\x01\x0D\xB8" + zeros(11) + "\x02\x12\x34\x00\x50"},
		"of either family":   {"192.0.2.1:4660", "[2001:db8::2]:80", prefix + "\x21\x00\x24" + zeros(10) + "\xFF\xFF\xC0\x00\x02\x01\x20\x01\x0D\xB8" + zeros(11) + "\x02\x12\x34\x00\x50"},
		"of a link, in IPv6": {"[fe80::1%eth0]:4660", "[fe80::2%eth0]:80", prefix + "\x21\x00\x24\xFE\x80" + zeros(13) + "\x01\xFE\x80" + zeros(13) + "\x02\x12\x34\x00\x50"},
	} {
		t.Run(name, func(t *testing.T) {
			got := AppendProxyHeader(nil, netip.MustParseAddrPort(test.client), netip.MustParseAddrPort(test.to))
			if string(got) != test.want {
				t.Errorf("the header is\n%x, want\n%x", got, test.want)
			}
		})
	}
}

func zeros(n int) string { return string(make([]byte, n)) }

// Whatever the ends are, the length in the header is that of what follows.
func FuzzProxyHeader(f *testing.F) {
	f.Add([]byte{192, 0, 2, 1}, []byte{10, 0, 0, 2}, uint16(1), uint16(2))
	f.Add(make([]byte, 16), []byte{10, 0, 0, 2}, uint16(1), uint16(2))
	f.Fuzz(func(t *testing.T, from, to []byte, fromPort, toPort uint16) {
		client, ok := netip.AddrFromSlice(from)
		dest, alsoOK := netip.AddrFromSlice(to)
		if !ok || !alsoOK {
			return
		}
		got := AppendProxyHeader([]byte("before"), netip.AddrPortFrom(client, fromPort), netip.AddrPortFrom(dest, toPort))
		header, found := bytes.CutPrefix(got, []byte("before"+signature))
		if !found || len(header) < 4 || int(binary.BigEndian.Uint16(header[2:]))+4 != len(header) {
			t.Errorf("the header is %x", got)
		}
	})
}
