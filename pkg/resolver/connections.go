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
	"net"
	"net/netip"
	"sync"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/metrics"
)

const (
	// connectionBytes is what an open connection costs while nothing is read from
	// it: a goroutine and its stack, and what the connection and its protocol keep.
	connectionBytes = 4 << 10
	// fairShare is how many times what is still free of the connections of the
	// process one service may have: one alone has four fifths of them, two that
	// want all four ninths each, and there is always room for another.
	fairShare = 4
)

// connectionLimits bound the open connections of clients. 0: no bound.
type connectionLimits struct {
	// process returns the bound of all. It may change over time.
	process func() int
	// perService and perClient bound those of one service and one client address.
	perService, perClient int
}

// connections are the open connections of clients. It is safe for concurrent use.
type connections struct {
	limits connectionLimits

	mu        sync.Mutex
	open      map[*net.TCPConn]*member
	byService map[*memory.Account]int
	// byClient is counted only when there is a bound.
	byClient map[netip.Addr]int
	// empty is closed when the last connection ends after closing began.
	empty   chan struct{}
	closing bool
}

// member is what is kept for one connection.
type member struct {
	service *memory.Account
	client  netip.Addr
	charge  memory.Charge
	// spoken is true once something was said on it.
	spoken bool
}

func newConnections(limits connectionLimits) *connections {
	return &connections{
		limits:    limits,
		open:      map[*net.TCPConn]*member{},
		byService: map[*memory.Account]int{},
		byClient:  map[netip.Addr]int{},
		empty:     make(chan struct{}),
	}
}

// add notes a connection to a service, which its account stands for, until
// remove is called. When there is no room for it, add notes nothing and returns
// which limit was reached.
func (c *connections) add(conn *net.TCPConn, service *memory.Account) (metrics.Refusal, bool) {
	m := &member{service: service, charge: service.Charge()}
	if c.limits.perClient > 0 {
		m.client = clientOf(conn)
	}
	// Others may have to shed for it, so it is not claimed with mu held.
	if err := m.charge.Claim(connectionBytes); err != nil {
		return metrics.RefusedMemory, false
	}
	refusal, ok := c.admit(conn, m)
	if !ok {
		m.charge.Release()
	}
	return refusal, ok
}

// admit is add for a connection for which there is memory.
func (c *connections) admit(conn *net.TCPConn, m *member) (metrics.Refusal, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := c.limits.process() - len(c.open) - 1
	switch mine := c.byService[m.service] + 1; {
	case free < 0:
		return metrics.RefusedProcess, false
	case mine > fairShare*free && mine > 1, c.limits.perService > 0 && mine > c.limits.perService:
		return metrics.RefusedService, false
	case c.limits.perClient > 0 && c.byClient[m.client] >= c.limits.perClient:
		return metrics.RefusedClient, false
	}
	c.open[conn] = m
	c.byService[m.service]++
	if c.limits.perClient > 0 {
		c.byClient[m.client]++
	}
	return "", true
}

func clientOf(conn *net.TCPConn) netip.Addr {
	if address, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return address.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// remove forgets a connection that was added.
func (c *connections) remove(conn *net.TCPConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.open[conn]
	delete(c.open, conn)
	m.charge.Release()
	drop(c.byService, m.service)
	if c.limits.perClient > 0 {
		drop(c.byClient, m.client)
	}
	if c.closing && len(c.open) == 0 {
		close(c.empty)
	}
}

// drop counts one less of a key, and forgets it at zero.
func drop[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// spoke notes that something was said on a connection.
func (c *connections) spoke(conn *net.TCPConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.open[conn]; m != nil {
		m.spoken = true
	}
}

// closeSilent closes the connections on which nothing was said: clients that
// open them in advance open them elsewhere.
func (c *connections) closeSilent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn, m := range c.open {
		if !m.spoken {
			// The only error is that it is closed already.
			_ = conn.Close()
		}
	}
}

// finish waits until all connections have ended; when ctx ends first it closes
// those that are left, and returns how many these were. No connection may be
// added any more.
func (c *connections) finish(ctx context.Context) int {
	c.mu.Lock()
	c.closing = true
	if len(c.open) == 0 {
		c.mu.Unlock()
		return 0
	}
	c.mu.Unlock()
	select {
	case <-c.empty:
		return 0
	case <-ctx.Done():
	}
	left := c.closeAll()
	<-c.empty
	return left
}

func (c *connections) closeAll() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		// The end was not meant.
		reset(conn)
	}
	return len(c.open)
}
