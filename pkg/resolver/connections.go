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
	"container/list"
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
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
	// undeclaredShare is that for the connections that have not said yet which service
	// they are for: as many as are free, half of all alone.
	undeclaredShare = 1
	// maxDisplaced is how many undeclared connections may be ended to make room for a new
	// one. Each of them takes little, and so does the new one.
	maxDisplaced = 8
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
	// undeclared is the account of the connections that have not said yet which service
	// they are for. Nil: all have.
	undeclared *memory.Account
	// displaced is notified of each connection that made room for another.
	displaced func(client netip.Addr, why metrics.RejectionReason)

	mu   sync.Mutex
	open map[*net.TCPConn]*member
	// byService are how many there are of each service, and those that move to it.
	byService map[*memory.Account]int
	// waiting are the undeclared connections, the oldest first.
	waiting list.List
	// byClient is counted only when there is a bound.
	byClient map[netip.Addr]int
	// empty is closed when the last connection ends after closing began.
	empty   chan struct{}
	closing bool
}

// member is what is kept for one connection.
type member struct {
	// account is that of the connection, service the one that pays for it.
	account, service *memory.Account
	client           netip.Addr
	charge           memory.Charge
	// waiting is the place in connections.waiting. Nil: none.
	waiting *list.Element
	// spoken is true once something was said on it.
	spoken bool
}

func newConnections(limits connectionLimits, undeclared *memory.Account) *connections {
	return &connections{
		limits:     limits,
		undeclared: undeclared,
		displaced:  func(netip.Addr, metrics.RejectionReason) {},
		open:       map[*net.TCPConn]*member{},
		byService:  map[*memory.Account]int{},
		byClient:   map[netip.Addr]int{},
		empty:      make(chan struct{}),
	}
}

// add records a connection to a service, which its account stands for, until
// remove is called. When there is no room for it, add records nothing and
// returns which limit was reached. A connection that has not named its service yet gets the
// room of the connections that have waited longest without naming one.
func (c *connections) add(conn *net.TCPConn, account *memory.Account) (metrics.RejectionReason, bool) {
	m := &member{account: account, service: account.Payer(), charge: account.Charge()}
	if c.limits.perClient > 0 {
		m.client = clientOf(conn)
	}
	rejection, ok := c.tryAdd(conn, m)
	for displaced := 0; !ok && displaced < maxDisplaced && c.displaceFor(m, rejection); displaced++ {
		rejection, ok = c.tryAdd(conn, m)
	}
	return rejection, ok
}

func (c *connections) tryAdd(conn *net.TCPConn, m *member) (metrics.RejectionReason, bool) {
	// Others may have to shed for it, so it is not claimed with mu held.
	if err := m.charge.Claim(connectionBytes); err != nil {
		return metrics.RejectedMemory, false
	}
	rejection, ok := c.admit(conn, m)
	if !ok {
		m.charge.Release()
	}
	return rejection, ok
}

// admit is add for a connection for which there is memory.
func (c *connections) admit(conn *net.TCPConn, m *member) (metrics.RejectionReason, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := c.limits.process() - len(c.open) - 1
	switch {
	case free < 0:
		return metrics.RejectedProcess, false
	case !c.hasRoom(m.service, free):
		return metrics.RejectedService, false
	case c.limits.perClient > 0 && c.byClient[m.client] >= c.limits.perClient:
		return metrics.RejectedClient, false
	}
	c.open[conn] = m
	c.byService[m.service]++
	if m.service == c.undeclared {
		m.waiting = c.waiting.PushBack(conn)
	}
	if c.limits.perClient > 0 {
		c.byClient[m.client]++
	}
	return "", true
}

// hasRoom reports whether a service may have one connection more, after which so
// many of the process are free. It must be called with mu held.
func (c *connections) hasRoom(service *memory.Account, free int) bool {
	mine := c.byService[service] + 1
	if service == c.undeclared {
		return mine <= undeclaredShare*free || mine <= 1
	}
	return (mine <= fairShare*free || mine <= 1) && (c.limits.perService == 0 || mine <= c.limits.perService)
}

// displaceFor resets the connection that has waited longest without saying which
// service it is for, for another such one for which there was no room. It reports
// whether there was one.
func (c *connections) displaceFor(m *member, why metrics.RejectionReason) bool {
	if m.service != c.undeclared || (why != metrics.RejectedService && why != metrics.RejectedMemory) {
		return false
	}
	c.mu.Lock()
	oldest := c.waiting.Front()
	if oldest == nil {
		c.mu.Unlock()
		return false
	}
	conn := oldest.Value.(*net.TCPConn)
	client := clientOf(conn)
	reset(conn)
	c.forget(conn, c.open[conn])
	c.mu.Unlock()
	c.displaced(client, why)
	return true
}

// move makes a connection that was added with a branch of an account one to another
// service. When there is no room for it there, move changes nothing, and fails with
// localreply.ErrTooManyConnections or an error of the memory package; with net.ErrClosed
// when the connection has ended.
func (c *connections) move(conn *net.TCPConn, to *memory.Account) (err error) {
	m, err := c.reserve(conn, to)
	if m == nil {
		return err
	}
	moved := false
	// Others may have to shed for it, so it is not moved with mu held. Whatever comes
	// of that, a panic too, one of the two places is given back.
	defer func() {
		if open := c.finishMove(conn, m, to, moved); !open {
			err = net.ErrClosed
		}
	}()
	if err := m.account.Move(to); err != nil {
		return err
	}
	moved = true
	return nil
}

// reserve counts a connection as one to a service too. It returns nil when there is
// nothing to do, or no room.
func (c *connections) reserve(conn *net.TCPConn, to *memory.Account) (*member, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.open[conn]
	switch {
	case m == nil:
		return nil, net.ErrClosed
	case m.service == to:
		return nil, nil
	case !c.hasRoom(to, c.limits.process()-len(c.open)):
		return nil, localreply.ErrTooManyConnections
	}
	c.byService[to]++
	return m, nil
}

// finishMove releases the place that the connection has left, or did not move to. It
// reports whether the connection is still open: it may have ended meanwhile.
func (c *connections) finishMove(conn *net.TCPConn, m *member, to *memory.Account, moved bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := c.open[conn] == m
	if !open || !moved {
		drop(c.byService, to)
		return open
	}
	drop(c.byService, m.service)
	m.service = to
	c.declare(m)
	return true
}

// declare takes a connection from those that have not said which service they are
// for. It must be called with mu held.
func (c *connections) declare(m *member) {
	if m.waiting != nil {
		c.waiting.Remove(m.waiting)
		m.waiting = nil
	}
}

func clientOf(conn *net.TCPConn) netip.Addr {
	if address, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return address.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// remove forgets a connection that was added, unless another has displaced it.
func (c *connections) remove(conn *net.TCPConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.open[conn]; m != nil {
		c.forget(conn, m)
	}
}

// forget gives back what an open connection takes. It must be called with mu held.
func (c *connections) forget(conn *net.TCPConn, m *member) {
	delete(c.open, conn)
	c.declare(m)
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

// spoke records that something was said on a connection.
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
