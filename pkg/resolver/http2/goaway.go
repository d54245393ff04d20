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
	"crypto/rand"
	"time"

	"golang.org/x/net/http2"
)

// leaveTimeout is how long a client may take to answer the PING that follows the
// first GOAWAY, before it is sent the second.
const leaveTimeout = 5 * time.Second

// maxHeldDetail bounds what is kept of the words of a client that leaves while it
// is held.
const maxHeldDetail = 1 << 10

// leaving is how far a client was asked to go elsewhere. A first GOAWAY says that
// the connection is to be left and still takes every stream; once a PING behind
// it was answered, all streams that were opened before the client knew are here,
// and a second GOAWAY names the last one.
type leaving struct {
	begun, final bool
	ping         [8]byte
	until        time.Time
}

// shouldLeave reports whether the client is to go elsewhere: because the resolver
// ends, or because the pods can be reached without it.
func (c *conn) shouldLeave() bool {
	return c.server.draining.Load() || c.service != nil && c.service.LeftFor() >= c.server.options.MoveDelay && c.service.Leaving()
}

// leave asks the client to go elsewhere.
func (c *conn) leave() {
	if c.leaving.begun || c.leaving.final {
		return
	}
	if c.toldLast() < maxStreamID {
		// The pod has told it, and when.
		return
	}
	c.leaving.begun = true
	c.leaving.until = time.Now().Add(leaveTimeout)
	// It never fails.
	_, _ = rand.Read(c.leaving.ping[:])
	c.reply = appendGoAway(c.reply, maxStreamID, http2.ErrCodeNo, "")
	c.reply = appendPing(c.reply, 0, c.leaving.ping[:])
}

// leaveFinally tells the client the last stream that is served.
func (c *conn) leaveFinally() { c.leaveAfter(c.lastStream) }

// leaveAfter tells the client that streams after last are not served.
func (c *conn) leaveAfter(last uint32) {
	c.leaving.final = true
	c.mu.Lock()
	c.lastTold = min(c.lastTold, last)
	last = c.lastTold
	c.closing = true
	c.mu.Unlock()
	c.reply = appendGoAway(c.reply, last, http2.ErrCodeNo, "")
}

// leavingPing reports whether a PING is the answer to the one of leave.
func (c *conn) leavingPing(f *frame) bool {
	return c.leaving.begun && f.flags.Has(http2.FlagPingAck) && string(f.payload) == string(c.leaving.ping[:])
}

// toldLast returns the last stream that the client was told to be served.
func (c *conn) toldLast() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastTold
}
