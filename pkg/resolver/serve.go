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
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/portcheck"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/metrics"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/sniff"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/stream"
)

// portOwners opens the proxy ports of services. It implements route.Listeners.
type portOwners struct {
	resolver *Resolver
	serving  context.Context
	verifier *pathVerifier

	mu sync.Mutex
	// owners are the services that the connections to each open port belong to.
	owners map[int32]*atomic.Pointer[owner]
}

// newPortOwners returns portOwners whose connections are served until serving
// ends.
func newPortOwners(serving context.Context, r *Resolver) *portOwners {
	return &portOwners{
		resolver: r, serving: serving, owners: map[int32]*atomic.Pointer[owner]{},
		verifier: newPathVerifier(r.options.Kubernetes, r.options.Logger),
	}
}

// owner is a port of a service.
type owner struct {
	service     *service.Service
	port        service.Port
	expectation sniff.Expectation
	find        destination.Find
}

// otherProtocol returns what reports whether the first bytes of a stream show
// that it is none. Nil: it is one, whatever they are.
func (o *owner) otherProtocol() func([]byte) bool {
	if o.expectation == sniff.NoHTTP {
		return nil
	}
	return func(first []byte) bool { return sniff.Detect(first) != sniff.Stream }
}

// OpenPort implements route.Listeners.
func (p *portOwners) OpenPort(svc *service.Service, port service.Port) error {
	r := p.resolver
	if port.ProxyPort == r.options.SharedPort {
		r.hosts.Set(svc, port)
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
	err := r.listeners.Open(port.ProxyPort, func(conn *net.TCPConn) func() {
		o := current.Load()
		return r.admit(p.serving, conn, &connection{
			service: o.service, memory: o.service.Memory(), expectation: o.expectation,
			find: func(sniff.Protocol) destination.Find { return o.find },
			other: func(initial []byte) []byte {
				return r.streams.Serve(p.serving, conn, initial, stream.Destination{
					Service: o.service, Port: o.port, Greets: sniff.Greets(o.port.AppProtocol), Other: o.otherProtocol(),
					Spoken: func() { r.connections.spoke(conn) },
				})
			},
		})
	})
	if err != nil {
		return fmt.Errorf("port %d of Service %s: %w", port.Number, svc.PublicServiceKey(), err)
	}
	p.owners[port.ProxyPort] = current
	return nil
}

// ClosePort implements route.Listeners.
func (p *portOwners) ClosePort(svc *service.Service, port service.Port) {
	if port.ProxyPort == p.resolver.options.SharedPort {
		p.resolver.hosts.Remove(svc, port)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.owners, port.ProxyPort)
	p.resolver.listeners.Close(port.ProxyPort)
}

// state returns whether connections to a proxy port, or requests for the Service on
// the shared one, belong to the port of the ElastiService that a query is about, and
// are served now. They are from now on where the query says so and that is verified.
func (p *portOwners) state(q *portcheck.Query, port portcheck.Port) portcheck.State {
	svc := p.serviceOf(q, port)
	switch {
	case svc == nil:
		return portcheck.Unknown
	case q.Accept && !p.verifier.verify(p.serving, svc):
		return portcheck.Listening
	case q.Accept:
		svc.EnterPath()
	}
	if svc.InPath() {
		return portcheck.Accepting
	}
	return portcheck.Listening
}

// serviceOf returns the service that a query is about, if the port belongs to it.
func (p *portOwners) serviceOf(q *portcheck.Query, port portcheck.Port) *service.Service {
	if port.Proxy == p.resolver.options.SharedPort {
		if svc := p.resolver.hosts.Lookup(q.Service, port.Service); svc != nil && svc.UID == q.UID {
			return svc
		}
		return nil
	}
	p.mu.Lock()
	current := p.owners[port.Proxy]
	p.mu.Unlock()
	if current == nil {
		return nil
	}
	if o := current.Load(); o.service.UID == q.UID && o.port.Number == port.Service {
		return o.service
	}
	return nil
}

// openShared opens the port that several services share. Which service a request is
// for is known later: until then its connection is one of those that have not said
// so yet.
func (r *Resolver) openShared(serving context.Context) error {
	if r.options.SharedPort == 0 {
		return nil
	}
	return r.listeners.Open(r.options.SharedPort, func(conn *net.TCPConn) func() {
		return r.admit(serving, conn, &connection{
			memory: r.connections.undeclared.Branch(), expectation: sniff.AnyHTTP,
			find: func(protocol sniff.Protocol) destination.Find { return r.findShared(serving, conn, protocol) },
			other: func([]byte) []byte {
				conn.Close()
				return nil
			},
		})
	})
}

// findShared returns the function that finds the service of a request on the shared port. A
// client that may not reach the service now gets a local reply. A connection counts for the
// service of its latest request, whose limits apply to it.
//
// A connection of HTTP/2 is one to the service of its first request: no further one
// waits, as the others would wait with it.
func (r *Resolver) findShared(ctx context.Context, conn *net.TCPConn, protocol sniff.Protocol) destination.Find {
	client := clientOf(conn)
	// latest is the service that the connection is one to. Nil before the first.
	var latest *service.Service
	decided := false
	return func(field func(name string) []string) (*service.Service, service.Port, *localreply.Reply) {
		svc, port, local := r.hosts.Destination(field)
		switch {
		case svc == nil:
			return nil, service.Port{}, local
		case !svc.Config().AllowedClients.Allow(client):
			r.rejected(svc, client, metrics.RejectedAddress)
			return nil, service.Port{}, localreply.New(http.StatusForbidden, localreply.ReasonAddressNotAllowed,
				"spec.proxy.allowedClients of the elastiservice does not have the address of this client")
		case decided:
			return svc, port, nil
		}
		if svc != latest {
			if full := r.moveShared(conn, svc, latest == nil); full != nil {
				return nil, service.Port{}, full
			}
			latest = svc
		}
		if !svc.AwaitPath(ctx, left(conn)) {
			r.rejected(svc, client, metrics.RejectedServing)
			return nil, service.Port{}, localreply.New(http.StatusMisdirectedRequest, localreply.ReasonServing,
				"the target is awake, and resolvers are not in the path of its service; call the service")
		}
		decided = protocol == sniff.HTTP2
		return svc, port, nil
	}
}

// moveShared makes a connection to the shared port one to a service. When there is no
// room for it there, moveShared returns the reply to its request. The first one of a
// connection gets none: such a connection is reset, as on a port of the service.
func (r *Resolver) moveShared(conn *net.TCPConn, svc *service.Service, first bool) *localreply.Reply {
	err := r.connections.move(conn, svc.Memory())
	switch {
	case err == nil:
		return nil
	case memory.IsLimit(err):
		r.rejected(svc, clientOf(conn), metrics.RejectedMemory)
	case errors.Is(err, localreply.ErrTooManyConnections):
		r.rejected(svc, clientOf(conn), metrics.RejectedService)
	}
	if first {
		reset(conn)
	}
	return localreply.ForError(svc, err)
}

// rejected counts and logs a connection, or a request on the shared port, that was
// rejected. The Service is nil where it is not known.
func (r *Resolver) rejected(svc *service.Service, client netip.Addr, reason metrics.RejectionReason) {
	r.metrics.ConnectionRejected(reason)
	logger := r.options.Logger.V(4)
	if !logger.Enabled() {
		return
	}
	if svc != nil {
		logger = logger.WithValues("service", klog.KRef(svc.Namespace, svc.PublicService))
	}
	logger.Info("Rejected a connection", "client", client, "reason", reason)
}

// connection is how a connection of a client is served.
type connection struct {
	// service is the one that it belongs to. Nil on the shared port.
	service *service.Service
	// memory is the account of the service that it belongs to.
	memory      *memory.Account
	expectation sniff.Expectation
	// find returns what finds the destination of the requests of a protocol of HTTP.
	find func(sniff.Protocol) destination.Find
	// other serves what is not HTTP. It returns the first bytes when they are HTTP
	// after all: a client that was silent at first may only have been slow, or
	// early.
	other func(initial []byte) []byte
}

// admit admits one connection, and returns what serves it until it ends, or until a request
// on it is held. A connection for which there is no room, or that may not reach the service,
// is reset; nil is returned for it.
func (r *Resolver) admit(ctx context.Context, conn *net.TCPConn, c *connection) (serve func()) {
	// A client that is not allowed takes no room.
	if c.service != nil && !c.service.Config().AllowedClients.Allow(clientOf(conn)) {
		r.rejected(c.service, clientOf(conn), metrics.RejectedAddress)
		reset(conn)
		return nil
	}
	if rejection, ok := r.connections.add(conn, c.memory); !ok {
		r.rejected(c.service, clientOf(conn), rejection)
		reset(conn)
		return nil
	}
	r.liveness.Add(conn)
	return func() { r.serve(ctx, conn, c) }
}

// serve serves a connection that was admitted.
func (r *Resolver) serve(ctx context.Context, conn *net.TCPConn, c *connection) {
	ended := sync.OnceFunc(func() { r.connections.remove(conn) })
	r.tasks.Run(func() {
		// Only a reset says that the end was not meant.
		reset(conn)
		ended()
	}, func() {
		if c.service != nil && !c.service.AwaitPath(ctx, left(conn)) {
			r.rejected(c.service, clientOf(conn), metrics.RejectedServing)
			reset(conn)
			ended()
			return
		}
		r.serveProtocol(ctx, conn, c, ended)
	})
}

// left returns what reports whether a client has ended its connection.
func left(conn *net.TCPConn) func() bool { return func() bool { return socket.Closed(conn) } }

// reset closes a connection so that the client sees it break.
func reset(conn *net.TCPConn) {
	// It fails only when the connection is broken already.
	_ = conn.SetLinger(0)
	conn.Close()
}

// serveProtocol finds out what the client speaks, and serves that. Ended is
// called when the connection has ended, which may be after the return.
func (r *Resolver) serveProtocol(ctx context.Context, conn *net.TCPConn, c *connection, ended func()) {
	timeouts := sniff.Timeouts{Silence: r.options.Timeouts.Sniff, Headers: r.options.Timeouts.Header, Idle: r.options.Timeouts.Idle}
	var first []byte
	for {
		protocol, initial, err := sniff.Read(conn, first, c.expectation, timeouts)
		if err != nil {
			conn.Close()
			ended()
			return
		}
		if len(initial) > 0 {
			r.connections.spoke(conn)
		}
		switch protocol {
		case sniff.HTTP1:
			r.http1.Serve(ctx, conn, initial, c.memory, c.find(protocol), ended)
			return
		case sniff.HTTP2:
			r.http2.Serve(ctx, conn, initial, c.memory, c.find(protocol))
			ended()
			return
		}
		if first = c.other(initial); first == nil {
			ended()
			return
		}
	}
}
