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
	"net/netip"
	"strings"
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

// TestAQuietHeldStreamLives checks that a stream that was held may be silent for longer
// than any timeout, and that no frame of the resolver reaches the pod meanwhile.
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
			t.Error("the pod's response does not come first")
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

// TestIdleConnectionsEnd checks that a connection without a stream ends with GOAWAY.
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
