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
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
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
