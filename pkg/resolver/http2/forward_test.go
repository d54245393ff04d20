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
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/fallback"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// TestAnEarlyHintAndACancellation: a pod announces its response and the client
// goes away.
func TestAnEarlyHintAndACancellation(t *testing.T) {
	f := newFixture(t, nil)
	hinted, gone := make(chan struct{}, 1), make(chan struct{}, 1)
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		hinted <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	}))
	w := dialWire(t, f.address)
	w.headers(1, true, get()...)
	if status := w.decode(await[*http2.HeadersFrame](w))[":status"]; status != "103" {
		t.Errorf("the client is told %s", status)
	}
	<-hinted
	w.do(w.WriteRSTStream(1, http2.ErrCodeCancel))
	<-gone
	f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
	if got := f.ended(1)[0]; got.Outcome != accesslog.ClientGone {
		t.Errorf("it ended as %v", got)
	}
}

// TestUnreadStreamsKeepLittleMemory: a client opens 200 streams and reads none.
func TestUnreadStreamsKeepLittleMemory(t *testing.T) {
	const streams, size = 200, 32 << 20
	f := newFixture(t, nil)
	var sent atomic.Int64
	part := make([]byte, maxFrame)
	f.pods(rawPod(t, func(w *wire) {
		if !w.greet() {
			return
		}
		// It sends without end, whatever the client's windows say.
		var writing sync.WaitGroup
		defer writing.Wait()
		w.events(func(frame http2.Frame) {
			if h, ok := frame.(*http2.HeadersFrame); ok && h.StreamID == 2*streams-1 {
				writing.Go(func() {
					for i := range uint32(streams * size / maxFrame) {
						if w.WriteData(2*(i%streams)+1, false, part) != nil {
							return
						}
						sent.Add(1)
					}
				})
			}
		})
	}))
	w := dialWire(t, f.address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	before := heapInUse()
	w.do(w.WriteWindowUpdate(0, 1<<30))
	for i := range uint32(streams) {
		w.headers(2*i+1, true, get()...)
	}
	var last, same int64
	f.eventually(func() bool {
		if now := sent.Load(); now != last || now == 0 {
			last, same = now, 0
		}
		same++
		return same > 100
	})
	if last >= streams*size/maxFrame {
		t.Error("the pod could send everything")
	}
	if grown := int64(heapInUse()) - int64(before); grown > 4<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	w.Close()
	f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
}

func heapInUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// TestHeldStreamsTakeOneConnection: whatever a connection holds goes to the pod on
// one connection, in the order in which it came.
func TestHeldStreamsTakeOneConnection(t *testing.T) {
	const streams = 500
	f := newFixture(t, func(c *service.Config) { c.Limits.MaxPending = streams })
	var conns atomic.Int32
	opened := make(chan []uint32, 10)
	address := rawPod(t, func(w *wire) {
		conns.Add(1)
		if !w.greet() {
			return
		}
		var ids []uint32
		w.events(func(frame http2.Frame) {
			if h, ok := frame.(*http2.HeadersFrame); ok {
				if ids = append(ids, h.StreamID); len(ids) == streams {
					opened <- ids
				}
			}
		})
	})
	w := dialWire(t, f.address)
	for i := range uint32(streams) {
		w.headers(2*i+1, true, get()...)
	}
	f.held(streams)
	f.pods(address)
	ids := <-opened
	if !slices.IsSorted(ids) || conns.Load() != 1 {
		t.Errorf("%d connections, streams %v", conns.Load(), ids)
	}
	if inFlight := f.service.Queue().InFlight(); inFlight != streams {
		t.Errorf("%d in flight", inFlight)
	}
}

// TestWhatIsHeldIsCounted: the bytes of bodies and header fields count.
func TestWhatIsHeldIsCounted(t *testing.T) {
	f := newFixture(t, nil)
	w := dialWire(t, f.address)
	w.headers(1, false, post("a", long(10000))...)
	for range 3 {
		w.do(w.WriteData(1, false, make([]byte, maxFrame)))
	}
	const least = heldStreamBytes + 10000 + 3*maxFrame
	f.eventually(func() bool { return f.budget.Used() >= least })
	if used := f.budget.Used(); used > 2*least {
		t.Errorf("%d bytes count for %d", used, least)
	}
	w.do(w.WriteRSTStream(1, http2.ErrCodeCancel))
	f.held(0)
	if used := f.budget.Used(); used != 0 {
		t.Errorf("%d bytes count for nothing", used)
	}
}

// TestTooManyHeldBytes: a body for which there is no room is refused when it comes.
func TestTooManyHeldBytes(t *testing.T) {
	f := newFixtureWith(t, nil, func(o *service.Options) { o.Budget = memory.NewBudget(memory.Limits{Process: heldStreamBytes + 4<<10}) })
	w := dialWire(t, f.address)
	w.headers(1, false, post()...)
	f.held(1)
	w.do(w.WriteData(1, false, make([]byte, 8<<10)))
	headers := w.decode(await[*http2.HeadersFrame](w))
	if headers[":status"] != "503" || headers["x-elasti-answer"] != string(localreply.ReasonTooManyBytes) {
		t.Errorf("got %v", headers)
	}
	if reset := await[*http2.RSTStreamFrame](w); reset.ErrCode != http2.ErrCodeNo {
		t.Errorf("got %v", reset)
	}
	// What is still on its way is dropped, and given back.
	w.do(w.WriteData(1, true, make([]byte, 1000)))
	if update := await[*http2.WindowUpdateFrame](w); update.StreamID != 0 {
		t.Errorf("got %v", update)
	}
	f.held(0)
}

// TestAnswersAreLiteral: an answer of the resolver changes nothing in the table of
// the client's decoder, also when that has to be told of its size.
func TestAnswersAreLiteral(t *testing.T) {
	for name, size := range map[string]uint32{"a table as usual": initialTableSize, "a table of 0": 0, "a small table": 100} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			w := dialWire(t, f.address, http2.Setting{ID: http2.SettingHeaderTableSize, Val: size})
			w.headers(1, true, get("user-agent", "kube-probe/1")...)
			f1 := await[*http2.HeadersFrame](w)
			first := f1.HeaderBlockFragment()[0]
			if updates := first&0xe0 == 0x20; updates != (size < initialTableSize) {
				t.Errorf("the block begins with %#x", first)
			}
			fields := w.decode(f1)
			if fields[":status"] != "503" || fields["x-elasti-answer"] != string(localreply.ReasonAsleep) {
				t.Errorf("got %v", fields)
			}
			if _, err := w.decoder.DecodeFull([]byte{0x80 | 62}); err == nil {
				t.Error("there is something in the table")
			}
		})
	}
}

// TestAnswersKeepToTheWindow: a body is sent only where the client has granted
// more than what a pod will count on.
func TestAnswersKeepToTheWindow(t *testing.T) {
	for name, test := range map[string]struct {
		initial, grant uint32
		body           bool
	}{
		"no more than at the beginning": {65535, 0, false},
		"more for the connection":       {65535, 100_000, true},
		"nothing for the stream":        {0, 100_000, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			w := dialWire(t, f.address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: test.initial})
			if test.grant > 0 {
				w.do(w.WriteWindowUpdate(0, test.grant))
			}
			w.headers(1, true, get("user-agent", "kube-probe/1")...)
			headers := await[*http2.HeadersFrame](w)
			fields := w.decode(headers)
			if headers.StreamEnded() == test.body || (fields["content-length"] != "") != test.body {
				t.Errorf("ended: %v, fields %v", headers.StreamEnded(), fields)
			}
			if test.body {
				if data := await[*http2.DataFrame](w); !data.StreamEnded() || fmt.Sprint(len(data.Data())) != fields["content-length"] {
					t.Errorf("%d bytes, ended %v", len(data.Data()), data.StreamEnded())
				}
			}
			// The pod is granted exactly what is left.
			granted := make(chan uint32, 1)
			f.pods(rawPod(t, func(pod *wire) {
				if !pod.greet() {
					return
				}
				sum := uint32(0)
				pod.events(func(frame http2.Frame) {
					switch frame := frame.(type) {
					case *http2.WindowUpdateFrame:
						if frame.StreamID == 0 {
							sum += frame.Increment
						}
					case *http2.HeadersFrame:
						granted <- sum
					}
				})
			}))
			w.headers(3, true, get()...)
			want := test.grant
			if test.body {
				var length uint32
				if _, err := fmt.Sscan(fields["content-length"], &length); err != nil {
					t.Error(err)
				}
				want -= length
			}
			if got := <-granted; got != want {
				t.Errorf("the pod was granted %d, want %d", got, want)
			}
		})
	}
}

// TestWhatThePodSaysOfStreamsPasses: REFUSED_STREAM and GOAWAY reach the client as
// they are, so that it can send again what was not processed.
func TestWhatThePodSaysOfStreamsPasses(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(rawPod(t, func(w *wire) {
		if !w.greet() {
			return
		}
		w.events(func(frame http2.Frame) {
			h, ok := frame.(*http2.HeadersFrame)
			if !ok {
				return
			}
			switch h.StreamID {
			case 1:
				w.do(w.WriteRSTStream(1, http2.ErrCodeRefusedStream))
			case 5:
				w.do(w.WriteGoAway(3, http2.ErrCodeEnhanceYourCalm, []byte("too_many_pings")))
			}
		})
	}))
	w := dialWire(t, f.address)
	w.headers(1, true, get()...)
	if reset := await[*http2.RSTStreamFrame](w); reset.ErrCode != http2.ErrCodeRefusedStream {
		t.Errorf("got %v", reset)
	}
	w.headers(3, true, get()...)
	w.headers(5, true, get()...)
	goAway := await[*http2.GoAwayFrame](w)
	if goAway.LastStreamID != 3 || goAway.ErrCode != http2.ErrCodeEnhanceYourCalm || string(goAway.DebugData()) != "too_many_pings" {
		t.Errorf("got %v %q", goAway, goAway.DebugData())
	}
	if got := f.ended(2); got[0].Outcome != accesslog.Failed || got[1].Outcome != accesslog.Failed {
		t.Errorf("they ended as %v", got)
	}
	if f.service.Queue().InFlight() != 1 {
		t.Error("stream 3 is not in flight")
	}
}

// TestSettingsAndAcksReachTheirEnds: each end's SETTINGS are acknowledged by the
// other once, and those of the resolver by nobody else.
func TestSettingsAndAcksReachTheirEnds(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.Limits.MaxConcurrencyPerPod = 7 })
	acked := make(chan int, 1)
	first := make(chan map[http2.SettingID]uint32, 1)
	address := rawPod(t, func(w *wire) {
		if !w.greet(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1000}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0},
			http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20},
			http2.Setting{ID: http2.SettingNoRFC7540Priorities, Val: 1}) {
			return
		}
		acks := 0
		w.events(func(frame http2.Frame) {
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if frame.IsAck() {
					acks++
					return
				}
				select {
				case first <- valuesOf(frame):
				default:
				}
				w.do(w.WriteSettingsAck())
			case *http2.HeadersFrame:
				if frame.StreamID == 3 {
					acked <- acks
				}
			}
		})
	})
	w := dialWire(t, f.address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 12345}, http2.Setting{ID: http2.SettingEnablePush, Val: 1})
	ours := await[*http2.SettingsFrame](w)
	if limit, ok := ours.Value(http2.SettingMaxConcurrentStreams); !ok || limit != 7 {
		t.Errorf("the client is told %v", ours)
	}
	if ack := await[*http2.SettingsFrame](w); !ack.IsAck() {
		t.Errorf("got %v", ack)
	}
	w.headers(1, true, get()...)
	f.held(1)
	f.pods(address)
	replayed := <-first
	if replayed[http2.SettingInitialWindowSize] != 12345 {
		t.Errorf("the pod is told %v", replayed)
	}
	if push, ok := replayed[http2.SettingEnablePush]; !ok || push != 0 {
		t.Errorf("the pod may push: %v", replayed)
	}
	pods := await[*http2.SettingsFrame](w)
	for id, want := range map[http2.SettingID]uint32{http2.SettingMaxConcurrentStreams: 7, http2.SettingEnableConnectProtocol: 1} {
		if got, _ := pods.Value(id); got != want {
			t.Errorf("the client is told %s = %d, want %d", id, got, want)
		}
	}
	for _, id := range []http2.SettingID{http2.SettingHeaderTableSize, http2.SettingMaxFrameSize, http2.SettingNoRFC7540Priorities} {
		if _, ok := pods.Value(id); ok {
			t.Errorf("the client is told %s", id)
		}
	}
	w.do(w.WriteSettingsAck())
	w.do(w.WriteSettingsAck())
	w.do(w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100}))
	if ack := await[*http2.SettingsFrame](w); !ack.IsAck() {
		t.Errorf("got %v", ack)
	}
	w.headers(3, true, get()...)
	if got := <-acked; got != 1 {
		t.Errorf("the pod got %d ACKs", got)
	}
}

// valuesOf returns what a frame sets, which is valid after the next read too.
func valuesOf(f *http2.SettingsFrame) map[http2.SettingID]uint32 {
	values := map[http2.SettingID]uint32{}
	for i := range f.NumSettings() {
		setting := f.Setting(i)
		values[setting.ID] = setting.Val
	}
	return values
}

// TestADialThatIsCutOff: the process ends while it connects to a pod for streams
// that never waited, and for some that did.
func TestADialThatIsCutOff(t *testing.T) {
	for name, awake := range map[string]bool{"never held": true, "held": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			dialling := make(chan struct{})
			f.server.options.Dial = func(ctx context.Context, _ hold.Lease) (net.Conn, error) {
				close(dialling)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			pod := "127.0.0.1:1"
			if awake {
				f.pods(pod)
			}
			client, theirs := net.Pipe()
			var running sync.WaitGroup
			running.Go(func() {
				f.server.Serve(ctx, theirs, nil, f.service.Memory(), destination.Fixed(f.service, service.Port{Number: 80}))
			})
			running.Go(func() { _, _ = io.Copy(io.Discard, client) })
			w := newWire(t, client)
			w.write(http2.ClientPreface)
			w.do(w.WriteSettings())
			w.headers(1, true, get()...)
			if !awake {
				w.headers(3, true, get()...)
				f.held(2)
				f.pods(pod)
			}
			<-dialling
			cancel()
			running.Wait()
			if held, inFlight := f.service.Queue().Held(), f.service.Queue().InFlight(); held != 0 || inFlight != 0 {
				t.Errorf("%d are held, %d in flight", held, inFlight)
			}
		})
	}
}

// TestTheAckComesBeforeThePod: a pod that answers at once acts on the client's
// SETTINGS, which the client must know to be in force.
func TestTheAckComesBeforeThePod(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(rawPod(t, func(w *wire) {
		if !w.greet() {
			return
		}
		w.events(func(frame http2.Frame) {
			if h, ok := frame.(*http2.HeadersFrame); ok {
				w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: h.StreamID, BlockFragment: w.encode(":status", "200"), EndHeaders: true, EndStream: true}))
			}
		})
	}))
	for range 200 {
		w := dialRaw(t, f.address)
		message := appendSettings([]byte(http2.ClientPreface), http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
		block := w.encode(get()...)
		message = append(appendFrameHeader(message, len(block), http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, 1), block...)
		w.write(string(message))
		acked := false
		for answered := false; !answered; {
			frame, err := w.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				acked = acked || frame.IsAck()
			case *http2.HeadersFrame:
				answered = true
			}
		}
		if !acked {
			t.Fatal("the answer came before the ACK")
		}
		w.Close()
	}
}

// TestPodsThatRefuse: a pod that does not accept, or closes before it received
// anything, is passed by; one that is lost after that is told of.
func TestPodsThatRefuse(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		f := newFixture(t, nil)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listener.Close()
		f.pods(listener.Addr().String())
		w := dialWire(t, f.address)
		w.headers(1, false, post()...)
		w.do(w.WriteData(1, true, []byte("body")))
		f.held(1)
		f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("X-Body", string(body))
		}))
		if fields := w.decode(await[*http2.HeadersFrame](w)); fields["x-body"] != "body" {
			t.Errorf("got %v", fields)
		}
	})
	for name, test := range map[string]struct {
		say    string
		reason localreply.Reason
	}{
		"lost":         {"", localreply.ReasonPodLost},
		"not HTTP/2":   {"HTTP/1.1 400 Bad Request\r\n\r\n", localreply.ReasonBadResponse},
		"not SETTINGS": {"\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678", localreply.ReasonBadResponse},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pods(rawPod(t, func(w *wire) {
				// All of it: what is not read would make the end a reset.
				buffer := make([]byte, 1024)
				_, _ = w.Read(buffer)
				_, _ = io.WriteString(w.Conn, test.say)
			}))
			w := dialWire(t, f.address)
			w.headers(1, true, get()...)
			fields := w.decode(await[*http2.HeadersFrame](w))
			if fields[":status"] != "502" || fields["x-elasti-answer"] != string(test.reason) {
				t.Errorf("got %v", fields)
			}
			if goAway := await[*http2.GoAwayFrame](w); goAway.ErrCode != http2.ErrCodeNo {
				t.Errorf("got %v", goAway)
			}
		})
	}
}

// TestThePodsEndIsTheClientsEnd: a clean end stays one, and a reset too.
func TestThePodsEndIsTheClientsEnd(t *testing.T) {
	for name, want := range map[string]error{"clean": io.EOF, "reset": nil} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pods(rawPod(t, func(w *wire) {
				if !w.greet() {
					return
				}
				for {
					frame, err := w.ReadFrame()
					if err != nil {
						return
					}
					if _, ok := frame.(*http2.HeadersFrame); ok {
						break
					}
				}
				w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: w.encode(":status", "200"), EndHeaders: true}))
				if name == "reset" {
					_ = w.Conn.(*net.TCPConn).SetLinger(0)
				}
			}))
			w := dialRaw(t, f.address)
			// In one piece, so that the pod has read all of it.
			message := []byte(http2.ClientPreface)
			message = appendSettings(message)
			block := w.encode(get()...)
			message = append(appendFrameHeader(message, len(block), http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1), block...)
			w.write(string(message))
			// Nothing is written any more: a reset is told once only, to whoever reads
			// or writes first.
			var err error
			for err == nil {
				_, err = w.ReadFrame()
			}
			if want != nil && !errors.Is(err, want) || want == nil && errors.Is(err, io.EOF) {
				t.Errorf("the client sees %v", err)
			}
			if got := f.ended(1)[0]; got.Outcome != accesslog.Failed || got.Status != 200 {
				t.Errorf("it ended as %+v", got)
			}
		})
	}
}

// TestRecordsSayWhatBecameOfAStream: in the access log and metrics.
func TestRecordsSayWhatBecameOfAStream(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/download":
			_, _ = w.Write(make([]byte, 1<<20))
		case "/teapot":
			w.WriteHeader(http.StatusTeapot)
		case "/reset":
			panic(http.ErrAbortHandler)
		}
	}))
	w := dialWire(t, f.address)
	request := func(id uint32, path string) {
		w.headers(id, true, ":method", "GET", ":scheme", "http", ":path", path, ":authority", "cart", "traceparent", "00-1-2-01")
	}
	request(1, "/teapot?secret")
	await[*http2.HeadersFrame](w)
	f.ended(1)
	request(3, "/reset")
	await[*http2.RSTStreamFrame](w)
	f.ended(2)
	request(5, "/download")
	await[*http2.DataFrame](w)
	w.do(w.WriteRSTStream(5, http2.ErrCodeCancel))
	records := f.ended(3)
	for i, want := range []accesslog.Record{
		{Path: "/teapot", Status: 418, Outcome: accesslog.Forwarded},
		{Path: "/reset", Outcome: accesslog.Failed, Reason: "the pod reset the stream: INTERNAL_ERROR"},
		{Path: "/download", Status: 200, Outcome: accesslog.ClientGone},
	} {
		got := records[i]
		if got.Path != want.Path || got.Status != want.Status || got.Outcome != want.Outcome || got.Reason != want.Reason ||
			got.Protocol != accesslog.HTTP2 || got.TraceParent != "00-1-2-01" || got.Pod == "" || got.Client == "" || got.Released.IsZero() || got.Ended.IsZero() {
			t.Errorf("record %d is %+v", i, got)
		}
	}
	if out := records[2].BytesOut; out < 1 {
		t.Errorf("%d bytes went out", out)
	}
}

// TestClientsAreMovedInTwoSteps: a first GOAWAY takes every stream that is on its
// way, a second names the last; the connection ends with its last stream.
func TestClientsAreMovedInTwoSteps(t *testing.T) {
	for name, begin := range map[string]func(f *fixture, w *wire){
		"to drain": func(f *fixture, _ *wire) { f.server.Drain() },
		"after the wake": func(f *fixture, w *wire) {
			f.service.Apply(&service.Config{Mode: v1alpha1.ModeServe, HoldTimeout: time.Minute, Limits: hold.Limits{MaxPending: 10}})
			w.headers(3, true, get()...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			finish := make(chan struct{})
			f.pods(httpPod(t, func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					<-finish
				}
			}))
			w := dialWire(t, f.address)
			w.headers(1, true, ":method", "GET", ":scheme", "http", ":path", "/slow", ":authority", "cart")
			f.eventually(func() bool { return f.service.Queue().InFlight() == 1 })
			begin(f, w)
			if goAway := await[*http2.GoAwayFrame](w); goAway.LastStreamID != maxStreamID || goAway.ErrCode != http2.ErrCodeNo {
				t.Errorf("the first is %v", goAway)
			}
			ping := await[*http2.PingFrame](w)
			// It was on its way.
			w.headers(5, true, get()...)
			w.do(w.WritePing(true, ping.Data))
			answered := map[uint32]bool{}
			second, err := w.next(func(frame http2.Frame) bool {
				if h, ok := frame.(*http2.HeadersFrame); ok {
					answered[h.StreamID] = true
				}
				_, ok := frame.(*http2.GoAwayFrame)
				return ok
			})
			if err != nil {
				t.Fatal(err)
			}
			if goAway := second.(*http2.GoAwayFrame); goAway.LastStreamID != 5 || goAway.ErrCode != http2.ErrCodeNo {
				t.Errorf("the second is %v", goAway)
			}
			// This one came too late.
			w.headers(7, true, get()...)
			close(finish)
			for {
				frame, err := w.ReadFrame()
				if err != nil {
					if !errors.Is(err, io.EOF) {
						t.Errorf("the end is %v", err)
					}
					break
				}
				if h, ok := frame.(*http2.HeadersFrame); ok {
					answered[h.StreamID] = true
				}
			}
			if !answered[1] || !answered[5] || answered[7] {
				t.Errorf("answered: %v", answered)
			}
		})
	}
}

// TestAnotherAuthorityIsMisdirected: a connection is one to the service of its
// first request.
func TestAnotherAuthorityIsMisdirected(t *testing.T) {
	f := newFixture(t, nil)
	other := service.New(service.Options{Namespace: "shop", Name: "other", PublicService: "other", Logger: klog.Background(),
		Config: &service.Config{}, Budget: memory.NewBudget(memory.Limits{Process: 1 << 20})})
	t.Cleanup(other.Close)
	f.mu.Lock()
	f.find = func(field func(string) []string) (*service.Service, service.Port, *localreply.Reply) {
		host := strings.Join(field("Host"), "")
		switch host {
		case "cart", "cart.shop":
			return f.service, service.Port{Number: 80}, nil
		case "other":
			return other, service.Port{Number: 80}, nil
		}
		return nil, service.Port{}, localreply.New(http.StatusMisdirectedRequest, localreply.ReasonUnknownHost, "unknown")
	}
	f.mu.Unlock()
	f.pods(httpPod(t, func(http.ResponseWriter, *http.Request) {}))
	w := dialWire(t, f.address)
	for i, test := range []struct{ host, status string }{{"unknown", "421"}, {"cart", "200"}, {"other", "421"}, {"cart.shop", "200"}} {
		w.headers(uint32(2*i+1), true, ":method", "GET", ":scheme", "http", ":path", "/", ":authority", test.host)
		if got := w.decode(await[*http2.HeadersFrame](w))[":status"]; got != test.status {
			t.Errorf("%s: %s, want %s", test.host, got, test.status)
		}
	}
}

// TestMaxConcurrencyPerPod: a client may have as many streams as a pod may be
// sent, and others wait, whether their connection has a pod or not.
func TestMaxConcurrencyPerPod(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.Limits.MaxConcurrencyPerPod = 1 })
	finish := make(chan struct{})
	f.pods(httpPod(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-finish
		}
	}))
	first := dialWire(t, f.address)
	first.headers(1, true, get()...)
	await[*http2.HeadersFrame](first)
	f.ended(1)
	busy := dialWire(t, f.address)
	busy.headers(1, true, ":method", "GET", ":scheme", "http", ":path", "/slow", ":authority", "cart")
	f.eventually(func() bool { return f.service.Queue().InFlight() == 1 })
	busy.headers(3, true, get()...)
	if reset := await[*http2.RSTStreamFrame](busy); reset.StreamID != 3 || reset.ErrCode != http2.ErrCodeRefusedStream {
		t.Errorf("got %v", reset)
	}
	first.headers(3, true, get()...)
	f.held(1)
	again := dialWire(t, f.address)
	again.headers(1, true, get()...)
	f.held(2)
	close(finish)
	await[*http2.HeadersFrame](first)
	await[*http2.HeadersFrame](again)
}

// TestStreamsCountForMaxConcurrencyPerPod: the streams of a connection count each,
// so that another waits until there is room beside them.
func TestStreamsCountForMaxConcurrencyPerPod(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.Limits.MaxConcurrencyPerPod = 2 })
	finish := make(chan struct{})
	slow := func(w *wire, id uint32) {
		w.headers(id, true, ":method", "GET", ":scheme", "http", ":path", "/slow", ":authority", "cart")
	}
	pod := httpPod(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-finish
		}
	})
	first := dialWire(t, f.address)
	slow(first, 1)
	slow(first, 3)
	f.held(2)
	f.pods(pod)
	f.eventually(func() bool { return f.service.Queue().InFlight() == 2 })
	second := dialWire(t, f.address)
	second.headers(1, true, get()...)
	f.held(1)
	finish <- struct{}{}
	await[*http2.HeadersFrame](second)
	f.eventually(func() bool { return f.service.Queue().InFlight() == 1 })
	// There is room for one more of the connection that has a pod already.
	second.headers(3, true, get()...)
	await[*http2.HeadersFrame](second)
	close(finish)
	await[*http2.HeadersFrame](first)
	await[*http2.HeadersFrame](first)
	f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
}

// TestAStreamThatIsNotReadStopsNoOther: one stream's window is full, and others of
// the same connection go on.
func TestAStreamThatIsNotReadStopsNoOther(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(grpcPodWith(t, unreadService{}))
	client := f.grpc()
	ctx, cancel := context.WithTimeout(t.Context(), wireTimeout)
	defer cancel()
	stuckCtx, stop := context.WithCancel(ctx)
	defer stop()
	stuck, err := client.StreamingInputCall(stuckCtx)
	if err != nil {
		t.Fatal(err)
	}
	full := make(chan struct{})
	var sent atomic.Int64
	go func() {
		defer close(full)
		for stuck.Send(&testpb.StreamingInputCallRequest{Payload: payload(10_000)}) == nil {
			sent.Add(1)
		}
	}()
	var last int64
	f.eventually(func() bool {
		if _, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(1000), ResponseSize: 1000}); err != nil {
			t.Fatal(err)
		}
		now := sent.Load()
		blocked := now > 0 && now == last
		last = now
		return blocked
	})
	for range 100 {
		if _, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(1000), ResponseSize: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	<-full
}

// unreadService does not read what a client streams.
type unreadService struct{ testService }

func (unreadService) StreamingInputCall(stream testpb.TestService_StreamingInputCallServer) error {
	<-stream.Context().Done()
	return stream.Context().Err()
}

// TestAQuietHeldStreamLives: a stream that was held may be silent for longer than
// any timeout, and nothing of the resolver's reaches the pod meanwhile.
func TestAQuietHeldStreamLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		defer running.Wait()
		seen := make(chan []string, 1)
		dial := pipePods(t, &running, func(w *wire) {
			if !w.greet() {
				return
			}
			// In memory a write waits for its reader, which must not wait for it.
			writes := make(chan func() error, 10)
			running.Go(func() {
				for write := range writes {
					_ = write()
				}
			})
			defer close(writes)
			seen <- w.events(func(frame http2.Frame) {
				switch frame := frame.(type) {
				case *http2.SettingsFrame:
					if !frame.IsAck() {
						writes <- w.WriteSettingsAck
					}
				case *http2.DataFrame:
					writes <- func() error { return w.WriteData(1, true, []byte("late")) }
				case *http2.HeadersFrame:
					writes <- func() error {
						return w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: w.encode(":status", "200"), EndHeaders: true})
					}
				}
			})
		})
		svc := service.New(service.Options{Namespace: "shop", Name: "cart", PublicService: "cart", Logger: klog.Background(),
			Config: &service.Config{HoldTimeout: time.Hour, Limits: hold.Limits{MaxPending: 10}}, Budget: memory.NewBudget(memory.Limits{Process: 1 << 20})})
		defer svc.Close()
		server := New(Options{Fallback: &fallback.Policy{}, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
			Dial: func(ctx context.Context, _ hold.Lease) (net.Conn, error) { return dial(ctx) }})
		client, theirs := net.Pipe()
		running.Go(func() {
			server.Serve(t.Context(), theirs, nil, svc.Memory(), destination.Fixed(svc, service.Port{Number: 80}))
		})
		w := newWire(t, client)
		_ = client.SetDeadline(time.Time{})
		frames := make(chan http2.Frame)
		running.Go(func() {
			defer close(frames)
			for {
				frame, err := w.ReadFrame()
				if err != nil {
					return
				}
				switch frame.(type) {
				case *http2.HeadersFrame, *http2.DataFrame, *http2.GoAwayFrame, *http2.RSTStreamFrame, *http2.PingFrame:
					frames <- frame
				}
			}
		})
		w.write(http2.ClientPreface)
		w.do(w.WriteSettings())
		w.headers(1, false, post()...)
		<-time.After(62 * time.Second)
		svc.SetPods([]endpoint.Description{{ID: "a", Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ports: map[string]uint16{"": 80}, Ready: true}})
		if _, ok := (<-frames).(*http2.HeadersFrame); !ok {
			t.Error("the pod's answer does not come first")
		}
		<-time.After(24 * time.Hour)
		w.do(w.WriteData(1, true, []byte("after a day")))
		if data, ok := (<-frames).(*http2.DataFrame); !ok || string(data.Data()) != "late" {
			t.Error("the stream did not live")
		}
		client.Close()
		for range frames {
			t.Error("something more came")
		}
		for _, word := range <-seen {
			if strings.HasPrefix(word, "PING") {
				t.Errorf("the pod got %s", word)
			}
		}
	})
}

// TestIdleConnectionsEnd: one without a stream is ended, with a GOAWAY.
func TestIdleConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := service.New(service.Options{Namespace: "shop", Name: "cart", PublicService: "cart", Logger: klog.Background(),
			Config: &service.Config{HoldTimeout: 10 * time.Second, Limits: hold.Limits{MaxPending: 10}}, Budget: memory.NewBudget(memory.Limits{Process: 1 << 20})})
		defer svc.Close()
		server := New(Options{Fallback: &fallback.Policy{}, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10})
		client, theirs := net.Pipe()
		var running sync.WaitGroup
		defer running.Wait()
		running.Go(func() {
			server.Serve(t.Context(), theirs, nil, svc.Memory(), destination.Fixed(svc, service.Port{Number: 80}))
		})
		w := newWire(t, client)
		_ = client.SetDeadline(time.Time{})
		began := time.Now()
		running.Go(func() {
			w.write(http2.ClientPreface)
			w.do(w.WriteSettings())
			w.headers(1, true, get()...)
		})
		reader := newWire(t, client)
		_ = client.SetDeadline(time.Time{})
		// Nothing is acknowledged: in memory a write waits for its reader.
		for goAway := false; !goAway; {
			frame, err := reader.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			switch frame := frame.(type) {
			case *http2.HeadersFrame:
				if fields := reader.decode(frame); fields[":status"] != "504" || time.Since(began) != 10*time.Second {
					t.Errorf("after %s: %v", time.Since(began), fields)
				}
			case *http2.GoAwayFrame:
				goAway = true
			}
		}
		if took := time.Since(began); took != 70*time.Second {
			t.Errorf("it ended after %s", took)
		}
		client.Close()
	})
}
