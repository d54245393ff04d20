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
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// errClientWrite means that the client does not take what the pod sends.
var errClientWrite = errors.New("sending to the client")

// maxPodField bounds a name or value in the header blocks of a pod: what there is of
// one that is not complete is kept until it is. Blocks with a longer one pass, and
// from then on none is followed.
const maxPodField = 64 << 10

// pod is the connection to the pod.
type pod struct {
	// Immutable.
	conn  net.Conn
	lease hold.Lease
	// running is the goroutine that reads from it.
	running sync.WaitGroup
	// closed is true once this side has closed the connection.
	closed atomic.Bool
	// passing is true while frames of it may be on their way to the client.
	passing atomic.Bool

	// Owned by the goroutine that reads from the client.
	out *sender
	// waiting counts what is written to it but not taken, kept what may have to be
	// sent to another.
	waiting, kept memory.Charge

	// Owned by the goroutine that reads, and then by the one that waited for it.
	in *input
	// rest counts what in keeps of a frame that is not complete.
	rest restCharge
	// until is the read deadline.
	until time.Time
	// decoder follows the header blocks for the status codes in them. Nil when
	// they cannot be decoded, which is the client's to find.
	decoder *hpack.Decoder
	status  int
	// table is what the decoder keeps, part how many bytes there are of a header block
	// that is not complete.
	table tableUse
	part  int
	// frames is used again for what is passed on.
	frames net.Buffers
	// marks are those of them that concern the client's table.
	marks []tableMark
	// block is the stream of a header block that is not complete, blockEnds
	// whether its stream ends with it.
	block     uint32
	blockEnds bool
	// spoke is true once a frame came, lost when the connection ended by itself.
	spoke, lost bool
	// silentBytes is what the kernel of a pod that never said anything has
	// acknowledged.
	silentBytes uint64
	err         error
	panicked    any

	// forgotten is true when what was replayed is not kept any more, reset when
	// writing found that the pod has reset the connection. Owned by the goroutine
	// that reads from the client.
	forgotten, reset bool
}

// startPod makes the connection the one to a pod, and the streams those that are
// forwarded.
func (c *conn) startPod(tcp net.Conn, lease hold.Lease, streams []*stream) {
	p := &pod{
		conn: tcp, lease: lease, in: newInput(tcp, nil), out: newSender(tcp),
		waiting: c.account.Charge(), kept: c.service.Memory().Charge(), rest: restCharge{charge: c.account.Charge()},
	}
	p.decoder = hpack.NewDecoder(initialTableSize, p.field)
	p.decoder.SetMaxStringLength(maxPodField)
	c.pod, c.podStream = p, 0
	c.encoder, c.resized = hpack.NewEncoder(&c.toPod), false
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replayable = true
	c.streams, c.many = make(map[uint32]*stream, len(streams)), len(streams) > manyStreams
	for _, s := range streams {
		c.streams[s.id] = s
	}
}

func (p *pod) close() {
	p.closed.Store(true)
	p.conn.Close()
}

// field takes the status out of a header block.
func (p *pod) field(field hpack.HeaderField) {
	if field.Name == ":status" {
		p.status, _ = strconv.Atoi(field.Value)
	}
	if field.Name == "" || field.Name[0] != ':' {
		p.decoder.SetEmitEnabled(false)
	}
}

// readPod passes on what the pod sends until its connection ends.
func (c *conn) readPod() {
	p := c.pod
	defer func() {
		if value := recover(); value != nil {
			p.err = fmt.Errorf("panic: %v", value)
			p.panicked = fmt.Sprintf("%v\n%s", value, debug.Stack())
		}
		if !p.spoke {
			p.silentBytes = acknowledged(p.conn)
		}
		p.lost = !errors.Is(p.err, errClientWrite) && !p.closed.Load()
		p.in.release()
		p.rest.charge.Release()
		p.passing.Store(false)
		// What still waits to be written to it need not wait any more.
		p.conn.Close()
		c.events.endPod()
	}()
	open := false
	for {
		p.passing.Store(true)
		frames, stillOpen, err := c.podFrames(p)
		if len(frames) > 0 {
			if writeErr := c.out.pass(frames, p.marks, open, stillOpen); writeErr != nil {
				p.err = fmt.Errorf("%w: %w", errClientWrite, writeErr)
				return
			}
			open = stillOpen
			p.trim()
		}
		c.passed(p)
		if err == nil {
			err = p.fill()
		}
		if err != nil {
			p.err = err
			return
		}
	}
}

// passed is called when the client was sent all frames of the pod that there are.
func (c *conn) passed(p *pod) {
	p.passing.Store(false)
	c.mu.Lock()
	last := c.closing && len(c.streams) == 0
	c.mu.Unlock()
	if last {
		c.events.idle()
	}
}

// trim gives back what many small frames have made large.
func (p *pod) trim() {
	const enough = 64
	if cap(p.frames) > enough {
		p.frames = nil
	}
	if cap(p.marks) > enough {
		p.marks = nil
	}
}

// fill waits for more bytes. While there is no room for what is kept of a frame, the
// rest of that may not take long.
func (p *pod) fill() error {
	until, err := p.rest.count(p.in.size())
	if err != nil {
		return err
	}
	if !until.Equal(p.until) {
		p.until = until
		// It fails only when the connection is closed, as reading does then.
		_ = p.conn.SetReadDeadline(until)
	}
	if err := p.in.fill(); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return errNoRoom
}

// acknowledged returns how many bytes the kernel of a pod has acknowledged. It returns the
// greatest number when that is not known.
func acknowledged(conn net.Conn) uint64 {
	if tcp, ok := conn.(syscall.Conn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			if bytes, err := socket.Acknowledged(raw); err == nil {
				return bytes
			}
		}
	}
	return ^uint64(0)
}

// podFrames returns all complete frames that were read from the pod as the client
// is to get them, and whether a header block is not complete at their end.
func (c *conn) podFrames(p *pod) (frames net.Buffers, open bool, err error) {
	data := p.in.unread()
	frames, p.marks = p.frames[:0], p.marks[:0]
	defer func() { p.frames = frames }()
	// data[from:to] passes as it is.
	from, to := 0, 0
	pass := func() {
		if from < to {
			frames = append(frames, data[from:to])
		}
	}
	for {
		f, ok, err := parseFrame(data[to:])
		if !ok {
			pass()
			if p.in.consume(to); to > 0 {
				p.rest.moved()
			}
			return frames, p.block != 0, err
		}
		replacement, replaced, err := c.podFrame(p, &f)
		if err != nil {
			pass()
			return frames, p.block != 0, err
		}
		if replaced {
			pass()
			if len(replacement) > 0 {
				frames = append(frames, replacement)
			}
			to += len(f.raw)
			from = to
			continue
		}
		to += len(f.raw)
	}
}

// podFrame handles one frame of the pod. It returns what the client gets in
// its place when it is replaced.
func (c *conn) podFrame(p *pod, f *frame) (replacement []byte, replaced bool, err error) {
	if !p.spoke {
		if f.kind != http2.FrameSettings || f.flags.Has(http2.FlagSettingsAck) {
			return nil, false, connError{http2.ErrCodeProtocol, "the pod does not begin with SETTINGS"}
		}
		p.spoke = true
		c.mu.Lock()
		c.replayable = false
		c.mu.Unlock()
		c.events.speak()
	}
	if p.block != 0 && (f.kind != http2.FrameContinuation || f.stream != p.block) {
		return nil, false, connError{http2.ErrCodeProtocol, "the pod sent another frame inside of a header block"}
	}
	switch f.kind {
	case http2.FrameData:
		c.mu.Lock()
		if s := c.streams[f.stream]; s != nil {
			s.record.BytesOut += int64(len(f.payload))
		}
		c.mu.Unlock()
		if f.endsStream() {
			c.podEndsStream(f.stream)
		}
	case http2.FrameHeaders:
		return nil, false, c.podHeaders(p, f)
	case http2.FrameContinuation:
		if p.block == 0 {
			return nil, false, connError{http2.ErrCodeProtocol, "the pod sent CONTINUATION without HEADERS"}
		}
		c.podFragment(p, f.payload, f.endsBlock())
	case http2.FrameRSTStream:
		c.endStream(f.stream, podReset(f.code()))
	case http2.FrameSettings:
		return c.podSettings(p, f)
	case http2.FrameGoAway:
		return c.podGoAway(f)
	case http2.FramePushPromise:
		return nil, false, connError{http2.ErrCodeProtocol, "the pod sent PUSH_PROMISE"}
	}
	return nil, false, nil
}

func (c *conn) podHeaders(p *pod, f *frame) error {
	fragment, err := f.fragment()
	if err != nil {
		return err
	}
	p.block, p.blockEnds, p.status = f.stream, f.endsStream(), 0
	if f.stream == 0 {
		return connError{http2.ErrCodeProtocol, "the pod sent HEADERS without a stream"}
	}
	if p.decoder != nil {
		p.decoder.SetEmitEnabled(true)
	}
	c.podFragment(p, fragment, f.endsBlock())
	return nil
}

// podFragment follows a part of a header block.
func (c *conn) podFragment(p *pod, fragment []byte, last bool) {
	if p.decoder != nil && !c.follow(p, fragment, last) {
		p.decoder = nil
		c.forgetTable(&p.table)
	}
	if !last {
		return
	}
	id := p.block
	p.block = 0
	p.marks = append(p.marks, tableMark{size: -1})
	c.mu.Lock()
	if s := c.streams[id]; s != nil && !s.responded && p.status >= http.StatusOK {
		s.responded = true
		s.record.Status, s.record.Responded = p.status, time.Now()
	}
	c.mu.Unlock()
	if p.blockEnds {
		c.podEndsStream(id)
	}
}

// follow decodes a part of a header block. It reports false when the block is malformed, or
// when there is no room for what is kept of it: nothing after it can be decoded then.
func (c *conn) follow(p *pod, fragment []byte, last bool) bool {
	if last && p.part == 0 {
		p.table.note(fragment)
	} else {
		p.part = min(p.part+len(fragment), 2*maxPodField)
		p.table.noteParts(p.part)
	}
	if c.countTable(&p.table) != nil {
		return false
	}
	if _, err := p.decoder.Write(fragment); err != nil {
		return false
	}
	if !last {
		return true
	}
	p.part = 0
	if p.decoder.Close() != nil {
		return false
	}
	forgetBlock(p.decoder)
	return true
}

// podEndsStream records that the pod has sent the last frame of a stream.
func (c *conn) podEndsStream(id uint32) {
	c.mu.Lock()
	s := c.streams[id]
	if s == nil {
		c.mu.Unlock()
		return
	}
	s.podEnded = true
	over := s.clientEnded
	c.mu.Unlock()
	if over {
		c.endStream(id, bothEnded)
	}
}

// ending returns how a stream ends, given what it was.
type ending func(*stream) (accesslog.Outcome, string)

func bothEnded(*stream) (accesslog.Outcome, string) { return accesslog.Forwarded, "" }

func clientReset(s *stream) (accesslog.Outcome, string) {
	if s.podEnded {
		return accesslog.Forwarded, ""
	}
	return accesslog.ClientGone, ""
}

func podReset(code http2.ErrCode) ending {
	return func(s *stream) (accesslog.Outcome, string) {
		if s.podEnded || s.responded && code == http2.ErrCodeNo {
			return accesslog.Forwarded, ""
		}
		return accesslog.Failed, "the pod reset the stream: " + code.String()
	}
}

func rejectedByGoAway(*stream) (accesslog.Outcome, string) {
	return accesslog.Failed, "the pod left before it took the stream"
}

// endStream takes a stream out of those that are forwarded and reports its end.
// Both reading goroutines call it.
func (c *conn) endStream(id uint32, how ending) {
	c.mu.Lock()
	s := c.streams[id]
	if s == nil {
		c.mu.Unlock()
		return
	}
	last := c.remove(s)
	c.mu.Unlock()
	s.lease.Release()
	if last {
		c.events.idle()
	}
	outcome, reason := how(s)
	c.finish(s, outcome, reason)
}

// podSettings returns the SETTINGS that the client is sent for those of the pod.
func (c *conn) podSettings(p *pod, f *frame) (replacement []byte, replaced bool, err error) {
	if f.flags.Has(http2.FlagSettingsAck) {
		passedOn, size := c.podAcked()
		if size >= 0 {
			p.marks = append(p.marks, tableMark{size: size})
		}
		return nil, !passedOn, nil
	}
	var passed []http2.Setting
	tableSize := int64(-1)
	err = parseSettings(f, func(setting http2.Setting) {
		if setting.ID == http2.SettingHeaderTableSize {
			tableSize = int64(min(setting.Val, initialTableSize))
		}
		if setting, ok := c.forClient(setting); ok {
			passed = append(passed, setting)
		}
	})
	if err != nil {
		return nil, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acks.client = append(c.acks.client, true)
	c.acks.podTables = append(c.acks.podTables, tableSize)
	if len(c.acks.client) > maxUnacknowledged {
		return nil, false, connError{http2.ErrCodeEnhanceYourCalm, "the pod sent too many SETTINGS"}
	}
	return appendSettings(nil, passed...), true, nil
}

// podGoAway returns the GOAWAY that the client is sent for one of the pod: its last
// stream never grows. Streams beyond it have ended.
func (c *conn) podGoAway(f *frame) (replacement []byte, replaced bool, err error) {
	if len(f.payload) < 8 {
		return nil, false, connError{http2.ErrCodeFrameSize, "the pod sent a GOAWAY that is too short"}
	}
	last, code := f.value(), binary.BigEndian.Uint32(f.payload[4:])
	c.mu.Lock()
	c.goAwayLast = min(c.goAwayLast, last)
	announced := c.goAwayLast
	var rejected []uint32
	for id := range c.streams {
		if id > last {
			rejected = append(rejected, id)
		}
	}
	c.mu.Unlock()
	for _, id := range rejected {
		c.endStream(id, rejectedByGoAway)
	}
	c.events.goAway()
	return appendGoAway(nil, announced, http2.ErrCode(code), string(f.payload[8:])), true, nil
}

// podEnded is called when the connection to the pod has ended.
func (c *conn) podEnded() error {
	p := c.pod
	p.running.Wait()
	p.kept.Release()
	if p.panicked != nil || p.spoke || !p.lost {
		c.rejectHeld()
		return errPodEnded
	}
	if c.toPod.size > 0 || c.settingsWait() {
		// The client has said more, which is not kept.
		c.forgetReplay()
	}
	c.mu.Lock()
	replayable := c.replayable
	streams := make([]*stream, 0, len(c.streams))
	for _, s := range c.streams {
		streams = append(streams, s)
	}
	slices.SortFunc(streams, func(a, b *stream) int { return int(a.id) - int(b.id) })
	c.streams, c.replayable = nil, false
	c.mu.Unlock()
	c.pod = nil
	c.toPod.reset()
	c.forgetTable(&c.podTable)
	c.forgetTable(&p.table)
	c.usage.remove(podBytes)
	// The handshake may count as one byte.
	if replayable && p.silentBytes <= 1 && errors.Is(p.err, io.EOF) {
		for _, s := range c.held {
			c.leaveQueue(s)
		}
		for _, s := range streams {
			c.uncountOpen(s)
		}
		c.held = append(streams, c.held...)
		c.releaseUnconnected()
		c.rejoin()
		return nil
	}
	local := localreply.New(http.StatusBadGateway, localreply.ReasonPodLost,
		"the connection to the pod broke before it responded; the request may have been received, so it was not sent again")
	var broken connError
	if errors.As(p.err, &broken) {
		local = localreply.New(http.StatusBadGateway, localreply.ReasonBadResponse, "the pod does not speak HTTP/2 on this port")
	}
	for _, s := range streams {
		s.lease.Release()
		c.replyLocally(s, local)
	}
	c.rejectHeld()
	c.finishShutdown()
	return nil
}

// forgetReplay forgets what was kept to be sent to another pod.
func (c *conn) forgetReplay() {
	if c.pod == nil || c.pod.forgotten {
		return
	}
	c.pod.forgotten = true
	c.pod.kept.Release()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replayable = false
	for _, s := range c.streams {
		s.held = nil
	}
}

// mirrorPodEnd ends the client's connection as the pod's has ended.
func (c *conn) mirrorPodEnd() {
	if errors.Is(c.pod.err, io.EOF) && !c.pod.reset {
		c.closeGracefully()
		return
	}
	var broken connError
	if errors.As(c.pod.err, &broken) {
		c.reply = appendGoAway(c.reply, min(c.lastStream, c.goAwayLastStream()), http2.ErrCodeInternal, broken.detail)
		c.closeGracefully()
		return
	}
	reset(c.client)
}
