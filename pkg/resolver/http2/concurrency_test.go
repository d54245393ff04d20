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
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// TestHeldStreamsTakeOneConnection checks that all held streams of a connection are sent
// to the pod on one connection, in the order of their arrival.
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

// TestMaxConcurrencyPerPod checks that a client may have as many streams as a pod may be
// sent, and that others wait, whether their connection has a pod or not.
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

// TestStreamsCountForMaxConcurrencyPerPod checks that each stream of a connection counts:
// another one waits until there is room beside them.
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

// TestAStreamThatIsNotReadStopsNoOther checks that other streams of a connection go on
// while the window of one is full.
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
