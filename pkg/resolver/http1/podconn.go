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

package http1

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// podConn is the connection to a pod that belongs to a connection of a client,
// and to no other: what a pod knows of its peer, and what it sends out of turn,
// stays with that client.
type podConn struct {
	tcp socket.Conn
	// lease is the last that it was used with.
	lease hold.Lease
	in    buffer
	// charge is what the connection takes, its buffer aside.
	charge memory.Charge
	// written counts what was written over its life, to compare with what the
	// pod's kernel acknowledged.
	written uint64
	// readDeadline is the one that is set.
	readDeadline time.Time
	// ends is true when the pod has said that it closes the connection. It is not
	// closed before, so that the state that a closed connection leaves behind for
	// a minute is the pod's, as it is without a resolver, and not one here.
	ends bool
}

const (
	// podConnBytes is what a connection to a pod takes with an exchange on it, the
	// stacks of what serves that included.
	podConnBytes = 8 << 10
	// restingPodBytes is what it takes while no request has come for a while.
	restingPodBytes = 2 << 10
)

// dialTCP is the default of Options.Dial.
func dialTCP(ctx context.Context, lease hold.Lease) (socket.Conn, error) {
	conn, err := lease.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return socket.NewTCP(conn)
}

// Write writes to the pod and counts.
func (p *podConn) Write(data []byte) (int, error) {
	n, err := p.tcp.Write(data)
	p.written += uint64(n)
	return n, err
}

// takes reports whether the connection can take a request with a lease: it leads
// to that pod, and the pod has said nothing since its last response. A pod that
// has closed it, or has sent more than was requested, gets no other request on it.
func (p *podConn) takes(lease hold.Lease) bool {
	return !p.ends && p.lease.Pod == lease.Pod && p.lease.Number == lease.Number && p.tcp.Idle()
}

// neverReceived reports whether it is certain that the pod received nothing of
// a request that was sent after the connection had carried before bytes, and
// whose response ended with err before it began. An idle connection that the pod
// closes just as it is used again ends like this: the pod finished writing
// without having acknowledged the request, so its kernel discarded it and no
// application saw it. A reset proves nothing: the pod may have read before it died.
func (p *podConn) neverReceived(before uint64, err error) bool {
	if p.written == before {
		return true
	}
	return errors.Is(err, io.EOF) && !p.receivedAfter(before)
}

// receivedAfter reports whether the kernel of the pod may have acknowledged bytes
// that were sent after the first before ones.
func (p *podConn) receivedAfter(before uint64) bool {
	acknowledged, err := p.tcp.Acknowledged()
	// The handshake may count as one byte.
	return err != nil || acknowledged > before+1
}
