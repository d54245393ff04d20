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
	"sync"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

const (
	// maxIdleTime is how long a connection to a pod is kept unused. It is less
	// than any server's own limit (gunicorn's two seconds are the shortest in
	// wide use), so that pods hardly ever close one just as it is used again.
	maxIdleTime = time.Second
	// maxIdle bounds the unused connections of the whole process. Further ones
	// are closed after their first request.
	maxIdle = 8192
)

// poolKey tells connections apart. Two pods that have had the same address
// are different.
type poolKey struct {
	pod    *endpoint.Pod
	number uint16
}

// Pool keeps connections to pods between requests. It is safe for concurrent
// use.
type Pool struct {
	mu     sync.Mutex
	idle   map[poolKey][]*podConn
	count  int
	closed bool
}

// NewPool returns an empty pool.
func NewPool() *Pool {
	return &Pool{idle: map[poolKey][]*podConn{}}
}

// Run closes connections that were unused for too long, until ctx ends, and
// then all.
func (p *Pool) Run(ctx context.Context) {
	ticker := time.NewTicker(maxIdleTime / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			p.evict(time.Time{}, true)
			return
		case now := <-ticker.C:
			p.evict(now.Add(-maxIdleTime), false)
		}
	}
}

// evict closes the connections that are unused since before a time, or all.
func (p *Pool) evict(before time.Time, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = p.closed || all
	for key, conns := range p.idle {
		// They are in the order in which they became idle.
		old := 0
		for old < len(conns) && (all || conns[old].idleSince.Before(before)) {
			conns[old].close()
			old++
		}
		p.count -= old
		if old == len(conns) {
			delete(p.idle, key)
			continue
		}
		p.idle[key] = append(conns[:0], conns[old:]...)
		clear(conns[len(conns)-old:])
	}
}

// get returns a connection to the pod of a lease that was used before and that
// the pod has not closed, or nil.
func (p *Pool) get(lease hold.Lease) *podConn {
	key := poolKey{lease.Pod, lease.Number}
	for {
		conn := p.pop(key)
		if conn == nil {
			return nil
		}
		if socket.Idle(conn.raw) {
			return conn
		}
		conn.close()
	}
}

// pop takes the connection that was used last: it is the least likely to be
// closed, and the others can grow old.
func (p *Pool) pop(key poolKey) *podConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	conns := p.idle[key]
	if len(conns) == 0 {
		return nil
	}
	last := len(conns) - 1
	conn := conns[last]
	conns[last] = nil
	p.idle[key] = conns[:last]
	p.count--
	return conn
}

// put keeps a connection on which a response has ended.
func (p *Pool) put(conn *podConn, now time.Time) {
	conn.in.release()
	conn.idleSince = now
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.count >= maxIdle {
		conn.close()
		return
	}
	p.idle[conn.key] = append(p.idle[conn.key], conn)
	p.count++
}
