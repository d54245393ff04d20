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

// shutdownTimeout is how long a client may take to acknowledge the PING that follows the
// first GOAWAY, before it is sent the second.
const shutdownTimeout = 5 * time.Second

// maxHeldDetail bounds what is kept of the debug data of a GOAWAY of a client that
// is held.
const maxHeldDetail = 1 << 10

// shutdown is how far a client was told to go elsewhere. A first GOAWAY says that
// the connection is to be left and still takes every stream; once a PING behind
// it was acknowledged, all streams that were opened before the client knew are here,
// and a second GOAWAY names the last one.
type shutdown struct {
	begun, final bool
	ping         [8]byte
	until        time.Time
}

// shouldShutDown reports whether the client is to go elsewhere: because the resolver
// ends, or because the pods can be reached without it.
func (c *conn) shouldShutDown() bool {
	return c.server.draining.Load() || c.service != nil && c.service.LeftFor() >= c.server.options.MoveDelay && c.service.Leaving()
}

// beginShutdown has the client go elsewhere.
func (c *conn) beginShutdown() {
	if c.shutdown.begun || c.shutdown.final {
		return
	}
	if c.goAwayLastStream() < maxStreamID {
		// The pod has sent it, and when.
		return
	}
	c.shutdown.begun = true
	c.shutdown.until = time.Now().Add(shutdownTimeout)
	// It never fails.
	_, _ = rand.Read(c.shutdown.ping[:])
	c.reply = appendGoAway(c.reply, maxStreamID, http2.ErrCodeNo, "")
	c.reply = appendPing(c.reply, 0, c.shutdown.ping[:])
}

// finishShutdown tells the client the last stream that is served.
func (c *conn) finishShutdown() { c.sendGoAway(c.lastStream) }

// sendGoAway tells the client that streams after last are not served.
func (c *conn) sendGoAway(last uint32) {
	c.shutdown.final = true
	c.mu.Lock()
	c.goAwayLast = min(c.goAwayLast, last)
	last = c.goAwayLast
	c.closing = true
	c.mu.Unlock()
	c.reply = appendGoAway(c.reply, last, http2.ErrCodeNo, "")
}

// isShutdownPing reports whether a PING is the ACK of the one of beginShutdown.
func (c *conn) isShutdownPing(f *frame) bool {
	return c.shutdown.begun && f.flags.Has(http2.FlagPingAck) && string(f.payload) == string(c.shutdown.ping[:])
}

// goAwayLastStream returns the last stream that the client was told to be served.
func (c *conn) goAwayLastStream() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.goAwayLast
}
