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

package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// anyServer is the entry for every address that is not forbidden.
const anyServer = "*"

// AllowList is which servers triggers may query. Nil allows every address that
// is not forbidden.
type AllowList struct {
	entries []entry
}

// entry allows names or addresses, at one port or at all.
type entry struct {
	// any allows everything.
	any bool
	// name is a host name in lower case. With suffix, it is what names end in,
	// beginning with a dot.
	name   string
	suffix bool
	// prefix holds the addresses of an entry without a name.
	prefix netip.Prefix
	// port is 0 for all ports.
	port uint16
}

// Parse reads an allow list. Each entry is "*", a host name, "*.example.com",
// an IP address or a CIDR, and all but the first may have a port. Names are
// compared as triggers write them.
func Parse(texts []string) (*AllowList, error) {
	list := &AllowList{}
	var problems []error
	for _, text := range texts {
		parsed, err := parseEntry(text)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		list.entries = append(list.entries, parsed)
	}
	return list, errors.Join(problems...)
}

func parseEntry(text string) (entry, error) {
	if text == anyServer {
		return entry{any: true}, nil
	}
	host, port, err := splitPort(text)
	if err != nil {
		return entry{}, err
	}
	if prefix, err := parsePrefix(host); err == nil {
		return entry{prefix: prefix, port: port}, nil
	}
	name, suffix := strings.CutPrefix(normalizeName(host), "*.")
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 || endsInNumber(name) {
		return entry{}, fmt.Errorf("%q is neither a host name, *.example.com, an IP address nor a CIDR, with or without a port", text)
	}
	if suffix {
		name = "." + name
	}
	return entry{name: name, suffix: suffix, port: port}, nil
}

// splitPort cuts the port off an entry. IPv6 addresses have brackets when they
// have a port.
func splitPort(text string) (host string, port uint16, err error) {
	host = text
	digits, hasPort := "", false
	if inner, ok := strings.CutPrefix(text, "["); ok {
		host, digits, ok = strings.Cut(inner, "]")
		if !ok {
			return "", 0, fmt.Errorf("%q has no closing bracket", text)
		}
		if digits == "" {
			return host, 0, nil
		}
		digits, hasPort = strings.CutPrefix(digits, ":")
		if !hasPort {
			return "", 0, fmt.Errorf("%q has something else than a port behind the bracket", text)
		}
	} else if strings.Count(text, ":") == 1 {
		host, digits, hasPort = strings.Cut(text, ":")
	}
	if !hasPort {
		return host, 0, nil
	}
	parsed, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || parsed == 0 {
		return "", 0, fmt.Errorf("%q has no port from 1 to 65535 behind the colon", text)
	}
	return host, uint16(parsed), nil
}

// parsePrefix reads an address or a CIDR.
func parsePrefix(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, err
		}
		address = canonical(address)
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	if prefix.Addr().Is4In6() {
		return netip.Prefix{}, errors.New("write IPv4 addresses as such")
	}
	return prefix.Masked(), nil
}

// normalizeName returns a host name as names are compared.
func normalizeName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// endsInNumber reports whether a name is parsed as an IPv4 address, or may be a
// misspelled one.
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	return strings.Trim(last, "0123456789") == ""
}

// restricted reports whether there are addresses that the list does not allow,
// though they are not forbidden.
func (l *AllowList) restricted() bool {
	return l != nil && !slices.ContainsFunc(l.entries, func(e entry) bool { return e.any })
}

// allowsName reports whether the list allows a name, whatever its addresses.
func (l *AllowList) allowsName(name string, port uint16) bool {
	if !l.restricted() {
		return true
	}
	name = normalizeName(name)
	return slices.ContainsFunc(l.entries, func(e entry) bool {
		switch {
		case e.name == "" || !e.allowsPort(port):
			return false
		case e.suffix:
			return strings.HasSuffix(name, e.name) && len(name) > len(e.name)
		default:
			return name == e.name
		}
	})
}

// allowsAddress reports whether the list allows an address.
func (l *AllowList) allowsAddress(address netip.Addr, port uint16) bool {
	return !l.restricted() || slices.ContainsFunc(l.entries, func(e entry) bool {
		return e.prefix.IsValid() && e.prefix.Contains(address) && e.allowsPort(port)
	})
}

// names reports whether the list has an entry for an address that lies within
// a block: one for all of IPv4 does not say that loopback is meant.
func (l *AllowList) names(block netip.Prefix, address netip.Addr, port uint16) bool {
	return l != nil && slices.ContainsFunc(l.entries, func(e entry) bool {
		return e.prefix.IsValid() && e.prefix.Contains(address) && e.allowsPort(port) &&
			e.prefix.Bits() >= block.Bits() && block.Contains(e.prefix.Addr())
	})
}

func (e entry) allowsPort(port uint16) bool { return e.port == 0 || e.port == port }

// canonical returns an address in its only form: IPv4 that is written as IPv6
// is IPv4, also where a gateway translates it (RFC 6052), and zones do not count.
func canonical(address netip.Addr) netip.Addr {
	address = address.Unmap().WithZone("")
	if translated.Contains(address) {
		bytes := address.As16()
		return netip.AddrFrom4([4]byte(bytes[12:]))
	}
	return address
}

// canonicalOf returns the canonical address of an interface or a connection.
func canonicalOf(address net.Addr) (netip.Addr, bool) {
	prefix, err := netip.ParsePrefix(address.String())
	if err != nil {
		return netip.Addr{}, false
	}
	return canonical(prefix.Addr()), true
}
