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

// Package http1 forwards HTTP/1.0 and HTTP/1.1, one request at a time, and
// holds requests for which there is no pod yet.
//
// It frames messages itself rather than through net/http: what matters of a
// header is found in one pass over the bytes as they were received, and these
// bytes, not a rewritten message, go to the pod and back. That is what makes it
// transparent (odd paths, header case and order, chunk extensions and trailers
// arrive as they were sent) and cheap. Framing is strict instead: a message
// that two readers could split differently is rejected.
//
// A connection of a client has at most one connection to a pod, which no other
// client ever uses.
//
// The way of a request through the files: server.go accepts a connection,
// conn.go reads headers, hold.go waits for a pod, exchange.go sends the request
// and the response, request.go and response.go carry the bodies, tunnel.go what
// comes after an upgrade. watch.go and probe.go find out whether the client is
// still there, sweep.go closes the connections to pods that are kept
// for nothing.
//
// It knows nothing of wakes and of how a pod becomes ready: it waits in the queue of the
// service (package hold). Begin with Server and conn.go.
package http1

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/fallback"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// drainIdleTimeout is how long a connection without a request is kept while the
// server drains. It is closed then; a client in the middle of a sequence of
// requests sends the next one sooner, whose response has "Connection: close".
const drainIdleTimeout = 5 * time.Second

// past is a time that every deadline has passed.
var past = time.Unix(1, 0)

// Options are what a Server is made of.
type Options struct {
	// Fallback has the local replies to requests that are not held although no pod can take them.
	Fallback *fallback.Policy
	// IdleTimeout is how long a connection may be without a request.
	IdleTimeout time.Duration
	// HeaderTimeout is how long a client may take to send the header of a request.
	HeaderTimeout time.Duration
	// BodyTimeout is how long a client may send nothing in the middle of a request
	// body. 0: for ever.
	BodyTimeout time.Duration
	// MaxHeaderBytes bounds the header of a message.
	MaxHeaderBytes int
	// Tasks runs what serves a connection. Optional.
	Tasks *task.Runner
	// Dial connects to the pod of a lease, as Lease.Dial does, which is the default.
	Dial func(ctx context.Context, lease hold.Lease) (socket.Conn, error)
}

// Server serves HTTP/1.x connections. It is safe for concurrent use.
type Server struct {
	options Options
	// closed counts the connections to pods that were closed here first.
	closed recently

	mu       sync.Mutex
	conns    map[*conn]struct{}
	draining bool
}

// New returns a Server. Run must run while it serves.
func New(options Options) *Server {
	if options.Dial == nil {
		options.Dial = dialTCP
	}
	return &Server{options: options, conns: map[*conn]struct{}{}}
}

// Serve serves one connection of a client until it ends, and closes it. Each
// request goes to the service that find returns for it. The bytes of initial
// were already read from it; Serve keeps them. What it takes of memory besides what
// each connection does is counted in an account. A caller that wants it to end sooner
// closes tcp.
//
// While a request is held, or none comes, Serve is not on the stack of any
// goroutine, so it may return before the connection has ended. Ended is called
// when it has, once.
func (s *Server) Serve(ctx context.Context, tcp *net.TCPConn, initial []byte, account *memory.Account, find destination.Find, ended func()) {
	conn, err := socket.NewTCP(tcp)
	if err != nil {
		// It is closed already.
		tcp.Close()
		ended()
		return
	}
	s.serve(ctx, conn, initial, account, find, ended)
}

func (s *Server) serve(ctx context.Context, tcp socket.Conn, initial []byte, account *memory.Account, find destination.Find, ended func()) {
	c := &conn{server: s, tcp: tcp, address: tcp.RemoteAddr().String(), find: find, ended: ended, account: account}
	c.fields = c.request.values
	c.in.charge = account.Charge()
	c.in.adopt(initial)
	s.add(c)
	s.options.Tasks.Run(c.abandon, func() { c.proceed(ctx, nextRequest) })
}

// Drain makes each connection end with its current or next request, or after a
// short time without one.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for c := range s.conns {
		c.drain()
	}
}

func (s *Server) add(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	c.draining.Store(s.draining)
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}
