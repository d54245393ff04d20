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

package environment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
)

// hostAddress returns an IPv4 address of this machine that is not a loopback one, because
// endpoints may not have loopback addresses. Packets to an address of the machine itself do
// not leave it.
func hostAddress() (string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("listing the network interfaces: %w", err)
	}
	for _, networkInterface := range interfaces {
		if networkInterface.Flags&net.FlagUp == 0 || networkInterface.Flags&net.FlagLoopback != 0 {
			continue
		}
		addresses, err := networkInterface.Addrs()
		if err != nil {
			return "", fmt.Errorf("listing the addresses of %s: %w", networkInterface.Name, err)
		}
		for _, address := range addresses {
			prefix, err := netip.ParsePrefix(address.String())
			if err == nil && prefix.Addr().Is4() && !prefix.Addr().IsLinkLocalUnicast() {
				return prefix.Addr().String(), nil
			}
		}
	}
	return "", errors.New("this machine has no IPv4 address besides loopback, which the endpoint of an API server cannot be: add one, such as with `ip link add elasti0 type dummy && ip address add 192.0.2.1/32 dev elasti0 && ip link set elasti0 up`")
}

// freePort returns an unused TCP port of address. It is outside of the range of
// ephemeral ports, because the kernel could assign such a port to another connection
// while the server is down.
func freePort(ctx context.Context, address string) (int, error) {
	const candidates, attempts = 4000, 100
	low := firstEphemeralPort()
	var listenConfig net.ListenConfig
	for range attempts {
		port := low - 1 - rand.IntN(candidates)
		listener, err := listenConfig.Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			return 0, fmt.Errorf("closing the listener on port %d: %w", port, err)
		}
		return port, nil
	}
	return 0, fmt.Errorf("no free port of %s found from %d to %d", address, low-candidates, low-1)
}

func firstEphemeralPort() int {
	const standard, lowest = 32768, 8192
	content, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return standard
	}
	var first, last int
	if _, err := fmt.Sscan(string(content), &first, &last); err != nil || first < lowest {
		return standard
	}
	return first
}
