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
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// quietPod reads what it is sent. respond is called for each header block.
func quietPod(t *testing.T, respond func(w *wire, id uint32)) string {
	t.Helper()
	return rawPod(t, func(w *wire) {
		if !w.greet() {
			return
		}
		for {
			frame, err := w.ReadFrame()
			if err != nil {
				return
			}
			if h, ok := frame.(*http2.HeadersFrame); ok {
				respond(w, h.StreamID)
			}
		}
	})
}

// writeHeaders writes a header block, in as many frames as it takes.
func (w *wire) writeHeaders(id uint32, end bool, block []byte) {
	out := append(make([]byte, frameHeaderLen), block...)
	w.write(string(frameBlock(out, 0, id, end)))
}

// literals returns a header block of fields that are put into no table.
func literals(pairs ...string) []byte {
	var block []byte
	for i := 0; i < len(pairs); i += 2 {
		block = appendString(appendString(append(block, 0), pairs[i]), pairs[i+1])
	}
	return block
}

// TestOpenStreamsAreCounted checks that each open stream counts as what the heap grows by,
// and that nothing of a request is kept but its record.
func TestOpenStreamsAreCounted(t *testing.T) {
	const conns = 4
	for name, test := range map[string]struct {
		path, traceParent string
		// streams are those of a connection.
		streams int
	}{
		"short paths":       {"/", "", 1000},
		"long paths":        {"/" + long(1000), long(100), 1000},
		"paths of 16 KiB":   {"/" + long(16<<10), "", 250},
		"queries of 16 KiB": {"/?" + long(16<<10), "", 250},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pods(quietPod(t, func(*wire, uint32) {}))
			fields := []string{":method", "GET", ":scheme", "http", ":path", test.path, ":authority", "cart", "traceparent", test.traceParent}
			open := func(w *wire, id uint32) { w.writeHeaders(id, true, literals(fields...)) }
			var wires []*wire
			for range conns {
				w := dialWire(t, f.address)
				open(w, 1)
				wires = append(wires, w)
			}
			inFlight := func(n int) { f.eventually(func() bool { return f.service.Queue().InFlight() == n }) }
			inFlight(conns)
			heap, used := heapInUse(), f.budget.Used()
			for _, w := range wires {
				for i := range uint32(test.streams - 1) {
					open(w, 2*i+3)
				}
			}
			inFlight(conns * test.streams)
			streams := int64(conns * test.streams)
			grown, counted := int64(heapInUse())-int64(heap), f.budget.Used()-used
			t.Logf("a stream takes %d bytes and counts as %d", grown/streams, counted/streams)
			if counted < grown*8/10 || counted > 3*grown {
				t.Errorf("%d bytes count for %d", counted, grown)
			}
			if grown > streams*5<<10 {
				t.Errorf("%d streams take %d bytes", streams, grown)
			}
			for _, w := range wires {
				for i := range uint32(test.streams - 1) {
					w.do(w.WriteRSTStream(2*i+3, http2.ErrCodeCancel))
				}
			}
			inFlight(conns)
			if counted := f.budget.Used() - used; counted > conns*usageStep {
				t.Errorf("%d bytes count for streams that have ended", counted)
			}
			for _, w := range wires {
				w.Close()
			}
			f.eventually(func() bool { return f.budget.Used() == 0 })
		})
	}
}

// TestOpenStreamsNeedRoom checks that streams without room get 503, whether they would be
// forwarded at once or held, and that others of their connection go on.
func TestOpenStreamsNeedRoom(t *testing.T) {
	const room = 1 << 20
	// Held streams make room for one another, but not for a connection.
	for name, streams := range map[string]int{"awake": 40, "held": 2} {
		held := name == "held"
		t.Run(name, func(t *testing.T) {
			budget := memory.NewBudget(memory.Limits{Process: room})
			f := newFixtureWith(t, nil, func(o *service.Options) { o.Budget = budget })
			seen := make(chan struct{}, 100)
			pod := rawPod(t, func(w *wire) {
				if !w.greet() {
					return
				}
				var open []uint32
				w.events(func(frame http2.Frame) {
					switch frame := frame.(type) {
					case *http2.HeadersFrame:
						open = append(open, frame.StreamID)
						seen <- struct{}{}
					case *http2.PingFrame:
						for _, id := range open {
							w.writeHeaders(id, true, literals(":status", "200"))
						}
						open = nil
					}
				})
			})
			w := dialWire(t, f.address)
			first := uint32(1)
			if !held {
				f.pods(pod)
				w.headers(1, true, get()...)
				w.do(w.WritePing(false, [8]byte{}))
				await[*http2.HeadersFrame](w)
				first = 3
			}
			// Another service takes what there is, and gives nothing back.
			other := budget.Open(nil)
			take := func() {
				t.Helper()
				if err := other.Take(room - budget.Used()); err != nil {
					t.Fatal(err)
				}
			}
			if !held {
				take()
			}
			for i := range uint32(streams) {
				w.headers(first+2*i, true, get()...)
			}
			if held {
				f.held(streams)
				take()
				f.pods(pod)
			}
			if !held {
				w.do(w.WritePing(false, [8]byte{1}))
			}
			statuses := map[string]int{}
			for range streams {
				headers := w.decode(await[*http2.HeadersFrame](w))
				statuses[headers[":status"]+headers["x-elasti-answer"]]++
			}
			rejected := statuses["503"+string(localreply.ReasonTooManyBytes)]
			if rejected == 0 || held != (statuses["200"] == 0) || rejected+statuses["200"] != streams {
				t.Errorf("the responses are %v", statuses)
			}
			other.Give(other.Used())
			for len(seen) > 0 {
				<-seen
			}
			w.headers(first+2*uint32(streams), true, get()...)
			<-seen
			w.do(w.WritePing(false, [8]byte{2}))
			if status := w.decode(await[*http2.HeadersFrame](w))[":status"]; status != "200" {
				t.Errorf("the next stream gets %s", status)
			}
			f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
			w.Close()
			f.eventually(func() bool { return budget.Used() == 0 })
		})
	}
}

// fillTable returns a header block that has some fields first, and fills a table with
// small entries.
func fillTable(first ...string) []byte {
	var block []byte
	for i := 0; i < len(first); i += 2 {
		block = append(block, literals(first[i], first[i+1])...)
	}
	for i := range maxEntries {
		// Literal fields that are put into the table.
		block = appendString(appendString(append(block, 0x40), "x"), fmt.Sprintf("%02x", i))
	}
	return block
}

// TestTablesAreCounted checks that the tables of both ends count as what they take, and so
// does what the decoder of a pod's header blocks keeps of a field that came in parts.
func TestTablesAreCounted(t *testing.T) {
	const conns = 100
	request := []string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "cart"}
	for name, test := range map[string]struct{ request, response []byte }{
		"the client's":        {fillTable(request...), literals(":status", "200")},
		"the pod's":           {literals(request...), fillTable(":status", "200")},
		"a field in parts":    {literals(request...), literals(":status", "200", "x", long(60<<10))},
		"large fields":        {literals(append(request, "x", long(60<<10))...), literals(":status", "200")},
		"large, to the table": {append(literals(request...), appendString(appendString([]byte{0x40}, "x"), long(60<<10))...), literals(":status", "200")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pods(quietPod(t, func(w *wire, id uint32) {
				block := test.response
				if id == 1 {
					block = literals(":status", "200")
				}
				w.writeHeaders(id, true, block)
			}))
			var wires []*wire
			for range conns {
				w := dialWire(t, f.address)
				w.writeHeaders(1, true, literals(request...))
				await[*http2.HeadersFrame](w)
				wires = append(wires, w)
			}
			ended := func(n int) {
				f.eventually(func() bool { return f.service.Queue().InFlight() == 0 && len(f.ended(n)) == n })
			}
			ended(conns)
			heap, used := heapInUse(), f.budget.Used()
			for _, w := range wires {
				w.writeHeaders(3, true, test.request)
			}
			ended(2 * conns)
			grown, counted := int64(heapInUse())-int64(heap), f.budget.Used()-used
			t.Logf("a connection takes %d bytes and counts as %d", grown/conns, counted/conns)
			if strings.HasPrefix(name, "large") {
				// The framer of the pod keeps a frame.
				if grown > conns*(maxFrame+8<<10) {
					t.Errorf("%d bytes are kept of large fields", grown)
				}
			} else if counted < (grown-conns*2*smallTable)*8/10 || counted > 4*grown {
				// What is a part of every connection does not count again.
				t.Errorf("%d bytes count for %d", counted, grown)
			}
			for _, w := range wires {
				w.Close()
			}
			f.eventually(func() bool { return f.budget.Used() == 0 })
		})
	}
}
