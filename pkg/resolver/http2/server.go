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

// Package http2 forwards HTTP/2 with prior knowledge (h2c), gRPC included, one
// stream at a time, and holds streams for which there is no pod yet.
//
// Each stream is a request of its own: a connection of a gRPC client carries
// thousands of them over hours, so that holding, spreading over pods, limits
// and moving clients to the pods all have to be done by stream. That needs both
// sides to be spoken, header compression and flow control included, which
// golang.org/x/net/http2 does; carrying the bytes of a whole connection to one
// pod would be cheaper, and would pin the client to that pod. Bodies, trailers
// and interim responses pass in both directions as they come, so that all kinds
// of gRPC streaming work.
package http2

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/fallback"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

const (
	// maxStreams is how many streams a client may have open on a connection.
	maxStreams = 1000
	// clientPing is how long a client may be silent before it is asked whether
	// it is there, and pingTimeout how long it may take to say so: what it left
	// behind is noticed even when no packet tells.
	clientPing  = 30 * time.Second
	pingTimeout = 15 * time.Second
)

// Options are what a Server is made of.
type Options struct {
	// Pool keeps the connections to pods.
	Pool *Pool
	// Fallback answers requests that are not held although no pod can take them.
	Fallback *fallback.Policy
	// IdleTimeout is how long a connection may be without a stream.
	IdleTimeout time.Duration
	// MaxHeaderBytes bounds the header fields of a request.
	MaxHeaderBytes int
	// MoveDelay is how long after resolvers left the path of a service's traffic
	// clients are told to reconnect.
	MoveDelay time.Duration
	// Tasks runs what serves a connection. Optional.
	Tasks *task.Runner
}

// Server serves HTTP/2 connections. It is safe for concurrent use.
type Server struct {
	options Options
	http1   *http.Server
	http2   *http2.Server
	// draining is true when clients are to go elsewhere.
	draining atomic.Bool
}

// New returns a Server.
func New(options Options) (*Server, error) {
	s := &Server{
		options: options,
		http1:   &http.Server{MaxHeaderBytes: options.MaxHeaderBytes},
		http2: &http2.Server{
			MaxConcurrentStreams: maxStreams,
			IdleTimeout:          options.IdleTimeout,
			ReadIdleTimeout:      clientPing,
			PingTimeout:          pingTimeout,
		},
	}
	// Shutting the HTTP/1 server down, which itself serves nothing, tells the
	// connections of the HTTP/2 server to go away.
	if err := http2.ConfigureServer(s.http1, s.http2); err != nil {
		return nil, err
	}
	return s, nil
}

// Serve serves one connection of a client until it ends, and closes it. Each
// request goes to the service that find returns for it. The bytes of initial were already read from it. Whoever
// wants it to end sooner closes tcp.
func (s *Server) Serve(ctx context.Context, tcp *net.TCPConn, initial []byte, find destination.Find) {
	defer tcp.Close()
	s.options.Tasks.Run(nil, func() {
		s.http2.ServeConn(&prefixedConn{TCPConn: tcp, prefix: initial}, &http2.ServeConnOpts{
			Context:    ctx,
			BaseConfig: s.http1,
			Handler:    &handler{server: s, find: find},
		})
	})
}

// Drain tells every client to open no more streams and to go elsewhere.
func (s *Server) Drain() {
	// Connections that come from now on are told with their first answer.
	s.draining.Store(true)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	// It has no connections of its own to wait for.
	_ = s.http1.Shutdown(ctx)
}

// prefixedConn is a connection whose first bytes were already read.
type prefixedConn struct {
	*net.TCPConn
	prefix []byte
}

// Read returns the bytes that were read before, and then those of the connection.
func (c *prefixedConn) Read(p []byte) (int, error) {
	if len(c.prefix) == 0 {
		c.prefix = nil
		return c.TCPConn.Read(p)
	}
	n := copy(p, c.prefix)
	c.prefix = c.prefix[n:]
	return n, nil
}

// WriteTo is hidden, as it would pass the first bytes by.
func (c *prefixedConn) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{c})
}
