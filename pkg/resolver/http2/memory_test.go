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
	"net"
	"testing"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
)

// TestWhatIsNotCompleteIsCounted: parts of header blocks and of frames, for as long
// as the rest does not come. Without room for them the client is told so.
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
				t.Errorf("without room the client is told %s", got)
			}
			w.Close()
			f.eventually(func() bool { return account.Used() == 0 })
		})
	}
}

// TestUnreadAnswersAreCounted: what waits for clients that do not read counts. Where
// there is no room for it, those that read get all of it, and others are given up.
func TestUnreadAnswersAreCounted(t *testing.T) {
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
	ask := func() *wire {
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
		unread = append(unread, ask())
	}
	f.eventually(func() bool { return f.budget.Used() >= clients*bufferSize })
	for _, w := range unread {
		readAll(w)
	}
	f.eventually(func() bool { return f.budget.Used() == 0 })

	f.mu.Lock()
	f.account = memory.NewBudget(memory.Limits{Process: bufferSize}).Open(nil)
	f.mu.Unlock()
	deaf := ask()
	_ = deaf.Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	readAll(ask())
	f.ended(clients + 2)
	deaf.Close()
	f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
}
