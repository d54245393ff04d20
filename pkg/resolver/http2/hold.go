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
	"context"
	"net"
	"slices"
	"time"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localfault"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
)

// holdNew finds a pod for the first request of a connection, or holds it.
func (c *conn) holdNew(ctx context.Context, s *stream) error {
	var lease hold.Lease
	ok := false
	if len(c.held) == 0 {
		lease, ok = c.service.Queue().TryTake(c.port.Name)
	}
	if !ok {
		if local := c.fallbackReply(); local != nil {
			c.replyLocally(s, local)
			return nil
		}
	}
	c.count(s)
	c.keep(s)
	if ok {
		s.lease = lease
		c.held = append(c.held, s)
		return c.release(ctx, lease)
	}
	c.join(s, false)
	return nil
}

// keep stores what the pod is sent of a new stream.
func (c *conn) keep(s *stream) {
	s.held = &heldStream{
		deadline:     s.record.Received.Add(c.service.Config().HoldTimeout),
		fields:       pack(c.podFields()),
		passiveReply: c.passiveReply(),
	}
}

// join puts a stream in line for a pod, for that of the connection if there is one,
// or rejects it; again puts it at the front.
func (c *conn) join(s *stream, again bool) {
	h := s.held
	if again && c.pod == nil && h.passiveReply != nil && !c.service.Queue().Serving(c.port.Name) {
		c.replyLocally(s, h.passiveReply)
		return
	}
	s.record.Held = true
	h.resolved.Store(false)
	h.waiter.Port, h.waiter.Pod, h.waiter.Number = c.port.Name, nil, 0
	if c.pod != nil {
		h.waiter.Pod, h.waiter.Number = c.pod.lease.Pod, c.pod.lease.Number
	}
	h.waiter.Passive = h.passiveReply != nil
	h.waiter.Bytes = heldStreamBytes + int64(h.size()) + textBytes(&s.record)
	h.waiter.Resolve = func() {
		h.resolved.Store(true)
		c.events.resolve()
	}
	queue := c.service.Queue()
	put := queue.Join
	if again {
		put = queue.Rejoin
	}
	if err := put(&h.waiter); err != nil {
		c.replyLocally(s, localreply.ForError(c.service, err))
		return
	}
	h.inLine = true
	at, _ := slices.BinarySearchFunc(c.held, s.id, func(other *stream, id uint32) int { return int(other.id) - int(id) })
	c.held = slices.Insert(c.held, at, s)
}

// rejoin puts all streams back in line, in their order.
func (c *conn) rejoin() {
	streams := c.held
	c.held = nil
	for _, s := range slices.Backward(streams) {
		c.join(s, true)
	}
	c.touch()
}

// handleResolved handles the streams whose wait is over. The first that was given a
// pod decides for all of the connection.
func (c *conn) handleResolved(ctx context.Context) error {
	if c.pod != nil {
		c.forwardResolved()
		return nil
	}
	var lease hold.Lease
	found := false
	take := func(s *stream) {
		s.held.inLine = false
		given, cold, err := s.held.waiter.Result()
		s.record.WakeSucceeded, s.record.EndpointReady = cold.WakeSucceeded, cold.EndpointReady
		switch {
		case err != nil:
			c.replyHeld(s, err)
		case found && (given.Pod != lease.Pod || given.Number != lease.Number):
			given.Release()
		case found:
			s.lease = given
		default:
			lease, found = given, true
			s.lease = given
		}
	}
	for _, s := range slices.Clone(c.held) {
		if s.held.resolved.Load() {
			take(s)
		}
	}
	if !found {
		return nil
	}
	cold := c.service.Queue().ColdStart()
	for _, s := range slices.Clone(c.held) {
		switch {
		case !s.held.inLine:
		case c.service.Queue().Leave(&s.held.waiter):
			s.held.inLine = false
			s.record.WakeSucceeded, s.record.EndpointReady = cold.WakeSucceeded, cold.EndpointReady
		default:
			take(s)
		}
	}
	return c.release(ctx, lease)
}

// release connects to the pod of a lease and sends it what is held. None of the held
// streams is in line; some have leases of that pod, this one among them.
func (c *conn) release(ctx context.Context, lease hold.Lease) error {
	tcp, err := c.dial(ctx, lease)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		c.releaseLeases()
		return errClientGone
	case localfault.Of(err) != nil, memory.IsLimit(err):
		// It says nothing about the pod.
		c.releaseLeases()
		for _, s := range slices.Clone(c.held) {
			c.replyHeld(s, err)
		}
		return nil
	default:
		c.releaseUnconnected()
		c.rejoin()
		return nil
	}
	streams, rest := c.admit(lease)
	streams = c.openHeld(streams)
	c.startPod(tcp, lease, streams)
	now, kept := time.Now(), 0
	for _, s := range streams {
		kept += s.held.size()
		s.record.Released = now
		s.record.Pod = lease.Pod.Name
		s.record.BytesIn = int64(s.held.received)
	}
	counted := kept <= uncountedRest || c.pod.kept.Claim(int64(kept)) == nil
	c.replay(streams)
	// The pod acts on SETTINGS of the client that were acknowledged here: the client
	// must see the ACK before anything that the pod sends.
	if err := c.sendReply(); err != nil {
		c.held = rest
		return err
	}
	// The goroutine that reads from the pod may end streams from now on.
	c.pod.running.Go(func() { c.server.options.Tasks.Run(c.abandon, c.readPod) })
	if err := c.flush(); err != nil {
		c.held = rest
		return err
	}
	if !counted {
		c.forgetReplay()
	}
	for _, s := range slices.Backward(rest) {
		c.join(s, true)
	}
	return nil
}

// dial connects to the pod of a lease. There has to be room for that.
func (c *conn) dial(ctx context.Context, lease hold.Lease) (net.Conn, error) {
	if err := c.usage.add(podBytes); err != nil {
		return nil, err
	}
	tcp, err := c.server.options.Dial(ctx, lease)
	if err != nil {
		c.usage.remove(podBytes)
	}
	return tcp, err
}

// openHeld returns those of the streams for which there is room while they are
// forwarded, and replies to the others.
func (c *conn) openHeld(streams []*stream) []*stream {
	return slices.DeleteFunc(streams, func(s *stream) bool {
		err := c.countOpen(s)
		if err == nil {
			return false
		}
		s.lease.Release()
		s.lease = hold.Lease{}
		c.replyLocally(s, localreply.ForError(c.service, err))
		return true
	})
}

// abandon ends both connections after a panic of what reads from the pod. What
// reads from the client ends with them, and gives back what was taken.
func (c *conn) abandon() {
	c.client.Close()
	c.pod.close()
}

// replay sends the pod what the client has sent.
func (c *conn) replay(streams []*stream) {
	out := &c.toPod
	out.begin()
	start := len(out.small)
	out.small = append(out.small, http2.ClientPreface...)
	out.small = append(out.small, c.firstSettings()...)
	if c.window.grants > 0 {
		out.small = appendWindowUpdate(out.small, 0, uint32(c.window.grants))
	}
	out.added(start)
	for _, s := range streams {
		c.replayStream(s)
	}
	if len(c.goAway) > 0 {
		out.add(c.goAway)
	}
}

// replayStream sends the pod what the client has sent on a stream.
func (c *conn) replayStream(s *stream) {
	out, h := &c.toPod, s.held
	c.encodePacked(s.id, s.clientEnded && len(h.body) == 0 && !h.trailed, h.fields)
	if h.grant > 0 {
		start := len(out.small)
		out.small = appendWindowUpdate(out.small, s.id, uint32(h.grant))
		out.added(start)
	}
	if len(h.body) > 0 {
		out.add(h.body)
	}
	if h.trailed {
		c.encodePacked(s.id, true, h.trailers)
	}
}

// heldByID returns a held stream, or nil.
func (c *conn) heldByID(id uint32) *stream {
	at, found := slices.BinarySearchFunc(c.held, id, func(other *stream, id uint32) int { return int(other.id) - int(id) })
	if !found {
		return nil
	}
	return c.held[at]
}

// holdData keeps a DATA frame.
func (c *conn) holdData(f *frame) error {
	if c.pod == nil {
		if err := c.window.receive(len(f.payload)); err != nil {
			return err
		}
	}
	data, err := f.unpadded()
	if err != nil {
		return err
	}
	s := c.heldByID(f.stream)
	switch {
	case s == nil && c.ignored(f.stream):
		c.credit(uint32(len(f.payload)))
		if f.endsStream() {
			c.dropped = c.dropped.without(f.stream)
		}
		return nil
	case f.stream > c.lastStream:
		return connError{http2.ErrCodeProtocol, "DATA on a stream that was not opened"}
	case s == nil || s.clientEnded:
		return connError{http2.ErrCodeStreamClosed, "DATA on a stream that was closed"}
	}
	s.clientEnded = f.endsStream()
	if len(data) == 0 {
		if err := c.flood.take(time.Now()); err != nil {
			return err
		}
	}
	h := s.held
	before := cap(h.body)
	h.body = append(h.body, f.raw...)
	h.received += uint32(len(f.payload))
	c.charge(s, cap(h.body)-before)
	return nil
}

// charge counts more bytes for a held stream, and rejects it when that are too
// many.
func (c *conn) charge(s *stream, bytes int) {
	if bytes == 0 {
		return
	}
	if err := c.service.Queue().Charge(&s.held.waiter, int64(bytes)); err != nil {
		c.leaveQueue(s)
		c.replyHeld(s, err)
	}
}

// holdTrailers keeps the trailers of a stream; a problem resets it.
func (c *conn) holdTrailers(id uint32, problem string) error {
	s := c.heldByID(id)
	if s == nil || s.clientEnded {
		return connError{http2.ErrCodeStreamClosed, "HEADERS on a stream that was closed"}
	}
	if problem != "" {
		c.leaveQueue(s)
		c.forgetHeld(s)
		c.reset(id, http2.ErrCodeProtocol)
		c.credit(s.held.received)
		c.finish(s, accesslog.LocalReply, problem)
		return nil
	}
	s.clientEnded = true
	s.held.trailers, s.held.trailed = pack(c.headers.fields), true
	c.charge(s, cap(s.held.trailers))
	return nil
}

// resetHeld forgets a stream that the client has reset.
func (c *conn) resetHeld(f *frame) error {
	if err := c.flood.take(time.Now()); err != nil {
		return err
	}
	s := c.heldByID(f.stream)
	if s == nil {
		c.dropped = c.dropped.without(f.stream)
		return nil
	}
	c.leaveQueue(s)
	c.forgetHeld(s)
	c.credit(s.held.received)
	c.finish(s, accesslog.ClientGone, "")
	return nil
}

// holdSettings notes SETTINGS of the client, and what they change of the windows.
func (c *conn) holdSettings(f *frame) error {
	before := int64(c.settings.initialWindow)
	if err := parseSettings(f, c.settings.set); err != nil {
		return err
	}
	if now := int64(c.settings.initialWindow); now > before {
		for _, s := range c.held {
			if now+s.held.grant > maxWindow {
				return connError{http2.ErrCodeFlowControl, "the window of a stream is too large"}
			}
		}
	}
	return nil
}

// holdWindowUpdate adds up what the client grants.
func (c *conn) holdWindowUpdate(f *frame) error {
	increment := f.value()
	if err := c.flood.take(time.Now()); err != nil {
		return err
	}
	if f.stream == 0 {
		if increment == 0 {
			return connError{http2.ErrCodeProtocol, "WINDOW_UPDATE of nothing"}
		}
		return c.window.grant(increment)
	}
	s := c.heldByID(f.stream)
	if s == nil {
		return nil
	}
	code := http2.ErrCodeNo
	if increment == 0 {
		code = http2.ErrCodeProtocol
	}
	s.held.grant += int64(increment)
	if s.held.grant+int64(c.settings.initialWindow) > maxWindow {
		code = http2.ErrCodeFlowControl
	}
	if code == http2.ErrCodeNo {
		return nil
	}
	c.leaveQueue(s)
	c.forgetHeld(s)
	c.reset(s.id, code)
	c.credit(s.held.received)
	c.finish(s, accesslog.LocalReply, "the client broke flow control")
	return nil
}
