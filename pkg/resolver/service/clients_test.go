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

package service

import (
	"net/netip"
	"testing"
)

func TestAllowedClients(t *testing.T) {
	for name, test := range map[string]struct {
		networks []string
		address  string
		want     bool
	}{
		"no list":                             {nil, "192.0.2.1", true},
		"in it":                               {[]string{"10.0.0.0/8", "192.0.2.0/24"}, "192.0.2.1", true},
		"not in it":                           {[]string{"10.0.0.0/8"}, "192.0.2.1", false},
		"IPv6":                                {[]string{"2001:db8::/32"}, "2001:db8::1", true},
		"not in it, IPv6":                     {[]string{"2001:db8::/32"}, "2001:db9::1", false},
		"IPv4 as IPv6":                        {[]string{"10.0.0.0/8"}, "::ffff:10.1.2.3", true},
		"network of IPv4 as IPv6":             {[]string{"::ffff:10.0.0.0/104"}, "10.1.2.3", true},
		"all of IPv6 is no IPv4":              {[]string{"::/0"}, "10.1.2.3", false},
		"all of IPv4 is no IPv6":              {[]string{"0.0.0.0/0"}, "2001:db8::1", false},
		"of a link":                           {[]string{"fe80::/10"}, "fe80::1%eth0", true},
		"an invalid network allows no client": {[]string{"invalid"}, "10.1.2.3", false},
		"no address":                          {[]string{"10.0.0.0/8"}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := netip.ParseAddr(test.address)
			if got := NewClients(test.networks).Allow(address); got != test.want {
				t.Errorf("%s is allowed: %t, want %t", test.address, got, test.want)
			}
		})
	}
}

func FuzzAllowedClients(f *testing.F) {
	for _, seed := range [][2]string{{"10.0.0.0/8", "10.1.2.3"}, {"::ffff:10.0.0.0/104", "::ffff:10.1.2.3"}, {"fe80::/10", "fe80::1%eth0"}, {"::/0", ""}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, network, text string) {
		address, _ := netip.ParseAddr(text)
		clients := NewClients([]string{network})
		allowed := clients.Allow(address)
		if mapped := netip.AddrFrom16(address.As16()); address.Is4() && clients.Allow(mapped) != allowed {
			t.Errorf("%s and %s are not treated alike", address, mapped)
		}
		if _, err := netip.ParsePrefix(network); err != nil && allowed {
			t.Errorf("%q is no network, and allows %s", network, address)
		}
	})
}
