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
	"sync"
)

// connections are the open connections of clients. It is safe for concurrent use.
type connections struct {
	mu   sync.Mutex
	open map[*net.TCPConn]struct{}
	// empty is closed when the last connection ends after closing began.
	empty   chan struct{}
	closing bool
}

func newConnections() *connections {
	return &connections{open: map[*net.TCPConn]struct{}{}, empty: make(chan struct{})}
}

// add notes a connection, until remove is called.
func (c *connections) add(conn *net.TCPConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[conn] = struct{}{}
}

func (c *connections) remove(conn *net.TCPConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, conn)
	if c.closing && len(c.open) == 0 {
		close(c.empty)
	}
}

func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
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
		// The only error is that it is closed already.
		_ = conn.Close()
	}
	return len(c.open)
}
