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

package resolver

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/sniff"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/stream"
)

// ports opens the proxy ports of services.
type ports struct {
	resolver *Resolver
	serving  context.Context

	mu sync.Mutex
	// owners are whom the connections to each open port belong to.
	owners map[int32]*atomic.Pointer[owner]
}

// newPorts returns ports whose connections are served until serving ends.
func newPorts(serving context.Context, r *Resolver) *ports {
	return &ports{resolver: r, serving: serving, owners: map[int32]*atomic.Pointer[owner]{}}
}

// owner is a port of a service.
type owner struct {
	service     *service.Service
	port        service.Port
	expectation sniff.Expectation
	find        destination.Find
}

// foreign returns how a stream finds out that it is none.
func (o *owner) foreign() func([]byte) bool {
	if o.expectation == sniff.NoHTTP {
		return nil
	}
	return func(words []byte) bool { return sniff.Detect(words) != sniff.Stream }
}

// OpenPort implements route.Listeners.
func (p *ports) OpenPort(svc *service.Service, port service.Port) error {
	r := p.resolver
	if port.ProxyPort == r.options.SharedPort {
		r.hosts.Add(svc, port)
		return nil
	}
	next := &owner{service: svc, port: port, expectation: sniff.Expect(port.AppProtocol), find: destination.Fixed(svc, port)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if current := p.owners[port.ProxyPort]; current != nil {
		// The listener stays: not even a moment without it would do.
		current.Store(next)
		return nil
	}
	current := &atomic.Pointer[owner]{}
	current.Store(next)
	err := r.listeners.Open(port.ProxyPort, func(conn *net.TCPConn) {
		o := current.Load()
		r.serve(p.serving, conn, o.expectation, o.find, func(initial []byte) []byte {
			return stream.Serve(p.serving, conn, initial, o.service, o.port, o.foreign())
		})
	})
	if err != nil {
		return fmt.Errorf("port %d of Service %s/%s: %w", port.Number, svc.Namespace, svc.PublicService, err)
	}
	p.owners[port.ProxyPort] = current
	return nil
}

// ClosePort implements route.Listeners.
func (p *ports) ClosePort(svc *service.Service, port service.Port) {
	if port.ProxyPort == p.resolver.options.SharedPort {
		p.resolver.hosts.Remove(svc, port)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	current := p.owners[port.ProxyPort]
	if current == nil || current.Load().service != svc || current.Load().port != port {
		return
	}
	delete(p.owners, port.ProxyPort)
	p.resolver.listeners.Close(port.ProxyPort)
}

// openShared opens the port that several services share.
func (r *Resolver) openShared(serving context.Context) error {
	if r.options.SharedPort == 0 {
		return nil
	}
	return r.listeners.Open(r.options.SharedPort, func(conn *net.TCPConn) {
		r.serve(serving, conn, sniff.AnyHTTP, r.hosts.Destination, func([]byte) []byte {
			conn.Close()
			return nil
		})
	})
}

// serve serves one connection until it ends, or until a request on it is held.
// What is not HTTP goes to other, which hands the first bytes back when they are
// HTTP after all: a client that was silent at first may only have been slow, or
// early.
func (r *Resolver) serve(ctx context.Context, conn *net.TCPConn, expectation sniff.Expectation, find destination.Find, other func(initial []byte) []byte) {
	r.connections.add(conn)
	ended := sync.OnceFunc(func() { r.connections.remove(conn) })
	r.tasks.Run(func() {
		// Only a reset says that the end was not meant. It fails only when the
		// connection is broken already.
		_ = conn.SetLinger(0)
		conn.Close()
		ended()
	}, func() { r.serveConn(ctx, conn, expectation, find, other, ended) })
}

func (r *Resolver) serveConn(ctx context.Context, conn *net.TCPConn, expectation sniff.Expectation, find destination.Find, other func(initial []byte) []byte, ended func()) {
	timeouts := sniff.Timeouts{Silence: r.options.Timeouts.Sniff, Head: r.options.Timeouts.Header}
	var words []byte
	for {
		protocol, initial, err := sniff.Read(conn, words, expectation, timeouts, r.options.Limits.HeaderBytes)
		if err != nil {
			conn.Close()
			ended()
			return
		}
		switch protocol {
		case sniff.HTTP1:
			r.http1.Serve(ctx, conn, initial, find, ended)
			return
		case sniff.HTTP2:
			r.http2.Serve(ctx, conn, initial, find)
			ended()
			return
		}
		if words = other(initial); words == nil {
			ended()
			return
		}
	}
}
