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

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/sniff"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/stream"
)

// ports opens the proxy ports of services.
type ports struct {
	resolver *Resolver
	serving  context.Context
}

// OpenPort implements route.Listeners.
func (p *ports) OpenPort(svc *service.Service, port service.Port) error {
	expectation := sniff.Expect(port.AppProtocol)
	err := p.resolver.listeners.Open(port.ProxyPort, func(conn *net.TCPConn) {
		p.resolver.serve(p.serving, conn, expectation, svc, port)
	})
	if err != nil {
		return fmt.Errorf("port %d of Service %s/%s: %w", port.Number, svc.Namespace, svc.PublicService, err)
	}
	return nil
}

// ClosePort implements route.Listeners.
func (p *ports) ClosePort(port service.Port) { p.resolver.listeners.Close(port.ProxyPort) }

// serve serves one connection until it ends. Where it goes is decided by the
// port that it came in on alone.
func (r *Resolver) serve(ctx context.Context, conn *net.TCPConn, expectation sniff.Expectation, svc *service.Service, port service.Port) {
	r.connections.add(conn)
	defer r.connections.remove(conn)
	timeouts := sniff.Timeouts{Silence: r.options.SniffTimeout, Head: r.options.HeaderTimeout}
	protocol, initial, err := sniff.Read(conn, expectation, timeouts, r.options.MaxHeaderBytes)
	if err != nil {
		conn.Close()
		return
	}
	switch protocol {
	case sniff.HTTP1:
		r.http1.Serve(ctx, conn, initial, svc, port)
	case sniff.HTTP2:
		r.http2.Serve(ctx, conn, initial, svc, port)
	default:
		stream.Serve(ctx, conn, initial, svc, port)
	}
}
