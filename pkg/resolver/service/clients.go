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

import "net/netip"

// mappedBits is the prefix length of the IPv4-mapped IPv6 addresses.
const mappedBits = 96

// Clients are the networks that clients of a service may connect from. Nil allows all
// networks. They are safe for concurrent use.
type Clients struct{ networks []netip.Prefix }

// NewClients returns the Clients for networks in CIDR notation; no networks allow every
// client. Invalid networks allow none.
func NewClients(networks []string) *Clients {
	if len(networks) == 0 {
		return nil
	}
	c := &Clients{networks: make([]netip.Prefix, 0, len(networks))}
	for _, text := range networks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			continue
		}
		if network.Addr().Is4In6() && network.Bits() >= mappedBits {
			network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-mappedBits)
		}
		c.networks = append(c.networks, network)
	}
	return c
}

// Allow reports whether an address is in one of the networks.
func (c *Clients) Allow(address netip.Addr) bool {
	if c == nil {
		return true
	}
	address = address.Unmap().WithZone("")
	for _, network := range c.networks {
		if network.Contains(address) {
			return true
		}
	}
	return false
}
