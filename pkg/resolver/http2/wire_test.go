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
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// wire is one end of a connection that is spoken to frame by frame.
type wire struct {
	t *testing.T
	net.Conn
	*http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer
	decoder *hpack.Decoder
}

// wireTimeout bounds how long a test waits for a frame that should come.
const wireTimeout = time.Minute

func newWire(t *testing.T, conn net.Conn) *wire {
	t.Helper()
	w := &wire{t: t, Conn: conn, Framer: http2.NewFramer(conn, conn)}
	w.AllowIllegalWrites = true
	w.AllowIllegalReads = true
	w.encoder = hpack.NewEncoder(&w.block)
	w.decoder = hpack.NewDecoder(initialTableSize, nil)
	_ = conn.SetDeadline(time.Now().Add(wireTimeout))
	return w
}

// dialWire connects and sends the preface and SETTINGS.
func dialWire(t *testing.T, address string, settings ...http2.Setting) *wire {
	t.Helper()
	w := dialRaw(t, address)
	w.write(http2.ClientPreface)
	w.do(w.WriteSettings(settings...))
	return w
}

func dialRaw(t *testing.T, address string) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return newWire(t, conn)
}

// do fails the test for an error of a write.
func (w *wire) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Error(err)
	}
}

func (w *wire) write(data string) {
	w.t.Helper()
	_, err := io.WriteString(w.Conn, data)
	w.do(err)
}

// encode returns a header block of names and values.
func (w *wire) encode(pairs ...string) []byte {
	w.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		w.do(w.encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}))
	}
	return w.block.Bytes()
}

// get are the fields of a request.
func get(pairs ...string) []string {
	return append([]string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "cart"}, pairs...)
}

func post(pairs ...string) []string {
	return append([]string{":method", "POST", ":scheme", "http", ":path", "/", ":authority", "cart"}, pairs...)
}

func (w *wire) headers(id uint32, end bool, pairs ...string) {
	w.t.Helper()
	w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.encode(pairs...), EndStream: end, EndHeaders: true}))
}

// decode returns the fields of a complete HEADERS frame.
func (w *wire) decode(f *http2.HeadersFrame) map[string]string {
	w.t.Helper()
	fields, err := w.decoder.DecodeFull(f.HeaderBlockFragment())
	if err != nil {
		w.t.Fatalf("decoding a header block: %v", err)
	}
	decoded := map[string]string{}
	for _, field := range fields {
		decoded[field.Name] = field.Value
	}
	return decoded
}

// next returns the next frame for which wanted is true. SETTINGS are acknowledged
// and PINGs acknowledged on the way.
func (w *wire) next(wanted func(http2.Frame) bool) (http2.Frame, error) {
	for {
		f, err := w.ReadFrame()
		if err != nil {
			return nil, err
		}
		if wanted(f) {
			return f, nil
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				// It fails where the end of the connection is what a test is about.
				_ = w.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = w.WritePing(true, f.Data)
			}
		}
	}
}

// await is next for a type of frame that must come.
func await[F http2.Frame](w *wire) F {
	w.t.Helper()
	f, err := w.next(func(f http2.Frame) bool { _, ok := f.(F); return ok })
	if err != nil {
		var want F
		w.t.Fatalf("waiting for %T: %v", want, err)
	}
	return f.(F)
}

// fault returns how the other side reports a fault: "GOAWAY CODE", "RST_STREAM
// CODE" or how the connection ended.
func (w *wire) fault() string {
	f, err := w.next(func(f http2.Frame) bool {
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			return f.ErrCode != http2.ErrCodeNo
		case *http2.RSTStreamFrame:
			return true
		}
		return false
	})
	switch f := f.(type) {
	case *http2.GoAwayFrame:
		return "GOAWAY " + f.ErrCode.String()
	case *http2.RSTStreamFrame:
		return "RST_STREAM " + f.ErrCode.String()
	}
	if errors.Is(err, io.EOF) {
		return "end"
	}
	return err.Error()
}

// rawPod accepts connections and has each of them served.
func rawPod(t *testing.T, serve func(*wire)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	ended, end := context.WithCancel(context.Background())
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer context.AfterFunc(ended, func() { conn.Close() })()
				defer conn.Close()
				serve(newWire(t, conn))
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		end()
		running.Wait()
	})
	return listener.Addr().String()
}

// greet reads the preface and sends SETTINGS.
func (w *wire) greet(settings ...http2.Setting) bool {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(w.Conn, preface); err != nil || string(preface) != http2.ClientPreface {
		return false
	}
	return w.WriteSettings(settings...) == nil
}

// events reads frames until the connection ends and returns them in words.
func (w *wire) events(each func(http2.Frame)) []string {
	var seen []string
	for {
		f, err := w.ReadFrame()
		if err != nil {
			return seen
		}
		if word := w.word(f); word != "" {
			seen = append(seen, word)
		}
		each(f)
	}
}

// word reports a frame what concerns the other end of a conversation.
func (w *wire) word(f http2.Frame) string {
	id := f.Header().StreamID
	switch f := f.(type) {
	case *http2.HeadersFrame:
		fields, err := w.decoder.DecodeFull(f.HeaderBlockFragment())
		return fmt.Sprintf("%d HEADERS %v end=%v %v", id, fields, f.StreamEnded(), err)
	case *http2.DataFrame:
		return fmt.Sprintf("%d DATA %q length=%d end=%v", id, f.Data(), f.Length, f.StreamEnded())
	case *http2.RSTStreamFrame:
		return fmt.Sprintf("%d RST_STREAM %s", id, f.ErrCode)
	case *http2.WindowUpdateFrame:
		return fmt.Sprintf("%d WINDOW_UPDATE %d", id, f.Increment)
	case *http2.PingFrame:
		return fmt.Sprintf("PING ack=%v %q", f.IsAck(), f.Data)
	case *http2.GoAwayFrame:
		return fmt.Sprintf("GOAWAY %d %s %q", f.LastStreamID, f.ErrCode, f.DebugData())
	case *http2.UnknownFrame:
		return fmt.Sprintf("%d unknown %d %q", id, f.Type, f.Payload())
	}
	return ""
}

// pipePods makes connections to a pod in memory: each is served by serve.
func pipePods(t *testing.T, running *sync.WaitGroup, serve func(*wire)) func(context.Context) (net.Conn, error) {
	t.Helper()
	return func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		running.Go(func() {
			defer far.Close()
			w := newWire(t, far)
			_ = far.SetDeadline(time.Time{})
			serve(w)
		})
		return near, nil
	}
}

func long(n int) string { return strings.Repeat("x", n) }

func hpackDecoder() *hpack.Decoder { return hpack.NewDecoder(initialTableSize, nil) }
