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
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/fallback"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// TestClientsAreMovedInTwoSteps checks that a first GOAWAY allows every stream that is
// under way, that a second one names the last stream, and that the connection ends with
// that.
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
			responded := map[uint32]bool{}
			second, err := w.next(func(frame http2.Frame) bool {
				if h, ok := frame.(*http2.HeadersFrame); ok {
					responded[h.StreamID] = true
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
					responded[h.StreamID] = true
				}
			}
			if !responded[1] || !responded[5] || responded[7] {
				t.Errorf("responded: %v", responded)
			}
		})
	}
}

// halves is a connection in memory of which each direction ends by itself.
type halves struct {
	net.Conn
	writes net.Conn
}

// newHalves returns both ends of a connection.
func newHalves() (client, server *halves) {
	clientReads, serverWrites := net.Pipe()
	serverReads, clientWrites := net.Pipe()
	return &halves{clientReads, clientWrites}, &halves{serverReads, serverWrites}
}

func (h *halves) Write(data []byte) (int, error)      { return h.writes.Write(data) }
func (h *halves) SetWriteDeadline(at time.Time) error { return h.writes.SetWriteDeadline(at) }
func (h *halves) SetDeadline(at time.Time) error {
	return errors.Join(h.Conn.SetDeadline(at), h.writes.SetDeadline(at))
}
func (h *halves) CloseWrite() error { return h.writes.Close() }
func (h *halves) Close() error      { return errors.Join(h.Conn.Close(), h.writes.Close()) }

// TestSlowClientsGetTheEndOfTheLastResponse checks that a client gets the end of the last
// response on its connection however long it takes to read that.
func TestSlowClientsGetTheEndOfTheLastResponse(t *testing.T) {
	for name, test := range map[string]struct {
		// before is called while the response has not ended, after when the client is yet to
		// read its end.
		before func(s *slowClient)
		after  func(s *slowClient)
	}{
		"told to reconnect": {before: (*slowClient).reconnects},
		"idle":              {},
		"finished":          {after: func(s *slowClient) { _ = s.conn.CloseWrite() }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSlowClient(t)
				s.await(func(frame http2.Frame) bool { _, ok := frame.(*http2.HeadersFrame); return ok })
				if test.before != nil {
					test.before(s)
				}
				close(s.finish)
				synctest.Wait()
				if s.ended.Load() != 1 {
					t.Fatal("the stream has not ended for the pod")
				}
				if test.after != nil {
					test.after(s)
				}
				<-time.After(time.Hour)
				s.await(func(frame http2.Frame) bool {
					data, ok := frame.(*http2.DataFrame)
					return ok && data.StreamEnded() && len(data.Data()) == maxFrame
				})
				for {
					if _, err := s.wire.ReadFrame(); err != nil {
						if !errors.Is(err, io.EOF) {
							t.Errorf("the end is %v", err)
						}
						break
					}
				}
				s.conn.Close()
			})
		})
	}
}

// slowClient has sent a request on stream 1, and reads what it awaits. Its pod ends the
// response once finish is closed.
type slowClient struct {
	conn   *halves
	wire   *wire
	server *Server
	writes chan func() error
	finish chan struct{}
	// ended is how many streams have ended.
	ended atomic.Int32
}

func newSlowClient(t *testing.T) *slowClient {
	t.Helper()
	s := &slowClient{writes: make(chan func() error, 10), finish: make(chan struct{})}
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	// In memory a write waits for its reader, which must not wait for it.
	writeAll := func(writes <-chan func() error) {
		for write := range writes {
			_ = write()
		}
	}
	dial := pipePods(t, &running, func(w *wire) {
		if !w.greet() {
			return
		}
		writes := make(chan func() error, 10)
		defer close(writes)
		running.Go(func() { writeAll(writes) })
		w.events(func(frame http2.Frame) {
			if _, ok := frame.(*http2.HeadersFrame); !ok {
				return
			}
			writes <- func() error {
				return w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: w.encode(":status", "200"), EndHeaders: true})
			}
			writes <- func() error {
				select {
				case <-s.finish:
				case <-t.Context().Done():
				}
				return w.WriteData(1, true, make([]byte, maxFrame))
			}
		})
	})
	svc := service.New(service.Options{Namespace: "shop", Name: "cart", PublicService: "cart", Logger: klog.Background(),
		Config: &service.Config{HoldTimeout: time.Minute, Limits: hold.Limits{MaxPending: 10}}, Budget: memory.NewBudget(memory.Limits{Process: 1 << 20}),
		Finish: func(*accesslog.Record) { s.ended.Add(1) }})
	t.Cleanup(svc.Close)
	svc.SetPods([]endpoint.Description{{ID: "a", Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ports: map[string]uint16{"": 80}, Ready: true}})
	s.server = New(Options{Fallback: &fallback.Policy{}, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		Dial: func(ctx context.Context, _ hold.Lease) (net.Conn, error) { return dial(ctx) }})
	client, theirs := newHalves()
	running.Go(func() {
		s.server.Serve(t.Context(), theirs, nil, svc.Memory(), destination.Fixed(svc, service.Port{Number: 80}))
	})
	s.conn, s.wire = client, newWire(t, client)
	_ = client.SetDeadline(time.Time{})
	running.Go(func() { writeAll(s.writes) })
	t.Cleanup(func() {
		close(s.writes)
		client.Close()
	})
	s.writes <- func() error {
		s.wire.write(http2.ClientPreface)
		s.wire.do(s.wire.WriteSettings())
		s.wire.headers(1, true, get()...)
		return nil
	}
	return s
}

// await reads frames until one for which wanted is true.
func (s *slowClient) await(wanted func(http2.Frame) bool) http2.Frame {
	s.wire.t.Helper()
	for {
		frame, err := s.wire.ReadFrame()
		if err != nil {
			s.wire.t.Fatal(err)
		}
		if wanted(frame) {
			return frame
		}
	}
}

// reconnects has the client told to reconnect, to the last GOAWAY.
func (s *slowClient) reconnects() {
	s.server.Drain()
	ping := s.await(func(frame http2.Frame) bool { _, ok := frame.(*http2.PingFrame); return ok }).(*http2.PingFrame)
	data := ping.Data
	s.writes <- func() error { return s.wire.WritePing(true, data) }
	s.await(func(frame http2.Frame) bool {
		goAway, ok := frame.(*http2.GoAwayFrame)
		return ok && goAway.LastStreamID == 1
	})
}

// TestClientsThatStillSendGetTheEndOfTheLastResponse checks that a client gets what is on
// its way although it sends much before it reads that.
func TestClientsThatStillSendGetTheEndOfTheLastResponse(t *testing.T) {
	const body, much = 48 << 10, 64
	f := newFixture(t, nil)
	finish := make(chan struct{})
	f.pods(httpPod(t, func(w http.ResponseWriter, _ *http.Request) {
		<-finish
		_, _ = w.Write(make([]byte, body))
	}))
	conn := dialNarrow(t, f.address)
	w := newWire(t, conn)
	w.write(http2.ClientPreface)
	w.do(w.WriteSettings())
	w.headers(1, true, get()...)
	f.eventually(func() bool { return f.service.Queue().InFlight() == 1 })
	f.server.Drain()
	ping := await[*http2.PingFrame](w)
	w.do(w.WritePing(true, ping.Data))
	await[*http2.GoAwayFrame](w)
	close(finish)
	f.ended(1)
	for range much {
		w.do(w.WriteRawFrame(0x42, 0, 0, make([]byte, maxFrame)))
	}
	got, ended := 0, false
	for {
		frame, err := w.ReadFrame()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Errorf("the end is %v", err)
			}
			break
		}
		if data, ok := frame.(*http2.DataFrame); ok {
			got, ended = got+len(data.Data()), ended || data.StreamEnded()
		}
	}
	if got != body || !ended {
		t.Errorf("got %d bytes, with an end: %v", got, ended)
	}
}

// dialNarrow connects, with little room for what is received.
func dialNarrow(t *testing.T, address string) net.Conn {
	t.Helper()
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10)
		})
		return errors.Join(err, failed)
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestAConnectionIsClosedOnceItsClientHasReceivedAll checks that a client receives all that
// was written before the end, although it sends more than is read of it at a time.
func TestAConnectionIsClosedOnceItsClientHasReceivedAll(t *testing.T) {
	const body, much = 48 << 10, 4 * lingerBytes
	f := newFixture(t, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client := dialNarrow(t, listener.Addr().String())
	if err := client.SetDeadline(time.Now().Add(wireTimeout)); err != nil {
		t.Fatal(err)
	}
	theirs, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := newConn(f.server, theirs, nil, f.service.Memory(), destination.Fixed(f.service, service.Port{Number: 80}))
	// All of it is written without waiting for the client.
	if err := theirs.(*net.TCPConn).SetWriteBuffer(4 * body); err != nil {
		t.Error(err)
	}
	if _, err := theirs.Write(make([]byte, body)); err != nil {
		t.Error(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		c.closeGracefully()
		c.end()
	})
	if _, err := client.Write(make([]byte, much)); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(client); len(got) != body || err != nil {
		t.Errorf("the client received %d bytes, and %v", len(got), err)
	}
	client.Close()
	running.Wait()
}
