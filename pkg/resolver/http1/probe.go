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
	"sync"
	"time"
)

// probeTimeout is how long a probe may take that only has to reach the kernel.
const probeTimeout = 100 * time.Millisecond

// start is the beginning of the response to the current request.
//
// When a client finishes its side of the connection, it may wait for the response
// with the other (a half-close), or have left: TCP says the same of both. What
// tells them apart is that the kernel of one that has left rejects what it is
// sent. Every response begins with the same byte, whatever makes it, so that is sent
// ahead of the rest.
type start struct {
	mu sync.Mutex
	// sent is true when the response has begun, and probed when its first byte was
	// sent before.
	sent, probed bool
}

// reset makes the next response a new one. No probe may be under way.
func (s *start) reset() { s.sent, s.probed = false, false }

// probe makes the kernel of a client that has left reject what it is sent, and
// reports whether it could: it cannot when the response has begun.
func (c *conn) probe() bool {
	c.start.mu.Lock()
	defer c.start.mu.Unlock()
	if c.start.sent {
		return false
	}
	if c.start.probed {
		return true
	}
	// A client that has not read the responses before has no room for this one, and
	// says itself when it has left.
	if err := c.tcp.SetWriteDeadline(time.Now().Add(probeTimeout)); err != nil {
		return true
	}
	n, _ := c.tcp.Write([]byte("H"))
	c.start.probed = n > 0
	// A connection that is closed already has no deadline, and needs none.
	_ = c.tcp.SetWriteDeadline(time.Time{})
	return true
}

// send sends a part of a response to the client.
func (c *conn) send(data []byte) (int, error) {
	if c.start.sent {
		return c.tcp.Write(data)
	}
	c.start.mu.Lock()
	c.start.sent = true
	probed := c.start.probed
	c.start.mu.Unlock()
	if !probed {
		return c.tcp.Write(data)
	}
	n, err := c.tcp.Write(data[1:])
	return n + 1, err
}
