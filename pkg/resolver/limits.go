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

import "time"

// Limits bound what clients can take of a resolver.
type Limits struct {
	// HeldBytes bounds the memory of everything that is held and open.
	HeldBytes int64
	// HeldBytesPerService bounds that for one service. 0: only HeldBytes does.
	HeldBytesPerService int64
	// HeaderBytes bounds the header section of a request.
	HeaderBytes int
	// Connections bounds the open connections of clients. 0: as many as the file
	// descriptors of the process allow.
	Connections int
	// ConnectionsPerService bounds them for one service. 0: only its share of
	// Connections does.
	ConnectionsPerService int
	// ConnectionsPerClient bounds them for one client address. 0: no bound.
	ConnectionsPerClient int
}

// Timeouts say how long clients are waited for.
type Timeouts struct {
	// Header bounds how long a client may take to send the header section of a
	// request.
	Header time.Duration
	// Body is how long a client may send nothing in the middle of the body of an
	// HTTP/1.x request. 0: for ever.
	Body time.Duration
	// Idle is how long an HTTP connection may be without a request.
	Idle time.Duration
	// Sniff is how long a client may say nothing before it counts as one that
	// lets the server speak first.
	Sniff time.Duration
	// Greeting is how long such a client may say nothing before it wakes the
	// target.
	Greeting time.Duration
}

// Drain says how clients are moved away from a resolver, or from a port of it.
type Drain struct {
	// HTTP2MoveDelay is how long after a target woke the clients that still
	// reach it through a resolver in HTTP/2 are told to reconnect.
	HTTP2MoveDelay time.Duration
	// ServeGrace is for how long after resolvers left the path of a service new
	// connections to its proxy ports are still served. 0: for ever.
	ServeGrace time.Duration
	// PathTimeout is how long a connection waits after that for resolvers to be in
	// the path again. Defaults to service.DefaultPathTimeout.
	PathTimeout time.Duration
	// PortLinger is how long a proxy port that is not needed any more goes on
	// accepting connections.
	PortLinger time.Duration
	// Delay is how long a resolver that is shutting down goes on accepting connections
	// after the last one came. It begins once no EndpointSlice lists the resolver:
	// kube-proxy and load balancers learn of that later.
	Delay time.Duration
	// Timeout is how long held requests and open connections may take after that.
	Timeout time.Duration
}
