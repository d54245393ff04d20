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
	"encoding/binary"
	"strings"
	"time"

	"golang.org/x/net/http2"
)

// work handles all complete frames of the client that were read.
func (c *conn) work(ctx context.Context) error {
	for {
		data := c.in.unread()
		if !c.prefaced {
			n := min(len(data), len(http2.ClientPreface))
			if !strings.HasPrefix(http2.ClientPreface, string(data[:n])) {
				return connError{http2.ErrCodeProtocol, "the connection does not begin with the preface"}
			}
			if n < len(http2.ClientPreface) {
				return nil
			}
			c.prefaced = true
			c.in.consume(n)
			continue
		}
		f, ok, err := parseFrame(data)
		if !ok {
			return err
		}
		c.in.consume(len(f.raw))
		c.rest.moved()
		if err := c.handleFrame(ctx, &f); err != nil {
			return err
		}
		if c.toPod.size > bufferSize || len(c.reply) > maxFrame {
			if err := c.send(); err != nil {
				return err
			}
		}
	}
}

func (c *conn) handleFrame(ctx context.Context, f *frame) error {
	if !c.greeted {
		if f.kind != http2.FrameSettings || f.flags.Has(http2.FlagSettingsAck) {
			return connError{http2.ErrCodeProtocol, "the first frame is not SETTINGS"}
		}
		c.greeted = true
	}
	if c.block.stream != 0 && (f.kind != http2.FrameContinuation || f.stream != c.block.stream) {
		return connError{http2.ErrCodeProtocol, "another frame inside of a header block"}
	}
	switch f.kind {
	case http2.FrameData:
		return c.onData(f)
	case http2.FrameHeaders:
		return c.onHeaders(ctx, f)
	case http2.FrameContinuation:
		return c.onContinuation(ctx, f)
	case http2.FrameRSTStream:
		return c.onReset(f)
	case http2.FrameSettings:
		return c.onSettings(f)
	case http2.FramePing:
		return c.onPing(f)
	case http2.FrameWindowUpdate:
		return c.onWindowUpdate(f)
	case http2.FramePushPromise:
		return connError{http2.ErrCodeProtocol, "PUSH_PROMISE of a client"}
	case http2.FrameGoAway:
		return c.onGoAway(f)
	case http2.FramePriority:
		return c.onPriority(f)
	}
	if c.pod != nil {
		c.toPod.add(f.raw)
		return nil
	}
	return c.flood.take(time.Now())
}

// ignored reports whether the frames of a stream are ignored: a GOAWAY has rejected it, or
// is about to, or it got a local reply. The pod does not know it, and would end the
// connection for such a frame.
func (c *conn) ignored(id uint32) bool {
	c.mu.Lock()
	last, forwarded := c.goAwayLast, c.streams[id] != nil
	c.mu.Unlock()
	if forwarded {
		return false
	}
	unknown := c.podStream < id && id <= c.lastStream
	return id > last || c.dropped.has(id) || c.pod != nil && unknown && c.heldByID(id) == nil
}

func (c *conn) onData(f *frame) error {
	if f.stream == 0 {
		return connError{http2.ErrCodeProtocol, "DATA without a stream"}
	}
	if c.holds(f.stream) {
		return c.holdData(f)
	}
	if c.ignored(f.stream) {
		c.credit(uint32(len(f.payload)))
		if f.endsStream() {
			c.dropped = c.dropped.without(f.stream)
		}
		return nil
	}
	c.toPod.add(f.raw)
	c.mu.Lock()
	s := c.streams[f.stream]
	if s == nil {
		// The pod has ended it, or it is the pod's to say what is wrong.
		c.mu.Unlock()
		return nil
	}
	s.record.BytesIn += int64(len(f.payload))
	over := f.endsStream() && c.clientEnds(s)
	c.mu.Unlock()
	if over {
		c.endStream(f.stream, bothEnded)
	}
	return nil
}

// clientEnds records that the client has sent the last frame of a stream, and
// reports whether the stream is over. It is called with mu held.
func (c *conn) clientEnds(s *stream) bool {
	s.clientEnded = true
	return s.podEnded
}

func (c *conn) onReset(f *frame) error {
	if len(f.payload) != 4 {
		return connError{http2.ErrCodeFrameSize, "RST_STREAM whose length is not 4"}
	}
	if f.stream == 0 || f.stream > c.lastStream {
		return connError{http2.ErrCodeProtocol, "RST_STREAM for a stream that was not opened"}
	}
	if c.holds(f.stream) {
		return c.resetHeld(f)
	}
	if c.ignored(f.stream) {
		c.dropped = c.dropped.without(f.stream)
		return nil
	}
	c.toPod.add(f.raw)
	c.endStream(f.stream, clientReset)
	return nil
}

func (c *conn) onSettings(f *frame) error {
	if f.stream != 0 {
		return connError{http2.ErrCodeProtocol, "SETTINGS on a stream"}
	}
	if f.flags.Has(http2.FlagSettingsAck) {
		return c.onSettingsAck(f)
	}
	if c.pod == nil {
		if err := c.flood.take(time.Now()); err != nil {
			return err
		}
		if err := c.holdSettings(f); err != nil {
			return err
		}
		c.marks = append(c.marks, tableMark{at: len(c.reply), size: int64(c.settings.tableSize)})
		c.reply = appendSettingsAck(c.reply)
		return nil
	}
	next := settingsForPod{table: -1}
	var passed []http2.Setting
	err := parseSettings(f, func(setting http2.Setting) {
		switch setting.ID {
		case http2.SettingHeaderTableSize:
			next.table = int64(min(setting.Val, initialTableSize))
		case http2.SettingInitialWindowSize:
			c.settings.initialWindow = setting.Val
		}
		if setting, ok := forPod(setting); ok {
			passed = append(passed, setting)
		}
	})
	if err != nil {
		return err
	}
	next.frame = appendSettings(nil, passed...)
	return c.passSettings(next)
}

// onSettingsAck passes the ACK of the pod's SETTINGS on.
func (c *conn) onSettingsAck(f *frame) error {
	if len(f.payload) > 0 {
		return connError{http2.ErrCodeFrameSize, "an ACK of SETTINGS with a payload"}
	}
	c.mu.Lock()
	if len(c.acks.client) == 0 {
		c.mu.Unlock()
		// It is of nothing, which costs nothing.
		return c.flood.take(time.Now())
	}
	pods := c.acks.client[0]
	c.acks.client = c.acks.client[1:]
	tableSize := int64(-1)
	if pods {
		tableSize = c.acks.podTables[0]
		c.acks.podTables = c.acks.podTables[1:]
	}
	c.mu.Unlock()
	if !pods || c.pod == nil {
		return nil
	}
	c.toPod.add(f.raw)
	if tableSize >= 0 {
		// The pod knows by this ACK that its table has another size.
		c.encoder.SetMaxDynamicTableSize(uint32(tableSize))
		c.resized = true
	}
	return nil
}

func (c *conn) onPing(f *frame) error {
	switch {
	case len(f.payload) != 8:
		return connError{http2.ErrCodeFrameSize, "PING whose length is not 8"}
	case f.stream != 0:
		return connError{http2.ErrCodeProtocol, "PING on a stream"}
	case c.isShutdownPing(f):
		if !c.shutdown.final {
			c.finishShutdown()
		}
		return nil
	case c.pod != nil:
		c.toPod.add(f.raw)
		return nil
	}
	if err := c.flood.take(time.Now()); err != nil {
		return err
	}
	if !f.flags.Has(http2.FlagPingAck) {
		c.reply = appendPing(c.reply, http2.FlagPingAck, f.payload)
	}
	return nil
}

func (c *conn) onWindowUpdate(f *frame) error {
	if len(f.payload) != 4 {
		return connError{http2.ErrCodeFrameSize, "WINDOW_UPDATE whose length is not 4"}
	}
	if f.stream > c.lastStream {
		return connError{http2.ErrCodeProtocol, "WINDOW_UPDATE for a stream that was not opened"}
	}
	if c.holds(f.stream) {
		return c.holdWindowUpdate(f)
	}
	if f.stream != 0 && c.ignored(f.stream) {
		return nil
	}
	c.toPod.add(f.raw)
	return nil
}

func (c *conn) onGoAway(f *frame) error {
	if len(f.payload) < 8 {
		return connError{http2.ErrCodeFrameSize, "GOAWAY that is too short"}
	}
	if f.stream != 0 {
		return connError{http2.ErrCodeProtocol, "GOAWAY on a stream"}
	}
	if c.pod != nil {
		c.toPod.add(f.raw)
		return nil
	}
	// The last one says it all.
	c.goAway = appendGoAway(c.goAway[:0], f.value(), http2.ErrCode(binary.BigEndian.Uint32(f.payload[4:])),
		string(f.payload[8:min(len(f.payload), 8+maxHeldDetail)]))
	return c.flood.take(time.Now())
}

// onPriority drops priorities, which RFC 9113 no longer has.
func (c *conn) onPriority(f *frame) error {
	if len(f.payload) != 5 {
		return connError{http2.ErrCodeFrameSize, "PRIORITY whose length is not 5"}
	}
	if f.stream == 0 {
		return connError{http2.ErrCodeProtocol, "PRIORITY without a stream"}
	}
	if c.pod != nil {
		return nil
	}
	return c.flood.take(time.Now())
}
