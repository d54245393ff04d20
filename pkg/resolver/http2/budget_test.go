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
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// TestUnreadStreamsKeepLittleMemory bounds the memory for a client that opens 200 streams
// and reads none.
func TestUnreadStreamsKeepLittleMemory(t *testing.T) {
	const streams, size = 200, 32 << 20
	f := newFixture(t, nil)
	var sent atomic.Int64
	part := make([]byte, maxFrame)
	f.pods(rawPod(t, func(w *wire) {
		if !w.greet() {
			return
		}
		// It sends without end, whatever the client's windows say.
		var writing sync.WaitGroup
		defer writing.Wait()
		w.events(func(frame http2.Frame) {
			if h, ok := frame.(*http2.HeadersFrame); ok && h.StreamID == 2*streams-1 {
				writing.Go(func() {
					for i := range uint32(streams * size / maxFrame) {
						if w.WriteData(2*(i%streams)+1, false, part) != nil {
							return
						}
						sent.Add(1)
					}
				})
			}
		})
	}))
	w := dialWire(t, f.address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	before := heapInUse()
	w.do(w.WriteWindowUpdate(0, 1<<30))
	for i := range uint32(streams) {
		w.headers(2*i+1, true, get()...)
	}
	var last, same int64
	f.eventually(func() bool {
		if now := sent.Load(); now != last || now == 0 {
			last, same = now, 0
		}
		same++
		return same > 100
	})
	if last >= streams*size/maxFrame {
		t.Error("the pod could send everything")
	}
	if grown := int64(heapInUse()) - int64(before); grown > 4<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	w.Close()
	f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
}

func heapInUse() uint64 {
	// What a pool has is given up by the second.
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// TestWhatIsHeldIsCounted checks that the bytes of held bodies and header fields count.
func TestWhatIsHeldIsCounted(t *testing.T) {
	f := newFixture(t, nil)
	w := dialWire(t, f.address)
	w.headers(1, false, post("a", long(10000))...)
	for range 3 {
		w.do(w.WriteData(1, false, make([]byte, maxFrame)))
	}
	w.headers(1, true, "t", long(10000))
	const least = heldStreamBytes + 10000 + 3*maxFrame + 10000
	f.eventually(func() bool { return f.budget.Used() >= least })
	if used := f.budget.Used(); used > 2*least {
		t.Errorf("%d bytes count for %d", used, least)
	}
	w.do(w.WriteRSTStream(1, http2.ErrCodeCancel))
	f.held(0)
	if used := f.budget.Used(); used != 0 {
		t.Errorf("%d bytes count for nothing", used)
	}
}

// TestTooManyHeldBytes checks that a body without room is rejected when it comes.
func TestTooManyHeldBytes(t *testing.T) {
	f := newFixtureWith(t, nil, func(o *service.Options) { o.Budget = memory.NewBudget(memory.Limits{Process: heldStreamBytes + 4<<10}) })
	w := dialWire(t, f.address)
	w.headers(1, false, post()...)
	f.held(1)
	w.do(w.WriteData(1, false, make([]byte, 8<<10)))
	headers := w.decode(await[*http2.HeadersFrame](w))
	if headers[":status"] != "503" || headers["x-elasti-answer"] != string(localreply.ReasonTooManyBytes) {
		t.Errorf("got %v", headers)
	}
	if reset := await[*http2.RSTStreamFrame](w); reset.ErrCode != http2.ErrCodeNo {
		t.Errorf("got %v", reset)
	}
	// What is still on its way is dropped, and given back.
	w.do(w.WriteData(1, true, make([]byte, 1000)))
	if update := await[*http2.WindowUpdateFrame](w); update.StreamID != 0 {
		t.Errorf("got %v", update)
	}
	f.held(0)
}
