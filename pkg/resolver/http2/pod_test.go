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
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// TestAnEarlyHintAndACancellation has a client go away after the pod has announced its
// response.
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
		t.Errorf("the client gets %s", status)
	}
	<-hinted
	w.do(w.WriteRSTStream(1, http2.ErrCodeCancel))
	<-gone
	f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
	if got := f.ended(1)[0]; got.Outcome != accesslog.ClientGone {
		t.Errorf("it ended as %v", got)
	}
}

// TestWhatThePodSaysOfStreamsPasses checks that REFUSED_STREAM and GOAWAY reach the client
// unchanged, so that it can send again what was not processed.
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
				// The last stream must not grow (RFC 9113 §6.8): stream 5 had its response
				// for by then, and may be at another pod.
				w.do(w.WriteGoAway(5, http2.ErrCodeNo, nil))
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
	if goAway = await[*http2.GoAwayFrame](w); goAway.LastStreamID != 3 || goAway.ErrCode != http2.ErrCodeNo {
		t.Errorf("got %v after a first one of 3", goAway)
	}
	if got := f.ended(2); got[0].Outcome != accesslog.Failed || got[1].Outcome != accesslog.Failed {
		t.Errorf("they ended as %v", got)
	}
	if f.service.Queue().InFlight() != 1 {
		t.Error("stream 3 is not in flight")
	}
}

// TestADialThatIsCutOff ends the process while it connects to a pod, for streams that
// never waited and for held ones.
func TestADialThatIsCutOff(t *testing.T) {
	for name, awake := range map[string]bool{"never held": true, "held": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			dialing := make(chan struct{})
			f.server.options.Dial = func(ctx context.Context, _ hold.Lease) (net.Conn, error) {
				close(dialing)
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
			<-dialing
			cancel()
			running.Wait()
			if held, inFlight := f.service.Queue().Held(), f.service.Queue().InFlight(); held != 0 || inFlight != 0 {
				t.Errorf("%d are held, %d in flight", held, inFlight)
			}
		})
	}
}

// TestPodsThatReject checks that another pod is tried after one that does not accept, or
// that closes before it received anything, and that one which is lost after that is
// reported.
func TestPodsThatReject(t *testing.T) {
	t.Run("rejected", func(t *testing.T) {
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
				// Read all of it: unread bytes would make the close a reset.
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

// TestThePodsEndIsTheClientsEnd checks that a clean end of the pod is a clean one for the
// client, and a reset is a reset.
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
			// Nothing is written any more: a reset is reported once only, to what reads
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

// afterEnd is a connection that is written to once its end was read: the pod has closed
// it before it could have received anything.
type afterEnd struct {
	*net.TCPConn
	ended chan struct{}
}

func (c afterEnd) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.TCPConn.SyscallConn()
	return rawAfterEnd{raw, c.ended}, err
}

type rawAfterEnd struct {
	syscall.RawConn
	ended chan struct{}
}

// Read is called by the goroutine that reads alone.
func (r rawAfterEnd) Read(try func(fd uintptr) bool) error {
	defer close(r.ended)
	return r.RawConn.Read(try)
}

func (r rawAfterEnd) Write(try func(fd uintptr) bool) error {
	<-r.ended
	return r.RawConn.Write(try)
}

// TestAPodThatClosesBeforeItReceivedAnything checks that frames which were sent to such a
// pod are sent to another one, whole and in order.
func TestAPodThatClosesBeforeItReceivedAnything(t *testing.T) {
	f := newFixture(t, nil)
	var dials atomic.Int32
	f.server.options.Dial = func(ctx context.Context, lease hold.Lease) (net.Conn, error) {
		tcp, err := lease.Dial(ctx)
		if err != nil || dials.Add(1) > 1 {
			return tcp, err
		}
		return afterEnd{tcp, make(chan struct{})}, nil
	}
	closes := rawPod(t, func(*wire) {})
	w := dialWire(t, f.address)
	w.headers(1, false, post("a", long(5000))...)
	w.do(w.WriteData(1, true, []byte("body")))
	w.headers(3, true, get()...)
	f.held(2)
	f.pods(closes)
	// They wait again, for a pod that accepts them.
	f.eventually(func() bool { return dials.Load() == 1 && f.service.Queue().Held() == 2 })
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Seen", fmt.Sprint(r.Method, len(r.Header.Get("A")), string(body)))
	}))
	seen := map[uint32]string{}
	for range 2 {
		headers := await[*http2.HeadersFrame](w)
		fields := w.decode(headers)
		seen[headers.StreamID] = fields[":status"] + " " + fields["x-seen"]
	}
	if seen[1] != "200 POST5000body" || seen[3] != "200 GET0" {
		t.Errorf("the responses are %v", seen)
	}
	f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
	w.Close()
	f.eventually(func() bool { return f.budget.Used() == 0 })
}
