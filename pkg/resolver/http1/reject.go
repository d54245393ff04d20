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
	"io"
	"net/http"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
)

const (
	// lingerTime and lingerBytes bound how long a client that still sends is
	// listened to after its response. Closing at once would reset the connection,
	// and the client could lose the response to that.
	lingerTime  = time.Second
	lingerBytes = 256 << 10
)

// reject sends a local reply to the current request, and
// returns whether the connection carries another.
func (c *conn) reject(a *localreply.Reply) step {
	body := c.wholeBody()
	if body < 0 || !c.request.persists() || c.draining.Load() {
		c.rejectLast(a)
		return endConn
	}
	if !c.sendReply(a, false) {
		return endConn
	}
	c.in.consume(len(c.request.raw) + body)
	return nextRequest
}

// rejectLast sends a local reply to the current request, and lets the connection end.
func (c *conn) rejectLast(a *localreply.Reply) {
	c.lingers = c.sendReply(a, true)
}

func (c *conn) sendReply(a *localreply.Reply, last bool) bool {
	c.record.Outcome = accesslog.LocalReply
	c.record.Status = a.Status
	if c.record.Reason == "" {
		c.record.Reason = string(a.Reason)
	}
	c.record.Responded = time.Now()
	after := localreply.Open
	switch {
	case last:
		after = localreply.Closes
	case c.request.minor == 0:
		after = localreply.OpenToHTTP10
	}
	_, err := c.send(a.AppendHTTP1(nil, c.record.Method == http.MethodHead, after))
	return err == nil
}

// linger tells the client that nothing more comes, and gives it a moment to
// read what came before the connection is closed.
func (c *conn) linger() {
	if err := c.tcp.CloseWrite(); err != nil {
		return
	}
	c.awaitPod()
	if err := c.setReadDeadline(time.Now().Add(lingerTime)); err != nil {
		return
	}
	// Whatever ends this, the connection is closed next.
	_, _ = io.CopyN(io.Discard, c.tcp, lingerBytes)
}

// abort makes the client see that the connection broke, rather than ended.
func (c *conn) abort() {
	c.lingers = false
	c.tcp.Reset()
}
