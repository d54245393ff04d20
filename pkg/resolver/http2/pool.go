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

package http2

import (
	"context"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
)

const (
	// idleTimeout is how long a connection to a pod is kept without a stream.
	idleTimeout = 30 * time.Second
	// podPing is how long a pod may be silent on a connection with streams
	// before it is asked whether it is there.
	podPing = 15 * time.Second
	// evictInterval is how often connections that have ended are forgotten.
	evictInterval = 5 * time.Second
)

// poolKey tells connections apart. Two pods that have had the same address
// are different.
type poolKey struct {
	pod    *endpoint.Pod
	number uint16
}

// Pool keeps connections to pods; streams share them. It is safe for concurrent
// use.
type Pool struct {
	transport *http2.Transport

	mu    sync.Mutex
	conns map[poolKey][]*http2.ClientConn
}

// NewPool returns an empty pool.
func NewPool(maxHeaderBytes int) *Pool {
	return &Pool{
		transport: &http2.Transport{
			AllowHTTP:          true,
			DisableCompression: true,
			IdleConnTimeout:    idleTimeout,
			ReadIdleTimeout:    podPing,
			PingTimeout:        pingTimeout,
			MaxHeaderListSize:  uint32(maxHeaderBytes),
		},
		conns: map[poolKey][]*http2.ClientConn{},
	}
}

// Run forgets connections that have ended, until ctx ends, and then closes all.
func (p *Pool) Run(ctx context.Context) {
	ticker := time.NewTicker(evictInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			p.closeAll()
			return
		case <-ticker.C:
			p.evict()
		}
	}
}

func (p *Pool) evict() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, conns := range p.conns {
		kept := conns[:0]
		for _, conn := range conns {
			if state := conn.State(); !state.Closed && !state.Closing {
				kept = append(kept, conn)
			}
		}
		clear(conns[len(kept):])
		if len(kept) == 0 {
			delete(p.conns, key)
			continue
		}
		p.conns[key] = kept
	}
}

func (p *Pool) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, conns := range p.conns {
		for _, conn := range conns {
			// It closes the connection whatever it returns.
			_ = conn.Close()
		}
		delete(p.conns, key)
	}
}

// reserve returns a connection to the pod of a lease with room for one more
// stream, which is reserved. When it fails nothing was sent.
func (p *Pool) reserve(ctx context.Context, lease hold.Lease) (http.RoundTripper, error) {
	key := poolKey{lease.Pod, lease.Number}
	if conn := p.reserveOpen(key); conn != nil {
		return conn, nil
	}
	tcp, err := lease.Dial(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := p.transport.NewClientConn(tcp)
	if err != nil {
		tcp.Close()
		return nil, err
	}
	conn.ReserveNewRequest()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[key] = append(p.conns[key], conn)
	return conn, nil
}

func (p *Pool) reserveOpen(key poolKey) *http2.ClientConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns[key] {
		if conn.ReserveNewRequest() {
			return conn
		}
	}
	return nil
}
