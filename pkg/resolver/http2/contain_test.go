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
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/liveness"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// TestAPanicEndsItsConnectionAlone checks that a connection gives back what it took,
// whichever of its goroutines panics, and that other connections go on.
func TestAPanicEndsItsConnectionAlone(t *testing.T) {
	for name, test := range map[string]struct {
		held bool
		// end ends the stream in the way that panics.
		end func(w *wire, finish chan<- struct{})
	}{
		"what reads from the client": {false, func(w *wire, _ chan<- struct{}) { w.do(w.WriteRSTStream(1, http2.ErrCodeCancel)) }},
		"what reads from the pod":    {false, func(_ *wire, finish chan<- struct{}) { finish <- struct{}{} }},
		"what holds":                 {true, func(w *wire, _ chan<- struct{}) { w.do(w.WriteRSTStream(1, http2.ErrCodeCancel)) }},
	} {
		t.Run(name, func(t *testing.T) {
			var panics atomic.Int32
			tasks := task.New(func(task.Panic) { panics.Add(1) })
			f := newFixtureWith(t, nil, func(o *service.Options) {
				o.Finish = func(record *accesslog.Record) {
					if record.Path == "/panic" {
						panic("a fault of the resolver")
					}
				}
			})
			f.server.options.Tasks = tasks
			address := resolvertest.Listen(t, func(conn *net.TCPConn) {
				tasks.Run(func() { conn.Close() }, func() {
					f.server.Serve(t.Context(), conn, nil, f.service.Memory(), destination.Fixed(f.service, service.Port{Number: 80}))
				})
			})
			finish := make(chan struct{})
			pod := rawPod(t, func(w *wire) {
				if !w.greet() {
					return
				}
				w.events(func(frame http2.Frame) {
					h, ok := frame.(*http2.HeadersFrame)
					if !ok {
						return
					}
					if w.decode(h)[":path"] == "/panic" {
						<-finish
					}
					_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: h.StreamID, BlockFragment: w.encode(":status", "200"), EndHeaders: true, EndStream: true})
				})
			})
			defer close(finish)
			if !test.held {
				f.pods(pod)
			}
			other := dialWire(t, f.address)
			other.headers(1, true, get()...)
			w := dialWire(t, address)
			for _, id := range []uint32{1, 3} {
				w.headers(id, true, ":method", "GET", ":scheme", "http", ":path", "/panic", ":authority", "cart")
			}
			if test.held {
				f.held(3)
			} else {
				await[*http2.HeadersFrame](other)
				f.eventually(func() bool { return f.service.Queue().InFlight() == 2 })
			}
			test.end(w, finish)
			for {
				if _, err := w.ReadFrame(); err != nil {
					break
				}
			}
			f.pods(pod)
			if test.held {
				await[*http2.HeadersFrame](other)
			}
			other.headers(3, true, get()...)
			await[*http2.HeadersFrame](other)
			f.eventually(func() bool { return f.service.Queue().InFlight() == 0 && f.service.Queue().Held() == 0 })
			// The other connection has a pod still.
			f.eventually(func() bool { return f.budget.Used() <= steps(podBytes) && panics.Load() > 0 })
		})
	}
}

// TestAPodThatVanishesIsGivenUp checks that a pod whose kernel acknowledges nothing any
// more is no failure of the client.
func TestAPodThatVanishesIsGivenUp(t *testing.T) {
	f := newFixture(t, nil)
	watch := liveness.New(liveness.Options{Interval: time.Millisecond, Limit: time.Millisecond, ReadState: func(*net.TCPConn) (socket.Unacknowledged, error) {
		return socket.Unacknowledged{Outstanding: true, Repeated: 100, SinceAcknowledged: time.Hour}, nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); watch.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	var conn atomic.Pointer[net.TCPConn]
	f.server.options.Dial = func(ctx context.Context, lease hold.Lease) (net.Conn, error) {
		tcp, err := lease.Dial(ctx)
		if err == nil {
			conn.Store(tcp)
		}
		return tcp, err
	}
	f.pods(rawPod(t, func(w *wire) {
		if !w.greet() {
			return
		}
		w.events(func(frame http2.Frame) {
			if h, ok := frame.(*http2.HeadersFrame); ok {
				w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: h.StreamID, BlockFragment: w.encode(":status", "200"), EndHeaders: true}))
			}
		})
	}))
	w := dialWire(t, f.address)
	w.headers(1, false, post()...)
	await[*http2.HeadersFrame](w)
	watch.Add(conn.Load())
	if _, err := w.next(func(http2.Frame) bool { return false }); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the client sees %v", err)
	}
	if got := f.ended(1)[0]; got.Outcome != accesslog.Failed {
		t.Errorf("it ended as %v: %s", got.Outcome, got.Reason)
	}
}
