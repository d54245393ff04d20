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
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// marker is what the payload of a PING begins with that an end sends to find out
// what has arrived. It is no part of what is compared.
const marker = "sync"

// end is one end of a connection. A goroutine reads what the other end sends and
// notes it; the test says what is written.
type end struct {
	t      *testing.T
	conn   *net.TCPConn
	framer *http2.Framer
	// done is closed when nothing more can be read.
	done chan struct{}

	mu      sync.Mutex
	encoder *hpack.Encoder
	block   bytes.Buffer
	decoder *hpack.Decoder
	// tables are the table sizes of SETTINGS that the other end has not
	// acknowledged; -1 for those without one.
	tables []int64
	seen   observed
	// syncs counts the markers that were sent.
	syncs uint32
	// ponged is the marker that was acknowledged last. changed is signaled with it.
	ponged  uint32
	changed *sync.Cond
}

func newEnd(t *testing.T, conn net.Conn) *end {
	t.Helper()
	e := &end{t: t, conn: conn.(*net.TCPConn), framer: http2.NewFramer(conn, conn), done: make(chan struct{}), seen: newObserved()}
	e.framer.AllowIllegalWrites, e.framer.AllowIllegalReads = true, true
	e.encoder = hpack.NewEncoder(&e.block)
	e.decoder = hpack.NewDecoder(initialTableSize, nil)
	e.changed = sync.NewCond(&e.mu)
	_ = conn.SetDeadline(time.Now().Add(wireTimeout))
	return e
}

// write calls do, which writes frames. That it fails is seen by what the other end
// does not see.
func (e *end) write(do func(*http2.Framer) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = do(e.framer)
}

func (e *end) raw(kind http2.FrameType, flags http2.Flags, stream uint32, payload string) {
	e.write(func(f *http2.Framer) error { return f.WriteRawFrame(kind, flags, stream, []byte(payload)) })
}

func (e *end) settings(settings ...http2.Setting) {
	table := int64(-1)
	for _, setting := range settings {
		if setting.ID == http2.SettingHeaderTableSize {
			table = int64(setting.Val)
		}
	}
	e.write(func(f *http2.Framer) error {
		e.tables = append(e.tables, table)
		return f.WriteSettings(settings...)
	})
}

// shape is how a header block is framed.
type shape struct {
	end bool
	// splits are where the block is cut into CONTINUATION frames.
	splits   []int
	padding  uint8
	priority http2.PriorityParam
	// secret has all fields sent as never to be indexed.
	secret bool
}

func (e *end) shaped(stream uint32, how shape, pairs ...string) {
	e.write(func(f *http2.Framer) error {
		e.block.Reset()
		for i := 0; i < len(pairs); i += 2 {
			if err := e.encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1], Sensitive: how.secret}); err != nil {
				return err
			}
		}
		block, splits := e.block.Bytes(), cuts(e.block.Len(), how.splits)
		first := block
		if len(splits) > 0 {
			first = block[:splits[0]]
		}
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndStream: how.end,
			EndHeaders: len(splits) == 0, PadLength: how.padding, Priority: how.priority})
		for i, from := range splits {
			to := len(block)
			if i+1 < len(splits) {
				to = splits[i+1]
			}
			err = errors.Join(err, f.WriteContinuation(stream, i+1 == len(splits), block[from:to]))
		}
		return err
	})
}

// cuts returns where a header block is cut: where it is requested, or into frames
// of the largest size.
func cuts(length int, requested []int) []int {
	var at []int
	for _, cut := range requested {
		if cut <= length {
			at = append(at, cut)
		}
	}
	if len(at) == 0 {
		for cut := maxFrame; cut < length; cut += maxFrame {
			at = append(at, cut)
		}
	}
	return at
}

func (e *end) headers(stream uint32, ends bool, pairs ...string) {
	e.shaped(stream, shape{end: ends}, pairs...)
}

func (e *end) data(stream uint32, ends bool, body string) {
	e.write(func(f *http2.Framer) error { return f.WriteData(stream, ends, []byte(body)) })
}

func (e *end) padded(stream uint32, ends bool, body string, padding int) {
	e.write(func(f *http2.Framer) error {
		return f.WriteDataPadded(stream, ends, []byte(body), make([]byte, padding))
	})
}

func (e *end) reset(stream uint32, code http2.ErrCode) {
	e.write(func(f *http2.Framer) error { return f.WriteRSTStream(stream, code) })
}

func (e *end) grant(stream, increment uint32) {
	e.write(func(f *http2.Framer) error { return f.WriteWindowUpdate(stream, increment) })
}

func (e *end) ping(text string) {
	e.write(func(f *http2.Framer) error { return f.WritePing(false, [8]byte([]byte(text))) })
}

func (e *end) goAway(last uint32, code http2.ErrCode, detail string) {
	e.write(func(f *http2.Framer) error { return f.WriteGoAway(last, code, []byte(detail)) })
}

// finish tells the other end that nothing more comes.
func (e *end) finish() {
	// It fails only when the connection has ended already.
	_ = e.conn.CloseWrite()
}

// sync returns once the other end has read all that this one has written, or the
// connection has ended.
func (e *end) sync() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.syncs++
	number := e.syncs
	_ = e.framer.WritePing(false, [8]byte(binary.BigEndian.AppendUint32([]byte(marker), number)))
	for e.ponged < number && e.seen.end == "" {
		e.changed.Wait()
	}
}

// awaitEnd returns once the connection has ended.
func (e *end) awaitEnd() { <-e.done }

// awaitAck returns once the other end has acknowledged all SETTINGS, or the
// connection has ended.
func (e *end) awaitAck() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.tables) > 0 && e.seen.end == "" {
		e.changed.Wait()
	}
}

// awaitStream returns once the other end has ended a stream, or the connection
// has ended.
func (e *end) awaitStream(stream uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for !e.seen.ended[stream] && e.seen.end == "" {
		e.changed.Wait()
	}
}

// awaitResponse returns once the other end has sent a header block on a stream, or
// the connection has ended.
func (e *end) awaitResponse(stream uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.seen.frames[stream]) == 0 && e.seen.end == "" {
		e.changed.Wait()
	}
}

// read notes all that the other end sends.
func (e *end) read() {
	defer close(e.done)
	for {
		f, err := e.framer.ReadFrame()
		e.mu.Lock()
		if err != nil {
			e.seen.end = endOf(err)
			e.changed.Broadcast()
			e.mu.Unlock()
			return
		}
		e.note(f)
		e.changed.Broadcast()
		e.mu.Unlock()
	}
}

func endOf(err error) string {
	switch {
	case errors.Is(err, io.EOF):
		return "end"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.ErrUnexpectedEOF):
		return "reset"
	case errors.Is(err, net.ErrClosed):
		return "closed"
	}
	return err.Error()
}

// note notes a frame, and acknowledges those that every end has to acknowledge. It is
// called with mu held.
func (e *end) note(f http2.Frame) {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		e.noteSettings(f)
	case *http2.PingFrame:
		e.notePing(f)
	case *http2.HeadersFrame:
		e.seen.block = block{stream: f.StreamID, end: f.StreamEnded()}
		e.noteFragment(f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.ContinuationFrame:
		e.noteFragment(f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.WindowUpdateFrame:
		e.seen.grants[f.StreamID] += uint64(f.Increment)
	case *http2.DataFrame:
		e.seen.data(f)
	case *http2.RSTStreamFrame:
		e.seen.add(f.StreamID, fmt.Sprintf("RST_STREAM %s", f.ErrCode))
		e.seen.ended[f.StreamID] = true
	case *http2.GoAwayFrame:
		e.seen.add(0, fmt.Sprintf("GOAWAY %d %s %q", f.LastStreamID, f.ErrCode, f.DebugData()))
	case *http2.UnknownFrame:
		e.seen.add(f.StreamID, fmt.Sprintf("%s %x %q", f.Type, f.Flags, f.Payload()))
	}
}

func (e *end) noteSettings(f *http2.SettingsFrame) {
	if f.IsAck() {
		if len(e.tables) > 0 {
			if table := e.tables[0]; table >= 0 {
				e.decoder.SetAllowedMaxDynamicTableSize(uint32(table))
			}
			e.tables = e.tables[1:]
		}
		return
	}
	for id, value := range valuesOf(f) {
		e.seen.settings[id] = value
		if id == http2.SettingHeaderTableSize {
			e.encoder.SetMaxDynamicTableSize(min(value, initialTableSize))
		}
	}
	_ = e.framer.WriteSettingsAck()
}

func (e *end) notePing(f *http2.PingFrame) {
	own := string(f.Data[:len(marker)]) == marker
	switch {
	case own && f.IsAck():
		e.ponged = max(e.ponged, binary.BigEndian.Uint32(f.Data[len(marker):]))
		return
	case !own:
		e.seen.add(0, fmt.Sprintf("PING ack=%v %q", f.IsAck(), f.Data))
	}
	if !f.IsAck() {
		_ = e.framer.WritePing(true, f.Data)
	}
}

func (e *end) noteFragment(fragment []byte, last bool) {
	b := &e.seen.block
	b.data = append(b.data, fragment...)
	if !last {
		return
	}
	fields, err := e.decoder.DecodeFull(b.data)
	word := "HEADERS"
	for _, field := range fields {
		if field.Name == "date" {
			continue
		}
		word += fmt.Sprintf(" %s=%q", field.Name, field.Value)
		if field.Sensitive {
			word += "!"
		}
	}
	if err != nil {
		word += " " + err.Error()
	}
	e.seen.add(b.stream, fmt.Sprintf("%s end=%v", word, b.end))
	e.seen.ended[b.stream] = e.seen.ended[b.stream] || b.end
}
