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
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// faults are what a client must not do, by the section of RFC 9113 that says so,
// and how that is reported. While the stream is held the resolver tells; awake, the
// resolver or the pod.
var faults = []struct {
	name string
	// do does it; id is a stream that was not used yet.
	do   func(w *wire, id uint32)
	want string
	// awake is another response that the pod may give. "-": none, as it is harmless.
	awake string
}{
	{"4.2 a frame that is too long", func(w *wire, id uint32) {
		w.headers(id, false, post()...)
		w.do(w.WriteRawFrame(http2.FrameData, 0, id, make([]byte, 16385)))
	}, "GOAWAY FRAME_SIZE_ERROR", ""},
	{"4.3 a header block that cannot be decoded", func(w *wire, id uint32) {
		w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0x0f}, EndHeaders: true, EndStream: true}))
	}, "GOAWAY COMPRESSION_ERROR", ""},
	{"4.3 a header block that is not complete", func(w *wire, id uint32) {
		w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x40, 0x05, 'a'}, EndHeaders: true, EndStream: true}))
	}, "GOAWAY COMPRESSION_ERROR", ""},
	{"5.1 idle: DATA", func(w *wire, id uint32) { w.do(w.WriteData(id, true, []byte("a"))) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"5.1 idle: RST_STREAM", func(w *wire, id uint32) { w.do(w.WriteRSTStream(id, http2.ErrCodeCancel)) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"5.1 idle: WINDOW_UPDATE", func(w *wire, id uint32) { w.do(w.WriteWindowUpdate(id, 1)) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"5.1 idle: CONTINUATION", func(w *wire, id uint32) { w.do(w.WriteContinuation(id, true, nil)) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"5.1 half-closed: DATA", func(w *wire, id uint32) {
		w.headers(id, true, get(":path", "")[:8]...)
		w.do(w.WriteData(id, true, []byte("a")))
	}, "GOAWAY STREAM_CLOSED", "RST_STREAM STREAM_CLOSED"},
	{"5.1 half-closed: HEADERS", func(w *wire, id uint32) {
		w.headers(id, true, get()...)
		w.headers(id, true, "a", "b")
	}, "GOAWAY STREAM_CLOSED", "RST_STREAM STREAM_CLOSED"},
	{"5.1 closed: HEADERS", func(w *wire, id uint32) {
		w.headers(id, false, post()...)
		w.do(w.WriteRSTStream(id, http2.ErrCodeCancel))
		w.headers(id, true, "a", "b")
	}, "GOAWAY STREAM_CLOSED", "GOAWAY PROTOCOL_ERROR"},
	{"5.1.1 an even stream", func(w *wire, id uint32) { w.headers(id+1, true, get()...) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.1 DATA without a stream", func(w *wire, _ uint32) { w.do(w.WriteData(0, true, []byte("a"))) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.1 padding longer than the frame", func(w *wire, id uint32) {
		w.headers(id, false, post()...)
		w.do(w.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, id, []byte{5, 'a'}))
	}, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.2 another frame in a header block", func(w *wire, id uint32) {
		w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.encode(get()...), EndStream: true}))
		w.do(w.WritePing(false, [8]byte{}))
	}, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.2 HEADERS without a stream", func(w *wire, _ uint32) { w.headers(0, true, get()...) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.2 padding longer than the block", func(w *wire, id uint32) {
		w.do(w.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersPadded|http2.FlagHeadersEndHeaders, id, []byte{9, 1}))
	}, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.3 PRIORITY without a stream", func(w *wire, _ uint32) { w.do(w.WriteRawFrame(http2.FramePriority, 0, 0, make([]byte, 5))) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.3 PRIORITY of another length", func(w *wire, id uint32) { w.do(w.WriteRawFrame(http2.FramePriority, 0, id, make([]byte, 4))) }, "GOAWAY FRAME_SIZE_ERROR", ""},
	{"6.4 RST_STREAM without a stream", func(w *wire, _ uint32) { w.do(w.WriteRSTStream(0, http2.ErrCodeCancel)) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.4 RST_STREAM of another length", func(w *wire, id uint32) {
		w.headers(id, false, post()...)
		w.do(w.WriteRawFrame(http2.FrameRSTStream, 0, id, make([]byte, 3)))
	}, "GOAWAY FRAME_SIZE_ERROR", ""},
	{"6.5 an ACK with a payload", func(w *wire, _ uint32) {
		w.do(w.WriteRawFrame(http2.FrameSettings, http2.FlagSettingsAck, 0, make([]byte, 6)))
	}, "GOAWAY FRAME_SIZE_ERROR", ""},
	{"6.5 SETTINGS on a stream", func(w *wire, id uint32) { w.do(w.WriteRawFrame(http2.FrameSettings, 0, id, nil)) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.5 an ACK on a stream", func(w *wire, id uint32) {
		w.do(w.WriteRawFrame(http2.FrameSettings, http2.FlagSettingsAck, id, nil))
	}, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.5 SETTINGS of another length", func(w *wire, _ uint32) { w.do(w.WriteRawFrame(http2.FrameSettings, 0, 0, make([]byte, 5))) }, "GOAWAY FRAME_SIZE_ERROR", ""},
	{"6.5.2 ENABLE_PUSH", func(w *wire, _ uint32) { w.do(w.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 2})) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.5.2 INITIAL_WINDOW_SIZE", func(w *wire, _ uint32) {
		w.do(w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31}))
	}, "GOAWAY FLOW_CONTROL_ERROR", ""},
	{"6.5.2 MAX_FRAME_SIZE, small", func(w *wire, _ uint32) {
		w.do(w.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 16383}))
	}, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.5.2 MAX_FRAME_SIZE, large", func(w *wire, _ uint32) {
		w.do(w.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 24}))
	}, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.7 PING on a stream", func(w *wire, id uint32) { w.do(w.WriteRawFrame(http2.FramePing, 0, id, make([]byte, 8))) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.7 PING of another length", func(w *wire, _ uint32) { w.do(w.WriteRawFrame(http2.FramePing, 0, 0, make([]byte, 6))) }, "GOAWAY FRAME_SIZE_ERROR", ""},
	{"6.8 GOAWAY on a stream", func(w *wire, id uint32) { w.do(w.WriteRawFrame(http2.FrameGoAway, 0, id, make([]byte, 8))) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.9 WINDOW_UPDATE of nothing for the connection", func(w *wire, _ uint32) { w.do(w.WriteRawFrame(http2.FrameWindowUpdate, 0, 0, make([]byte, 4))) }, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.9 WINDOW_UPDATE of nothing for a stream", func(w *wire, id uint32) {
		w.headers(id, false, post()...)
		w.do(w.WriteRawFrame(http2.FrameWindowUpdate, 0, id, make([]byte, 4)))
	}, "RST_STREAM PROTOCOL_ERROR", "GOAWAY PROTOCOL_ERROR"},
	{"6.9 WINDOW_UPDATE of another length", func(w *wire, _ uint32) { w.do(w.WriteRawFrame(http2.FrameWindowUpdate, 0, 0, make([]byte, 3))) }, "GOAWAY FRAME_SIZE_ERROR", ""},
	{"6.9.1 the window of the connection overflows", func(w *wire, _ uint32) {
		w.do(w.WriteWindowUpdate(0, 1<<31-1))
		w.do(w.WriteWindowUpdate(0, 1<<31-1))
	}, "GOAWAY FLOW_CONTROL_ERROR", ""},
	{"6.9.1 the window of a stream overflows", func(w *wire, id uint32) {
		w.headers(id, false, post()...)
		w.do(w.WriteWindowUpdate(id, 1<<31-1))
		w.do(w.WriteWindowUpdate(id, 1<<31-1))
	}, "RST_STREAM FLOW_CONTROL_ERROR", ""},
	{"6.10 CONTINUATION after the end of the block", func(w *wire, id uint32) {
		w.headers(id, false, post()...)
		w.do(w.WriteContinuation(id, true, nil))
	}, "GOAWAY PROTOCOL_ERROR", ""},
	{"6.10 CONTINUATION on another stream", func(w *wire, id uint32) {
		w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.encode(get()...), EndStream: true}))
		w.do(w.WriteContinuation(id+2, true, nil))
	}, "GOAWAY PROTOCOL_ERROR", ""},
	{"8.1 trailers that do not end the stream", func(w *wire, id uint32) {
		w.headers(id, false, post()...)
		w.headers(id, false, "a", "b")
	}, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.1 a pseudo-header field among the trailers", func(w *wire, id uint32) {
		w.headers(id, false, post()...)
		w.headers(id, true, ":path", "/b")
	}, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.1.1 trailers with a line feed", func(w *wire, id uint32) {
		w.headers(id, false, post()...)
		w.headers(id, true, "a", "b\nc")
	}, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.2.1 an upper-case name", func(w *wire, id uint32) { w.headers(id, true, get("A", "b")...) }, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.2.1 a line feed in a value", func(w *wire, id uint32) { w.headers(id, true, get("a", "b\nc")...) }, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.2.2 Connection", func(w *wire, id uint32) { w.headers(id, true, get("connection", "close")...) }, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.2.2 Transfer-Encoding", func(w *wire, id uint32) { w.headers(id, true, get("transfer-encoding", "chunked")...) }, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.2.2 TE", func(w *wire, id uint32) { w.headers(id, true, get("te", "gzip")...) }, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.3 an unknown pseudo-header field", func(w *wire, id uint32) { w.headers(id, true, append([]string{":a", "b"}, get()...)...) }, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.3 :status", func(w *wire, id uint32) { w.headers(id, true, append([]string{":status", "200"}, get()...)...) }, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.3 a pseudo-header field after another", func(w *wire, id uint32) {
		w.headers(id, true, ":method", "GET", "a", "b", ":scheme", "http", ":path", "/")
	}, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.3.1 no :method", func(w *wire, id uint32) { w.headers(id, true, ":scheme", "http", ":path", "/") }, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.3.1 no :scheme", func(w *wire, id uint32) { w.headers(id, true, ":method", "GET", ":path", "/") }, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.3.1 no :path", func(w *wire, id uint32) { w.headers(id, true, ":method", "GET", ":scheme", "http") }, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.3.1 an empty :path", func(w *wire, id uint32) { w.headers(id, true, ":method", "GET", ":scheme", "http", ":path", "") }, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.3.1 two :path", func(w *wire, id uint32) { w.headers(id, true, append([]string{":path", "/a"}, get()...)...) }, "RST_STREAM PROTOCOL_ERROR", ""},
	{"8.4 PUSH_PROMISE", func(w *wire, id uint32) {
		w.do(w.WritePushPromise(http2.PushPromiseParam{StreamID: id, PromiseID: 2, BlockFragment: w.encode(get()...), EndHeaders: true}))
	}, "GOAWAY PROTOCOL_ERROR", ""},
	{"10.5 header blocks without end", func(w *wire, id uint32) {
		w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.encode(get()...)}))
		for range 200 {
			if w.WriteContinuation(id, false, nil) != nil {
				return
			}
		}
	}, "GOAWAY ENHANCE_YOUR_CALM", ""},
}

func TestFaultsOfClients(t *testing.T) {
	pod := httpPod(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ready" {
			return
		}
		// Its end is the client's to bring about.
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	for _, test := range faults {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, nil)
			t.Run("held", func(t *testing.T) {
				w := dialWire(t, f.address)
				test.do(w, 3)
				if got := w.fault(); got != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
				w.Close()
				f.held(0)
			})
			f.pods(pod)
			t.Run("awake", func(t *testing.T) {
				w := dialWire(t, f.address)
				w.headers(1, true, ":method", "GET", ":scheme", "http", ":path", "/ready", ":authority", "cart")
				await[*http2.HeadersFrame](w)
				test.do(w, 3)
				if got := w.fault(); got != test.want && got != test.awake {
					t.Errorf("got %s, want %s or %s", got, test.want, test.awake)
				}
				w.Close()
			})
			f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
		})
	}
}

func TestConnectionsThatDoNotBeginAsTheyMust(t *testing.T) {
	for name, data := range map[string]string{
		"another preface":          "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
		"HTTP/1.1":                 "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"PING instead of SETTINGS": http2.ClientPreface + "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
		"an ACK before SETTINGS":   http2.ClientPreface + "\x00\x00\x00\x04\x01\x00\x00\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			w := dialRaw(t, newFixture(t, nil).address)
			w.write(data)
			if got := w.fault(); got != "GOAWAY PROTOCOL_ERROR" {
				t.Errorf("got %s", got)
			}
		})
	}
}

// allowed are requests that look odd and are right.
var allowed = map[string]func(w *wire, id uint32){
	"padding": func(w *wire, id uint32) {
		w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.encode(post()...), EndHeaders: true, PadLength: 200}))
		w.do(w.WriteDataPadded(id, false, []byte("body"), make([]byte, 255)))
		w.do(w.WriteDataPadded(id, true, nil, make([]byte, 100)))
	},
	"a priority in HEADERS, and PRIORITY": func(w *wire, id uint32) {
		w.do(w.WritePriority(id, http2.PriorityParam{StreamDep: 0, Weight: 3}))
		w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.encode(post()...), EndHeaders: true, Priority: http2.PriorityParam{StreamDep: 1, Weight: 9, Exclusive: true}}))
		w.do(w.WritePriority(id, http2.PriorityParam{StreamDep: 0, Weight: 3}))
		w.do(w.WriteData(id, true, []byte("body")))
	},
	"CONTINUATION": func(w *wire, id uint32) {
		block := append([]byte(nil), w.encode(post("a", long(3000))...)...)
		w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:1]}))
		w.do(w.WriteContinuation(id, false, nil))
		for _, c := range [][]byte{block[1:100], block[100:2000]} {
			w.do(w.WriteContinuation(id, false, c))
		}
		w.do(w.WriteContinuation(id, true, block[2000:]))
		w.do(w.WriteData(id, true, []byte("body")))
	},
	"trailers": func(w *wire, id uint32) {
		w.headers(id, false, post("trailer", "x-t", "te", "trailers")...)
		w.do(w.WriteData(id, false, []byte("body")))
		w.headers(id, true, "x-t", "t")
	},
	"empty DATA": func(w *wire, id uint32) {
		w.headers(id, false, post()...)
		w.do(w.WriteData(id, false, nil))
		w.do(w.WriteData(id, false, []byte("body")))
		w.do(w.WriteData(id, true, nil))
	},
	"unknown frames, settings and flags": func(w *wire, id uint32) {
		w.do(w.WriteRawFrame(0xee, 0xff, 0, []byte("?")))
		w.do(w.WriteSettings(http2.Setting{ID: 0xfff, Val: 1}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20}))
		w.headers(id, false, post()...)
		w.do(w.WriteRawFrame(0xee, 0, id, []byte("?")))
		w.do(w.WriteRawFrame(http2.FrameData, 0xf0|http2.FlagDataEndStream, id, []byte("body")))
	},
	"streams that are left out": func(w *wire, id uint32) {
		w.headers(id+1000, false, post()...)
		w.do(w.WriteData(id+1000, true, []byte("body")))
	},
	"a table of 0": func(w *wire, id uint32) {
		w.do(w.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
		w.headers(id, false, post("a", "b")...)
		w.do(w.WriteData(id, true, []byte("body")))
	},
	"a header block over several frames of the pod": func(w *wire, id uint32) {
		w.headers(id, false, post("x-size", "40000")...)
		w.do(w.WriteData(id, true, []byte("body")))
	},
}

// TestWhatIsAllowedIsAllowed sends what looks odd and is right.
func TestWhatIsAllowedIsAllowed(t *testing.T) {
	for name, do := range allowed {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			pod := httpPod(t, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if size := r.Header.Get("x-size"); size != "" {
					w.Header().Set("X-Large", long(40000))
				}
				w.Header().Set("X-Got", fmt.Sprintf("%s %v %s", body, err, r.Trailer.Get("X-T")))
			})
			check := func(w *wire) {
				t.Helper()
				w.AllowIllegalReads, w.ReadMetaHeaders = false, hpackDecoder()
				f, err := w.next(func(f http2.Frame) bool { _, ok := f.(*http2.MetaHeadersFrame); return ok })
				if err != nil {
					t.Fatal(err)
				}
				headers := f.(*http2.MetaHeadersFrame)
				want := "body <nil> "
				if name == "trailers" {
					want += "t"
				}
				for _, field := range headers.RegularFields() {
					if field.Name == "x-got" && field.Value != want {
						t.Errorf("the pod got %q", field.Value)
					}
				}
				if headers.PseudoValue("status") != "200" {
					t.Errorf("the status is %s", headers.PseudoValue("status"))
				}
			}
			w := dialWire(t, f.address)
			do(w, 1)
			f.held(1)
			f.pods(pod)
			check(w)
			again := dialWire(t, f.address)
			do(again, 1)
			check(again)
		})
	}
}

// TestFloodsWhileHeld checks that the connection of a client that causes work without any
// use ends with ENHANCE_YOUR_CALM.
func TestFloodsWhileHeld(t *testing.T) {
	for name, frame := range map[string]func(w *wire, i uint32) error{
		"resets": func(w *wire, i uint32) error {
			if err := w.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 3, BlockFragment: w.encode(get()...), EndHeaders: true, EndStream: true}); err != nil {
				return err
			}
			return w.WriteRSTStream(2*i+3, http2.ErrCodeCancel)
		},
		"PING":               func(w *wire, _ uint32) error { return w.WritePing(false, [8]byte{}) },
		"SETTINGS":           func(w *wire, _ uint32) error { return w.WriteSettings() },
		"empty DATA":         func(w *wire, _ uint32) error { return w.WriteData(1, false, nil) },
		"PRIORITY":           func(w *wire, _ uint32) error { return w.WritePriority(1, http2.PriorityParam{}) },
		"unknown":            func(w *wire, _ uint32) error { return w.WriteRawFrame(0xee, 0, 0, nil) },
		"ACK of nothing":     func(w *wire, _ uint32) error { return w.WriteSettingsAck() },
		"WINDOW_UPDATE of 1": func(w *wire, _ uint32) error { return w.WriteWindowUpdate(1, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			w := dialWire(t, f.address)
			w.headers(1, false, post()...)
			go func() {
				for i := range uint32(50 * floodBurst) {
					if frame(w, i) != nil {
						return
					}
				}
			}()
			reader := newWire(t, w.Conn)
			if got := reader.fault(); got != "GOAWAY ENHANCE_YOUR_CALM" && !strings.Contains(got, "reset") {
				t.Errorf("got %s", got)
			}
			f.held(0)
		})
	}
}

func TestTooManyStreamsAreRejected(t *testing.T) {
	f := newFixture(t, nil)
	f.service.Config().Limits.MaxPending = 10 * maxStreams
	f.service.Apply(f.service.Config())
	w := dialWire(t, f.address)
	go func() {
		for i := range uint32(maxStreams + 1) {
			_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: w.encode(get()...), EndHeaders: true, EndStream: true})
		}
	}()
	reader := newWire(t, w.Conn)
	if got := reader.fault(); got != "RST_STREAM REFUSED_STREAM" {
		t.Errorf("got %s", got)
	}
	f.held(maxStreams)
}

// TestTheWindowWhileHeld checks that no more is read than the window that every connection
// begins with, and that a stream gives back what it has used of it at its end.
func TestTheWindowWhileHeld(t *testing.T) {
	f := newFixture(t, nil)
	w := dialWire(t, f.address)
	send := func(id uint32, bytes int) {
		for ; bytes > 0; bytes -= maxFrame {
			w.do(w.WriteData(id, false, make([]byte, min(bytes, maxFrame))))
		}
	}
	w.headers(1, false, post()...)
	send(1, 65535)
	w.do(w.WriteRSTStream(1, http2.ErrCodeCancel))
	update := await[*http2.WindowUpdateFrame](w)
	if update.StreamID != 0 || update.Increment != 65535 {
		t.Errorf("got %v", update)
	}
	w.headers(3, false, post()...)
	send(3, 65535)
	send(3, 1)
	if got := w.fault(); got != "GOAWAY FLOW_CONTROL_ERROR" {
		t.Errorf("got %s", got)
	}
}

func TestPingsAndSettingsAreAcknowledgedWhileHeld(t *testing.T) {
	f := newFixture(t, nil)
	w := dialWire(t, f.address)
	w.headers(1, true, get()...)
	f.held(1)
	w.do(w.WritePing(false, [8]byte{1, 2, 3}))
	ping, err := w.next(func(f http2.Frame) bool { p, ok := f.(*http2.PingFrame); return ok && p.IsAck() })
	if err != nil || ping.(*http2.PingFrame).Data != [8]byte{1, 2, 3} {
		t.Errorf("got %v, %v", ping, err)
	}
	w.do(w.WriteSettings())
	if _, err := w.next(func(f http2.Frame) bool { s, ok := f.(*http2.SettingsFrame); return ok && s.IsAck() }); err != nil {
		t.Error(err)
	}
}
