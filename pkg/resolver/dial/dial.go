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

// Package dial connects to pods.
package dial

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// Timeout bounds one attempt to connect to one address. Pods are a hop away:
// whatever takes longer has lost its first packet, and asking again is faster
// than the kernel, which repeats it after a second.
const Timeout = 900 * time.Millisecond

// dialer keeps idle connections alive often enough that a pod whose node is
// gone is noticed within a minute.
var dialer = net.Dialer{
	Timeout: Timeout,
	KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 4,
	},
	Control: socket.LimitUnacknowledged,
}

// Pod connects to the first address of a pod that accepts. When it fails,
// nothing was sent.
func Pod(ctx context.Context, addresses []netip.AddrPort) (*net.TCPConn, error) {
	var last error
	for _, address := range addresses {
		conn, err := dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, address)
		if err == nil {
			return conn, nil
		}
		last = err
	}
	if last == nil {
		return nil, fmt.Errorf("connecting to a pod: it has no address")
	}
	return nil, fmt.Errorf("connecting to a pod: %w", last)
}
