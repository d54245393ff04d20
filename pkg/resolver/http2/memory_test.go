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
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/fallback"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// TestWhatIsNotCompleteIsCounted checks that parts of header blocks and of frames count
// for as long as the rest does not come, and that the connection ends with GOAWAY without
// room for them.
func TestWhatIsNotCompleteIsCounted(t *testing.T) {
	const size = 12 << 10
	for name, say := range map[string]func(w *wire){
		"a header block": func(w *wire) {
			w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, size)}))
		},
		"a frame": func(w *wire) {
			w.write(string(appendFrameHeader(nil, maxFrame, http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1)) + long(size))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			w := dialWire(t, f.address)
			say(w)
			f.eventually(func() bool { used := f.budget.Used(); return used >= size && used <= 2*size })
			w.Close()
			f.eventually(func() bool { return f.budget.Used() == 0 })

			account := memory.NewBudget(memory.Limits{Process: size}).Open(nil)
			f.mu.Lock()
			f.account = account
			f.mu.Unlock()
			w = dialWire(t, f.address)
			// Its SETTINGS are acknowledged before the header block begins.
			w.do(w.WritePing(false, [8]byte{}))
			await[*http2.PingFrame](w)
			say(w)
			if got := w.fault(); got != "GOAWAY ENHANCE_YOUR_CALM" {
				t.Errorf("without room the client gets %s", got)
			}
			w.Close()
			f.eventually(func() bool { return account.Used() == 0 })
		})
	}
}

// TestUnreadResponsesAreCounted checks that responses which wait for clients that do not
// read count. Without room for them, the clients that read get all of theirs, and the
// others are given up.
func TestUnreadResponsesAreCounted(t *testing.T) {
	const clients, size = 3, 16 << 20
	f := newFixture(t, nil)
	f.pods(rawPod(t, func(w *wire) {
		if !w.greet() {
			return
		}
		go func() { _, _ = io.Copy(io.Discard, w.Conn) }()
		part := make([]byte, maxFrame)
		for range size / maxFrame {
			if w.WriteData(1, false, part) != nil {
				return
			}
		}
	}))
	query := func() *wire {
		w := dialWire(t, f.address)
		w.headers(1, true, get()...)
		return w
	}
	readAll := func(w *wire) {
		t.Helper()
		if n, err := io.CopyN(io.Discard, w.Conn, size); err != nil {
			t.Errorf("a client got %d bytes: %v", n, err)
		}
		w.Close()
	}
	var unread []*wire
	for range clients {
		unread = append(unread, query())
	}
	f.eventually(func() bool { return f.budget.Used() >= clients*bufferSize })
	for _, w := range unread {
		readAll(w)
	}
	f.eventually(func() bool { return f.budget.Used() == 0 })

	f.mu.Lock()
	f.account = memory.NewBudget(memory.Limits{Process: bufferSize}).Open(nil)
	f.mu.Unlock()
	nonReading := query()
	_ = nonReading.Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	readAll(query())
	f.ended(clients + 2)
	nonReading.Close()
	f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
}

// TestBodiesThatMayBeSentAgainAreCounted checks that a held body counts until the pod has
// sent something, as it may have to be sent to another pod.
func TestBodiesThatMayBeSentAgainAreCounted(t *testing.T) {
	const size = 3 * maxFrame
	f := newFixture(t, nil)
	speak := make(chan struct{})
	got := make(chan struct{}, 1)
	pod := rawPod(t, func(w *wire) {
		if _, err := io.CopyN(io.Discard, w.Conn, size); err != nil {
			return
		}
		got <- struct{}{}
		<-speak
		w.do(w.WriteSettings())
		_, _ = io.Copy(io.Discard, w.Conn)
	})
	w := dialWire(t, f.address)
	w.headers(1, false, post()...)
	for range size / maxFrame {
		w.do(w.WriteData(1, false, make([]byte, maxFrame)))
	}
	f.eventually(func() bool { return f.budget.Used() >= size })
	f.pods(pod)
	<-got
	if used := f.budget.Used(); used < size || used > 3*size {
		t.Errorf("%d bytes count for %d", used, size)
	}
	close(speak)
	f.eventually(func() bool { return f.budget.Used() < size })
	w.Close()
	f.eventually(func() bool { return f.budget.Used() == 0 })
}

// TestWhatAPodDoesNotTakeIsCounted checks that bytes which a pod does not read count, and
// that the end of the client is noticed meanwhile, by a reset or a close.
func TestWhatAPodDoesNotTakeIsCounted(t *testing.T) {
	resets := func(conn *net.TCPConn) { _ = conn.SetLinger(0); conn.Close() }
	closes := func(conn *net.TCPConn) { conn.Close() }
	for name, test := range map[string]struct {
		much  bool
		leave func(*net.TCPConn)
	}{
		"much, and the client resets":   {true, resets},
		"much, and the client closes":   {true, closes},
		"little, and the client resets": {false, resets},
		"little, and the client closes": {false, closes},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.server.options.Dial = func(ctx context.Context, lease hold.Lease) (net.Conn, error) {
				tcp, err := lease.Dial(ctx)
				if err == nil {
					err = tcp.SetWriteBuffer(4 << 10)
				}
				return tcp, err
			}
			greeted, left := make(chan struct{}), make(chan struct{})
			f.pods(rawPod(t, func(w *wire) {
				w.do(w.Conn.(*net.TCPConn).SetReadBuffer(4 << 10))
				if w.greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow}) {
					w.do(w.WriteWindowUpdate(0, maxWindow-initialWindow))
				}
				close(greeted)
				<-left
			}))
			defer close(left)
			w := dialWire(t, f.address)
			var reading sync.WaitGroup
			defer reading.Wait()
			reading.Go(func() { _, _ = io.Copy(io.Discard, w.Conn) })
			w.headers(1, false, post()...)
			if test.much {
				// More than the buffers on the way to the pod have room for, which the
				// system chooses, and no more than the resolver reads: what its client
				// sends last is the end.
				f.eventually(func() bool {
					counted := f.budget.Used() >= 2*bufferSize
					if !counted {
						w.do(w.WriteData(1, false, make([]byte, maxFrame)))
					}
					return counted
				})
			}
			f.eventually(func() bool { return f.service.Queue().InFlight() == 1 })
			<-greeted
			test.leave(w.Conn.(*net.TCPConn))
			f.eventually(func() bool { return f.service.Queue().InFlight() == 0 && f.budget.Used() == 0 })
		})
	}
}

// crowd is a client and a pod, in memory, of a resolver with room for so many bytes.
// The client sends the header of stream 1, and then what say does.
func crowd(t *testing.T, running *sync.WaitGroup, room int64, pod, say func(*wire)) (*wire, *memory.Account) {
	t.Helper()
	dial := pipePods(t, running, pod)
	svc := service.New(service.Options{Namespace: "shop", Name: "cart", PublicService: "cart", Logger: klog.Background(),
		Config: &service.Config{HoldTimeout: time.Hour, Limits: hold.Limits{MaxPending: 10}}, Budget: memory.NewBudget(memory.Limits{Process: 1 << 20})})
	svc.SetPods([]endpoint.Description{{ID: "a", Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ports: map[string]uint16{"": 80}, Ready: true}})
	server := New(Options{Fallback: &fallback.Policy{}, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		Dial: func(ctx context.Context, _ hold.Lease) (net.Conn, error) { return dial(ctx) }})
	account := memory.NewBudget(memory.Limits{Process: room}).Open(nil)
	client, theirs := net.Pipe()
	running.Go(func() {
		server.Serve(context.Background(), theirs, nil, account, destination.Fixed(svc, service.Port{Number: 80}))
	})
	w := newWire(t, client)
	_ = client.SetDeadline(time.Time{})
	running.Go(func() {
		w.write(http2.ClientPreface)
		w.do(w.WriteSettings())
		w.headers(1, false, post()...)
		say(w)
	})
	return w, account
}

// TestSmallResponsesThatWaitAreCounted checks that a small response that waits counts as
// the buffer that is kept for it.
func TestSmallResponsesThatWaitAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		defer running.Wait()
		ctx, end := context.WithCancel(t.Context())
		defer end()
		w, account := crowd(t, &running, 1<<20, func(w *wire) {
			running.Go(func() { _, _ = io.Copy(io.Discard, w.Conn) })
			_ = w.WriteSettings()
			_ = w.WriteData(1, false, []byte("little"))
			<-ctx.Done()
		}, func(*wire) {})
		defer w.Close()
		await[*http2.SettingsFrame](w)
		synctest.Wait()
		if used := account.Used(); used < bufferSize {
			t.Errorf("%d bytes count", used)
		}
		for {
			frame, err := w.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := frame.(*http2.DataFrame); ok {
				break
			}
		}
		synctest.Wait()
		if used := account.Used(); used != 0 {
			t.Errorf("%d bytes count for nothing", used)
		}
	})
}

// TestWithoutRoomNothingWaitsForLong checks how long a part of a frame, or a frame that is
// not read, may wait without room: for roomTimeout, which begins again with each complete
// frame.
func TestWithoutRoomNothingWaitsForLong(t *testing.T) {
	header := string(appendFrameHeader(nil, maxFrame, http2.FrameData, 0, 1))
	part, rest := header+long(12<<10), long(4<<10)
	drain := func(w *wire) {
		if w.greet() {
			w.events(func(http2.Frame) {})
		}
	}
	for name, test := range map[string]struct {
		pod  func(w *wire)
		say  func(w *wire)
		want time.Duration
		code http2.ErrCode
	}{
		"a part of a frame of the client": {drain, func(w *wire) { w.write(part) }, roomTimeout, http2.ErrCodeEnhanceYourCalm},
		"one that is completed in time": {drain, func(w *wire) {
			w.write(part)
			for range 10 {
				<-time.After(roomTimeout - time.Second)
				w.write(rest + part)
			}
		}, 11*roomTimeout - 10*time.Second, http2.ErrCodeEnhanceYourCalm},
		"a part of a frame of the pod": {func(w *wire) {
			running := make(chan struct{})
			go func() { defer close(running); _, _ = io.Copy(io.Discard, w.Conn) }()
			_ = w.WriteSettings()
			_, _ = io.WriteString(w.Conn, part)
			<-running
		}, func(*wire) {}, roomTimeout, http2.ErrCodeInternal},
		"what a pod does not take": {func(w *wire) {
			if w.greet() {
				<-time.After(time.Minute)
			}
		}, func(*wire) {}, roomTimeout, http2.ErrCodeEnhanceYourCalm},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var running sync.WaitGroup
				defer running.Wait()
				began := time.Now()
				w, account := crowd(t, &running, 8<<10, test.pod, test.say)
				defer w.Close()
				for {
					frame, err := w.ReadFrame()
					if err != nil {
						t.Fatalf("after %s: %v", time.Since(began), err)
					}
					if goAway, ok := frame.(*http2.GoAwayFrame); ok {
						if took := time.Since(began); goAway.ErrCode != test.code || took != test.want {
							t.Errorf("%s after %s", goAway.ErrCode, took)
						}
						break
					}
				}
				w.Close()
				synctest.Wait()
				if used := account.Used(); used != 0 {
					t.Errorf("%d bytes count for nothing", used)
				}
			})
		})
	}
}
