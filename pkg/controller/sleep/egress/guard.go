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

// Package egress decides which servers the queries of triggers reach. The user who
// writes a trigger chooses a server, and this process may reach servers that the
// user cannot reach.
//
// It knows hosts and addresses, and nothing of queries. Begin with Guard.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// ErrNotAllowed means that a server may not be queried. It does not say which of the
// server's addresses is the reason.
var ErrNotAllowed = errors.New("the server is not allowed by --trigger-allowed-servers")

// keepAlive is the time between two probes of a connection that is idle.
const keepAlive = 30 * time.Second

var (
	// translated is the prefix of IPv4 addresses that a NAT64 gateway translates.
	translated = netip.MustParsePrefix("64:ff9b::/96")
	// thisNetwork reaches the own host on Linux.
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8")
	broadcast   = netip.AddrFrom4([4]byte{255, 255, 255, 255})
	// blocks are reached only when an entry of the list lies within them: loopback,
	// and the addresses, other than link-local ones, at which clouds serve metadata
	// and credentials of nodes.
	blocks = []netip.Prefix{
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("::1/128"),
		netip.MustParsePrefix("100.100.100.200/32"),
		netip.MustParsePrefix("168.63.129.16/32"),
		netip.MustParsePrefix("192.0.0.192/32"),
		netip.MustParsePrefix("fd00:ec2::254/128"),
		netip.MustParsePrefix("fd20:ce::254/128"),
	}
)

// Options configure a Guard.
type Options struct {
	// Allowed lists the servers that may be queried. Nil allows every address that
	// is not forbidden.
	Allowed *AllowList
	// Forbidden are servers, as host:port, that are never queried: the Kubernetes
	// API at the addresses by which clients know it.
	Forbidden []string
	// APIServers are the servers of the Kubernetes API. They are never queried
	// either. Nil means that they are not looked up.
	APIServers *APIServers
	// OwnPort is the port that this process serves at, on all its addresses. It
	// is never queried. Zero means that it serves nothing.
	OwnPort int
	// Resolver resolves the names of Forbidden. Defaults to that of the system.
	Resolver *net.Resolver
}

// Guard connects to the servers that may be queried. It is safe for concurrent
// use.
type Guard struct {
	options Options
}

// NewGuard returns a guard.
func NewGuard(options Options) *Guard {
	if options.Resolver == nil {
		options.Resolver = net.DefaultResolver
	}
	return &Guard{options: options}
}

// Restricted reports whether the list excludes servers that are not forbidden.
func (g *Guard) Restricted() bool { return g.options.Allowed.restricted() }

// AllowsAlias reports whether a server may be queried under another name than that
// in the trigger, as with the header Host: one address may serve many names. For a
// server that is allowed by its name, the other name has to be allowed as well. For a
// server that is allowed by its address, every name is.
func (g *Guard) AllowsAlias(server, alias string, port uint16) bool {
	return !g.Restricted() || !g.options.Allowed.allowsName(server, port) || g.options.Allowed.allowsName(alias, port)
}

// DialContext connects to a server. It checks the address that it connects to, so
// that a name cannot resolve to another one after the check. The error is
// ErrNotAllowed, ErrAPIServersUnknown, or that of the dialer.
func (g *Guard) DialContext(ctx context.Context, network, server string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return nil, fmt.Errorf("reading the address of the server: %w", err)
	}
	dialer := &net.Dialer{KeepAlive: keepAlive, ControlContext: func(ctx context.Context, _, address string, _ syscall.RawConn) error {
		return g.check(ctx, host, address)
	}}
	return dialer.DialContext(ctx, network, server)
}

// check returns ErrNotAllowed when the resolved address of a host may not be
// connected to, and ErrAPIServersUnknown when that is not known.
func (g *Guard) check(ctx context.Context, host, text string) error {
	parsed, err := netip.ParseAddrPort(text)
	if err != nil {
		return ErrNotAllowed
	}
	address, port := canonical(parsed.Addr()), parsed.Port()
	if isForbidden(address) || g.isOwn(address, port) || g.isHostAPI(ctx, address, port) {
		return ErrNotAllowed
	}
	if g.options.APIServers != nil {
		switch found, err := g.options.APIServers.has(ctx, address, port); {
		case err != nil:
			return err
		case found:
			return ErrNotAllowed
		}
	}
	for _, block := range blocks {
		if block.Contains(address) {
			if g.options.Allowed.names(block, address, port) {
				return nil
			}
			return ErrNotAllowed
		}
	}
	if !g.options.Allowed.allowsName(host, port) && !g.options.Allowed.allowsAddress(address, port) {
		return ErrNotAllowed
	}
	return nil
}

// isForbidden reports whether no list can allow an address.
func isForbidden(address netip.Addr) bool {
	return address.IsUnspecified() || address.IsLinkLocalUnicast() || address.IsMulticast() ||
		thisNetwork.Contains(address) || address == broadcast
}

// isOwn reports whether this process serves at an address.
func (g *Guard) isOwn(address netip.Addr, port uint16) bool {
	if g.options.OwnPort == 0 || int(port) != g.options.OwnPort {
		return false
	}
	if address.IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(own, func(candidate net.Addr) bool {
		known, ok := canonicalOf(candidate)
		return ok && known == address
	})
}

// isHostAPI reports whether a server of the Kubernetes API has an address. A server
// that cannot be resolved counts as having it.
func (g *Guard) isHostAPI(ctx context.Context, address netip.Addr, port uint16) bool {
	for _, server := range g.options.Forbidden {
		host, service, err := net.SplitHostPort(server)
		if err != nil || service != strconv.Itoa(int(port)) {
			continue
		}
		resolved, err := g.options.Resolver.LookupNetIP(ctx, "ip", host)
		if err != nil || slices.ContainsFunc(resolved, func(known netip.Addr) bool { return canonical(known) == address }) {
			return true
		}
	}
	return false
}
