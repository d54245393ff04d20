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
	"io"
	"net/http"
	"testing"

	"golang.org/x/net/http2"
)

// TestLateBodiesOfManyStreamsWithLocalReplies checks that bodies are dropped which the
// client had sent before it got the local replies, of any number of streams.
func TestLateBodiesOfManyStreamsWithLocalReplies(t *testing.T) {
	const streams = 500
	for name, test := range map[string]struct{ awake, between bool }{
		"while held":                 {},
		"awake":                      {awake: true},
		"awake, others between them": {awake: true, between: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.cart(func(string) {})
			if test.awake {
				f.pods(httpPod(t, func(http.ResponseWriter, *http.Request) {}))
			}
			w := dialWire(t, f.address)
			id := uint32(1)
			request := func(host string, end bool, want string) {
				t.Helper()
				w.headers(id, end, of(host)...)
				id += 2
				if got := w.decode(await[*http2.HeadersFrame](w))[":status"]; got != want {
					t.Fatalf("stream %d to %s gets %s", id-2, host, got)
				}
			}
			if test.awake {
				request("cart", true, "200")
			}
			var open []uint32
			for range streams {
				open = append(open, id)
				request("other", false, "421")
				if test.between {
					request("cart", true, "200")
				}
			}
			if test.awake {
				request("cart", true, "200")
			}
			for _, id := range open {
				w.do(w.WriteData(id, true, []byte("late")))
			}
			request("other", true, "421")
			if test.awake {
				request("cart", true, "200")
			}
		})
	}
}

// TestDroppedStreams checks that the spans tell apart the streams that they can, and never
// lose one.
func TestDroppedStreams(t *testing.T) {
	var d dropped
	for id := uint32(1); id <= 99; id += 2 {
		d = d.with(id)
	}
	d = d.without(51).without(1).without(99).without(200)
	for id := uint32(1); id <= 101; id += 2 {
		if want := id != 1 && id != 51 && id < 99; d.has(id) != want {
			t.Errorf("%d is dropped: %v", id, !want)
		}
	}
	if d = d.with(51); len(d) != 1 {
		t.Errorf("the spans are %v", d)
	}
	for id := uint32(201); id < 4*1000; id += 4 {
		if d = d.with(id); len(d) > maxSpans {
			t.Fatalf("%d spans", len(d))
		}
	}
	for id := uint32(201); id < 4*1000; id += 4 {
		if !d.has(id) {
			t.Errorf("%d was forgotten", id)
		}
	}
	if d.has(3995) {
		t.Error("streams between the newest are dropped")
	}
}

// TestTrailersBetweenManyStreamsWithLocalReplies checks that the trailers of a held stream
// are kept although so many streams are dropped that those around it are one span.
func TestTrailersBetweenManyStreamsWithLocalReplies(t *testing.T) {
	f := newFixture(t, nil)
	f.cart(func(string) {})
	finish := make(chan struct{})
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			<-finish
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Sum", r.Trailer.Get("Sum"))
	}))
	w := dialWire(t, f.address)
	w.headers(1, true, get()...)
	f.eventually(func() bool { return f.service.Queue().InFlight() == 1 })
	f.service.Config().Limits.MaxConcurrencyPerPod = 1
	f.service.Apply(f.service.Config())
	drop := func(id uint32) {
		t.Helper()
		w.headers(id, false, of("other")...)
		if got := w.decode(await[*http2.HeadersFrame](w))[":status"]; got != "421" {
			t.Fatalf("stream %d gets %s", id, got)
		}
	}
	drop(3)
	w.headers(5, false, post("trailer", "sum")...)
	f.held(1)
	for id := uint32(7); id < 7+4*(maxSpans+1); id += 4 {
		drop(id)
	}
	w.headers(5, true, "sum", "7")
	w.do(w.WritePing(false, [8]byte{}))
	await[*http2.PingFrame](w)
	close(finish)
	for {
		h := await[*http2.HeadersFrame](w)
		if got := w.decode(h); h.StreamID == 5 {
			if got["sum"] != "7" {
				t.Errorf("the pod got the trailer %q", got["sum"])
			}
			return
		}
	}
}
