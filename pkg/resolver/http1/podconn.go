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
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// podConn is a connection to a pod. One exchange at a time owns it.
type podConn struct {
	tcp *net.TCPConn
	raw syscall.RawConn
	key poolKey
	in  buffer
	// written counts what was written over its life, to compare with what the
	// pod's kernel acknowledged.
	written uint64
	// readDeadline is the one that is set.
	readDeadline time.Time
	// idleSince is set while it is in the pool.
	idleSince time.Time
}

func dialPod(ctx context.Context, lease hold.Lease) (*podConn, error) {
	tcp, err := lease.Dial(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		tcp.Close()
		return nil, fmt.Errorf("reaching the socket of a connection: %w", err)
	}
	return &podConn{tcp: tcp, raw: raw, key: poolKey{lease.Pod, lease.Number}}, nil
}

// Write writes to the pod and counts.
func (p *podConn) Write(data []byte) (int, error) {
	n, err := p.tcp.Write(data)
	p.written += uint64(n)
	return n, err
}

// close ends the connection.
func (p *podConn) close() {
	p.in.release()
	p.tcp.Close()
}

// neverReceived reports whether it is certain that the pod received nothing of
// a request that was sent after the connection had carried before bytes, and
// whose answer ended with err before it began. An idle connection that the pod
// closes just as it is used again ends like this: the pod finished writing
// without having acknowledged the request, so its kernel discarded it and no
// application saw it. A reset proves nothing: the pod may have read before it died.
func (p *podConn) neverReceived(before uint64, err error) bool {
	if p.written == before {
		return true
	}
	if !errors.Is(err, io.EOF) {
		return false
	}
	acknowledged, err := socket.Acknowledged(p.raw)
	// The handshake may count as one byte.
	return err == nil && acknowledged <= before+1
}
