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
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
)

// sentParts are the frames that a nonReadingPod sends, receivedPings those that it gets.
const sentParts, receivedPings = 64, 5000

// nonReadingPod responds on a stream once speak is closed, and reads nothing before resume is.
type nonReadingPod struct {
	t                   *testing.T
	speak, resume, over chan struct{}
	// saw are the frames that it has read, but for PING and DATA. It is complete when
	// over is closed.
	saw []string
}

func (p *nonReadingPod) serve(w *wire) {
	defer close(p.over)
	if !w.greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow}) {
		return
	}
	w.do(w.WriteSettingsAck())
	w.do(w.WriteWindowUpdate(0, maxWindow-initialWindow))
	<-p.speak
	w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: w.encode(":status", "200"), EndHeaders: true}))
	for i := range sentParts {
		w.do(w.WriteData(1, i == sentParts-1, make([]byte, maxFrame)))
	}
	<-p.resume
	got := uint64(0)
	for {
		frame, err := w.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.PingFrame:
			if n := binary.BigEndian.Uint64(frame.Data[:]); n != got+1 {
				p.t.Errorf("PING %d comes after %d", n, got)
			}
			got++
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				p.saw = append(p.saw, "SETTINGS")
			}
		case *http2.WindowUpdateFrame:
			p.saw = append(p.saw, "WINDOW_UPDATE")
		case *http2.RSTStreamFrame:
			p.saw = append(p.saw, "RST_STREAM")
		case *http2.GoAwayFrame:
			p.saw = append(p.saw, "GOAWAY")
			if got != receivedPings {
				p.t.Errorf("the pod got %d PINGs", got)
			}
			return
		}
	}
}

// TestAPodThatReadsNothingStopsOnlyWhatIsForIt checks that the frames of such a pod, and
// GOAWAY, reach its client. The frames of the client are neither kept without bound nor
// lost: the pod gets them in order once it reads again.
func TestAPodThatReadsNothingStopsOnlyWhatIsForIt(t *testing.T) {
	// As much as there is never room for on the way to the pod.
	const much = 32 << 20
	f := newFixture(t, nil)
	pod := &nonReadingPod{t: t, speak: make(chan struct{}), resume: make(chan struct{}), over: make(chan struct{})}
	f.pods(rawPod(t, pod.serve))
	w := dialWire(t, f.address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	w.do(w.WriteWindowUpdate(0, maxWindow-initialWindow))
	w.headers(1, true, get()...)
	w.headers(3, false, post()...)
	f.eventually(func() bool { return f.service.Queue().InFlight() == 2 })
	before := heapInUse()
	var writing sync.WaitGroup
	var written atomic.Int64
	writing.Go(func() {
		part := make([]byte, maxFrame)
		for range much / maxFrame {
			w.do(w.WriteData(3, false, part))
			written.Add(1)
		}
		for i := range uint64(receivedPings) {
			w.do(w.WritePing(false, [8]byte(binary.BigEndian.AppendUint64(nil, i+1))))
		}
		w.do(w.WriteSettings(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 1 << 20}))
		w.do(w.WriteWindowUpdate(3, 1))
		w.do(w.WriteRSTStream(3, http2.ErrCodeCancel))
		w.do(w.WriteGoAway(0, http2.ErrCodeNo, nil))
	})
	f.stopped(&written)
	if used := f.budget.Used(); used < 2*bufferSize {
		t.Errorf("%d bytes count", used)
	}
	close(pod.speak)
	for bytes := 0; bytes < sentParts*maxFrame; {
		frame, err := w.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := frame.(*http2.DataFrame); ok {
			bytes += len(data.Data())
		}
	}
	f.server.Drain()
	if goAway := await[*http2.GoAwayFrame](w); goAway.LastStreamID != maxStreamID {
		t.Errorf("got %v", goAway)
	}
	if used := f.budget.Used(); used > 8*bufferSize {
		t.Errorf("%d bytes count", used)
	}
	if grown := int64(heapInUse()) - int64(before); grown > 1<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	close(pod.resume)
	writing.Wait()
	<-pod.over
	want := []string{"SETTINGS", "WINDOW_UPDATE", "SETTINGS", "WINDOW_UPDATE", "RST_STREAM", "GOAWAY"}
	if !slices.Equal(pod.saw, want) {
		t.Errorf("the pod has seen %v", pod.saw)
	}
	w.Close()
	f.eventually(func() bool { return f.service.Queue().InFlight() == 0 && f.budget.Used() == 0 })
}

// stopped waits until a counter has grown and does so no more: what there is room for on
// the way is used up.
func (f *fixture) stopped(counter *atomic.Int64) {
	f.t.Helper()
	var last, same int64
	f.eventually(func() bool {
		if now := counter.Load(); now != last || now == 0 {
			last, same = now, 0
		}
		same++
		return same > 100
	})
}

// TestRepliesWaitForNoClientThatDoesNotRead checks that replies of the resolver wait for
// the client, up to a bound, while the pod still gets the frames of the client.
func TestRepliesWaitForNoClientThatDoesNotRead(t *testing.T) {
	f := newFixture(t, nil)
	f.cart(func(string) {})
	var sent atomic.Int64
	reset := make(chan http2.ErrCode, 1)
	f.pods(rawPod(t, func(w *wire) {
		if !w.greet() {
			return
		}
		var writing sync.WaitGroup
		defer writing.Wait()
		w.events(func(frame http2.Frame) {
			switch frame := frame.(type) {
			case *http2.HeadersFrame:
				// It sends without end, whatever the client's windows say.
				writing.Go(func() {
					for w.WriteData(frame.StreamID, false, make([]byte, maxFrame)) == nil {
						sent.Add(1)
					}
				})
			case *http2.RSTStreamFrame:
				reset <- frame.ErrCode
			}
		})
	}))
	w := dialWire(t, f.address)
	w.headers(1, true, of("cart")...)
	f.stopped(&sent)
	id := uint32(3)
	w.headers(id, true, of("other")...)
	w.do(w.WriteRSTStream(1, http2.ErrCodeCancel))
	if code := <-reset; code != http2.ErrCodeCancel {
		t.Errorf("the pod gets %s", code)
	}
	// As many replies as wait at most, and more.
	for range maxWaitingControl / 16 {
		id += 2
		if w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.encode(of("other")...), EndHeaders: true, EndStream: true}) != nil {
			break
		}
	}
	f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
	// There may be no room for GOAWAY either.
	if got := w.fault(); strings.Contains(got, "timeout") {
		t.Errorf("the connection goes on: %s", got)
	}
}
