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

// Package dial connects to pods, and distinguishes the faults of this machine from those
// of a pod.
//
// It does not know why it is that pod, which package endpoint has chosen. Begin with
// Dialer.
package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localfault"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// Timeout bounds one attempt to connect to one address. A longer attempt within a
// cluster has lost its first packet, and another attempt is faster than the
// retransmission of the kernel after a second.
const Timeout = 900 * time.Millisecond

// errNoAddress is the failure of a pod without addresses.
var errNoAddress = errors.New("it has no address")

// Options configure a Dialer.
type Options struct {
	// Connected is called with each new connection. Optional.
	Connected func(*net.TCPConn)
	// Faulted is called when a connection could not be made because of a fault of
	// this machine. Optional.
	Faulted func(*localfault.Error)
}

// Dialer connects to pods. It is safe for concurrent use. A nil Dialer connects
// without calling any function.
type Dialer struct {
	options Options
}

// New returns a Dialer.
func New(options Options) *Dialer { return &Dialer{options: options} }

// Pod connects to the first address of a pod that accepts. When it fails, nothing was
// sent; the error is a *localfault.Error when it does not concern the pod.
func (d *Dialer) Pod(ctx context.Context, addresses []netip.AddrPort) (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: Timeout, KeepAliveConfig: socket.KeepAlive()}
	failure := errNoAddress
	for i, address := range addresses {
		// Dialer.DialTCP would bind to a local port first, which is then in use for
		// all destinations.
		dialed, err := dialer.DialContext(ctx, "tcp", address.String())
		if err == nil {
			conn := dialed.(*net.TCPConn)
			if d != nil && d.options.Connected != nil {
				d.options.Connected(conn)
			}
			return conn, nil
		}
		err = localfault.Classify(err)
		if i == 0 || localfault.Of(err) == nil {
			// The failure of one address concerns the pod, also when this machine could
			// not try the others.
			failure = err
		}
	}
	if fault := localfault.Of(failure); fault != nil && d != nil && d.options.Faulted != nil {
		d.options.Faulted(fault)
	}
	return nil, fmt.Errorf("connecting to a pod: %w", failure)
}
