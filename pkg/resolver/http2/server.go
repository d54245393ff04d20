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

// Package http2 forwards HTTP/2 with prior knowledge (h2c), gRPC included, frame
// by frame, and holds the streams of a client for which there is no pod yet.
//
// A client's connection has one connection to one pod. While it has none, the
// resolver speaks for the server: it sends the preface, acknowledges SETTINGS,
// acknowledges PINGs and grants no more window than every connection begins with, so
// that what it has to keep is bounded and counted. Once a pod is chosen, what was
// kept is sent to it, and from then on frames pass in both directions as they
// are: flow control, keep-alive, GOAWAY, resets and retries are the affair of the
// two ends. Only the header blocks of the client are decoded and encoded again,
// because a stream with a local reply must not leave a hole in the pod's
// table.
//
// A direction has one goroutine that reads, and writes what it read to the other
// side before it reads on. The goroutine that reads from the client owns the
// connection and all decisions.
//
// It knows nothing of wakes and of how a pod becomes ready: it waits in the queue of the
// service (package hold). Begin with Server and conn.go.
package http2

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/fallback"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// Options are what a Server is made of.
type Options struct {
	// Fallback has the local replies to requests that are not held although no pod can take them.
	Fallback *fallback.Policy
	// IdleTimeout is how long a connection may be without a stream.
	IdleTimeout time.Duration
	// MaxHeaderBytes bounds the header fields of a request, as RFC 9113 §6.5.2
	// counts them.
	MaxHeaderBytes int
	// MoveDelay is how long after resolvers left the path of a service's traffic
	// clients are told to reconnect.
	MoveDelay time.Duration
	// Tasks runs the goroutines of a connection, so that a panic in one ends that
	// connection only. Optional.
	Tasks *task.Runner
	// Dial connects to the pod of a lease. Defaults to Lease.Dial.
	Dial func(ctx context.Context, lease hold.Lease) (net.Conn, error)
}

// Server serves HTTP/2 connections. It is safe for concurrent use.
type Server struct {
	options Options
	// draining is true when clients are to go elsewhere.
	draining atomic.Bool

	mu    sync.Mutex
	conns map[*conn]struct{}
}

// New returns a Server.
func New(options Options) *Server {
	if options.Dial == nil {
		options.Dial = func(ctx context.Context, lease hold.Lease) (net.Conn, error) {
			tcp, err := lease.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return tcp, nil
		}
	}
	return &Server{options: options, conns: map[*conn]struct{}{}}
}

// Serve serves one connection of a client until it ends, and closes it. Each
// request goes to the service that find returns for the first one; requests for
// another service get 421. The bytes of initial were already read from
// it. What it takes of memory besides what each connection does, and besides what is
// held, is counted in an account. It ends when the caller closes client.
func (s *Server) Serve(ctx context.Context, client net.Conn, initial []byte, account *memory.Account, find destination.Find) {
	c := newConn(s, client, initial, account, find)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	c.serve(ctx)
}

// Drain tells every client to open no more streams and to go elsewhere.
func (s *Server) Drain() {
	// Connections that come from now on get GOAWAY with their first stream.
	s.draining.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.events.drain()
	}
}
