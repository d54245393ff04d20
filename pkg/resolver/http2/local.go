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
	"errors"
	"slices"
	"strconv"
	"time"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/proberesponse"
)

// replyLocally sends a local reply on a stream that is in neither list, and reports its end.
func (c *conn) replyLocally(s *stream, a *localreply.Reply) {
	s.record.Status = a.Status
	s.record.Reason = string(a.Reason)
	s.record.Responded = time.Now()
	c.respond(s, a)
	c.finish(s, accesslog.LocalReply, "")
}

// respond sends a response of the resolver.
func (c *conn) respond(s *stream, a *localreply.Reply) {
	status, fields, body := a.HTTP2(s.grpc)
	sends := len(body) > 0 && !s.isHEAD && c.maySend(s, len(body))
	if sends || s.isHEAD && len(body) > 0 {
		fields = append(fields, localreply.Field{Name: "content-length", Value: strconv.Itoa(len(body))})
	}
	start := len(c.reply)
	c.marks = append(c.marks, tableMark{at: start, size: -1})
	c.reply = append(c.reply, make([]byte, frameHeaderLen)...)
	c.touch()
	// Literal fields that are not put into the table: that one is the pod's.
	c.reply = appendString(append(c.reply, 0x08), strconv.Itoa(status))
	for _, field := range fields {
		c.reply = appendString(appendString(append(c.reply, 0), field.Name), field.Value)
	}
	c.reply = frameBlock(c.reply, start, s.id, !sends)
	if sends {
		c.reply = appendData(c.reply, s.id, body)
	}
	if !s.clientEnded {
		c.reset(s.id, http2.ErrCodeNo)
	}
	if s.held != nil {
		c.credit(s.held.received)
	}
}

// maySend reports whether the client takes a body, and counts it. While there is
// a pod, the windows are the pod's.
func (c *conn) maySend(s *stream, bytes int) bool {
	window := int64(c.settings.initialWindow)
	if s.held != nil {
		window += s.held.grant
	}
	return c.pod == nil && int64(bytes) <= window && c.window.spend(bytes)
}

// appendString appends a string literal without Huffman coding.
func appendString(out []byte, text string) []byte {
	return append(appendInteger(out, 0, 7, uint64(len(text))), text...)
}

// reset resets a stream on the client's side: what it still sends on it is dropped.
func (c *conn) reset(id uint32, code http2.ErrCode) {
	c.reply = appendReset(c.reply, id, code)
	c.dropped = c.dropped.with(id)
}

// replyHeld sends a local reply on a held stream that was not given a pod.
func (c *conn) replyHeld(s *stream, err error) {
	c.forgetHeld(s)
	local := s.held.passiveReply
	if !errors.Is(err, hold.ErrAsleep) || local == nil {
		local = localreply.ForError(c.service, err)
	}
	c.replyLocally(s, local)
}

// fallbackReply returns the resolver's own response to a request that it does not
// hold while no pod can take it, or nil.
func (c *conn) fallbackReply() *localreply.Reply {
	if c.service.Queue().Serving(c.port.Name) {
		return nil
	}
	return c.server.options.Fallback.Reply(c.service, c.probeRequest())
}

// count makes a stream count as traffic of the service until it ends.
func (c *conn) count(s *stream) {
	if traffic := c.service.Traffic(); !traffic.Needed() || !c.passive() {
		traffic.Begin()
		s.counted = true
	}
}

// passive reports whether the request is one that would not wake the target.
func (c *conn) passive() bool {
	return c.server.options.Fallback.Passive(c.service, c.probeRequest())
}

// passiveReply returns the reply to such a request while no pod can take it, and
// nil to others.
func (c *conn) passiveReply() *localreply.Reply {
	if !c.passive() {
		return nil
	}
	return c.server.options.Fallback.Reply(c.service, c.probeRequest())
}

func (c *conn) probeRequest() *proberesponse.Request {
	path, query := splitPath(c.headers.pseudo(":path"))
	return &proberesponse.Request{
		Method: c.headers.pseudo(":method"),
		Path:   path,
		Query:  query,
		Port:   c.port.Number,
		Values: c.headers.values,
	}
}

// expired returns the held streams whose time is over.
func (c *conn) expired(now time.Time) []*stream {
	var over []*stream
	for _, s := range c.held {
		if s.held.inLine && !now.Before(s.held.deadline) && c.service.Queue().Leave(&s.held.waiter) {
			s.held.inLine = false
			over = append(over, s)
		}
	}
	return over
}

// forgetHeld takes a stream out of those that are held.
func (c *conn) forgetHeld(s *stream) {
	if i := slices.Index(c.held, s); i >= 0 {
		c.held = slices.Delete(c.held, i, i+1)
	}
	c.touch()
}

// touch begins the time that the connection may be idle anew.
func (c *conn) touch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idleSince = time.Now()
}

// leaveQueue ends the wait of a held stream.
func (c *conn) leaveQueue(s *stream) {
	if !s.held.inLine {
		return
	}
	s.held.inLine = false
	if c.service.Queue().Leave(&s.held.waiter) {
		return
	}
	if lease, _, err := s.held.waiter.Result(); err == nil && lease != (hold.Lease{}) {
		lease.Release()
	}
}
