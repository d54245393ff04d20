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

package adminserver

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// limits bound open connections.
type limits struct{ total, perSource int }

// limitListener bounds the open connections that it has accepted. A connection too
// many closes the oldest one: of the same source when that has as many as one may
// have, and otherwise of the source that has most. A probe takes milliseconds, so it
// is over before it is the oldest. It is safe for concurrent use.
type limitListener struct {
	net.Listener
	limits limits

	mu sync.Mutex
	// count is the number of open connections, and accepted that of all so far.
	count    int
	accepted uint64
	// sources are the open connections by source, the oldest first. None is empty.
	sources map[netip.Addr]*list.List
}

func newLimitListener(listener net.Listener, limits limits) *limitListener {
	return &limitListener{Listener: listener, limits: limits, sources: map[netip.Addr]*list.List{}}
}

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &limitedConn{Conn: raw, listener: l, source: sourceOf(raw)}
	if surplus := l.add(conn); surplus != nil {
		if tcp, ok := surplus.Conn.(*net.TCPConn); ok {
			// What its client has not read is of no use. It fails only when the
			// connection is broken already.
			_ = tcp.SetLinger(0)
		}
		// Likewise.
		_ = surplus.Close()
	}
	return conn, nil
}

// sourceOf returns the address that a connection comes from.
func sourceOf(conn net.Conn) netip.Addr {
	if address, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return address.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// add adds a connection, and returns the one to close for it, if any.
func (l *limitListener) add(conn *limitedConn) (surplus *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepted++
	conn.number = l.accepted
	own := l.sources[conn.source]
	if own == nil {
		own = list.New()
		l.sources[conn.source] = own
	}
	conn.place = own.PushBack(conn)
	l.count++
	switch {
	case own.Len() > l.limits.perSource:
		surplus = oldest(own)
	case l.count > l.limits.total:
		surplus = oldest(l.largest())
	default:
		return nil
	}
	l.drop(surplus)
	return surplus
}

func oldest(connections *list.List) *limitedConn { return connections.Front().Value.(*limitedConn) }

// largest returns the connections of the source that has most of them; of several,
// of the one that has the oldest. It must be called with mu held.
func (l *limitListener) largest() (largest *list.List) {
	for _, candidate := range l.sources {
		if largest == nil || candidate.Len() > largest.Len() ||
			candidate.Len() == largest.Len() && oldest(candidate).number < oldest(largest).number {
			largest = candidate
		}
	}
	return largest
}

// drop forgets a connection, if it is not forgotten already. It must be called with
// mu held.
func (l *limitListener) drop(conn *limitedConn) {
	if conn.place == nil {
		return
	}
	own := l.sources[conn.source]
	own.Remove(conn.place)
	conn.place = nil
	l.count--
	if own.Len() == 0 {
		delete(l.sources, conn.source)
	}
}

// limitedConn is a connection that counts until it is closed.
type limitedConn struct {
	net.Conn
	listener *limitListener
	source   netip.Addr
	// number is smaller than those of later connections.
	number uint64
	// place is where the connection is in the list of its source. Nil when it does
	// not count any more. Guarded by the mutex of the listener.
	place *list.Element
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.drop(c)
	return err
}
