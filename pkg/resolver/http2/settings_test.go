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
	"slices"
	"testing"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// TestSettingsAndAcksReachTheirEnds checks that the SETTINGS of each end are acknowledged
// by the other one once, and those of the resolver by the client alone.
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
	settings := await[*http2.SettingsFrame](w)
	if limit, ok := settings.Value(http2.SettingMaxConcurrentStreams); !ok || limit != 7 {
		t.Errorf("the client gets %v", settings)
	}
	if ack := await[*http2.SettingsFrame](w); !ack.IsAck() {
		t.Errorf("got %v", ack)
	}
	w.headers(1, true, get()...)
	f.held(1)
	f.pods(address)
	replayed := <-first
	if replayed[http2.SettingInitialWindowSize] != 12345 {
		t.Errorf("the pod gets %v", replayed)
	}
	if push, ok := replayed[http2.SettingEnablePush]; !ok || push != 0 {
		t.Errorf("the pod may push: %v", replayed)
	}
	pods := await[*http2.SettingsFrame](w)
	for id, want := range map[http2.SettingID]uint32{http2.SettingMaxConcurrentStreams: 7, http2.SettingEnableConnectProtocol: 1} {
		if got, _ := pods.Value(id); got != want {
			t.Errorf("the client gets %s = %d, want %d", id, got, want)
		}
	}
	for _, id := range []http2.SettingID{http2.SettingHeaderTableSize, http2.SettingMaxFrameSize, http2.SettingNoRFC7540Priorities} {
		if _, ok := pods.Value(id); ok {
			t.Errorf("the client gets %s", id)
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

// A table that was lowered and raised again while the client was held stays low: the pod
// would have to tell the client of both sizes (RFC 7541 §4.2).
func TestPodGetsTheSmallestTableOfTheClient(t *testing.T) {
	f := newFixture(t, nil)
	first := make(chan map[http2.SettingID]uint32, 1)
	address := rawPod(t, func(w *wire) {
		if !w.greet() {
			return
		}
		w.events(func(frame http2.Frame) {
			if settings, ok := frame.(*http2.SettingsFrame); ok && !settings.IsAck() {
				select {
				case first <- valuesOf(settings):
				default:
				}
			}
		})
	})
	w := dialWire(t, f.address, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 100})
	w.do(w.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 4096}))
	w.headers(1, true, get()...)
	f.held(1)
	f.pods(address)
	if got := (<-first)[http2.SettingHeaderTableSize]; got != 100 {
		t.Errorf("the pod gets a table of %d bytes, want 100", got)
	}
}

// SETTINGS wait for a pod that acknowledges none, and no account has their memory.
func TestSettingsThatWaitAreBounded(t *testing.T) {
	f := newFixture(t, nil)
	address := rawPod(t, func(w *wire) {
		if w.greet() {
			w.events(func(http2.Frame) {})
		}
	})
	w := dialWire(t, f.address)
	w.headers(1, true, get()...)
	f.held(1)
	f.pods(address)
	// Those of the resolver, the ACK, and those of the pod.
	for range 3 {
		await[*http2.SettingsFrame](w)
	}
	several := slices.Repeat([]http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 100}}, maxWaitingSettings/6/2)
	w.do(w.WriteSettings(several...))
	w.do(w.WriteSettings(several...))
	if end := await[*http2.GoAwayFrame](w); end.ErrCode != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("the connection ended with %v", end)
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

// TestTheAckComesBeforeThePod checks that the client gets the acknowledgement of its
// SETTINGS before anything of a pod that responds at once and acts on them.
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
		for acknowledged := false; !acknowledged; {
			frame, err := w.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				acked = acked || frame.IsAck()
			case *http2.HeadersFrame:
				acknowledged = true
			}
		}
		if !acked {
			t.Fatal("the response came before the ACK")
		}
		w.Close()
	}
}
