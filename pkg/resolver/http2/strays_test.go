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
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// TestAHeaderBlockOfThePodWithoutAnEnd checks that such a header block is forwarded, and
// that nothing of it is kept.
func TestAHeaderBlockOfThePodWithoutAnEnd(t *testing.T) {
	const total = 8 << 20
	f := newFixture(t, nil)
	finish := make(chan struct{})
	f.pods(rawPod(t, func(w *wire) {
		if !w.greet() {
			return
		}
		// A field without indexing whose value is longer than all that follows.
		block := appendInteger([]byte{0x00, 1, 'x'}, 0, 7, 1<<30)
		w.do(w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block}))
		part := []byte(long(maxFrame))
		for range total / maxFrame {
			w.do(w.WriteContinuation(1, false, part))
		}
		<-finish
	}))
	before := heapInUse()
	conn := dialRaw(t, f.address)
	conn.write(http2.ClientPreface)
	conn.do(conn.WriteSettings())
	conn.headers(1, true, get()...)
	if _, err := io.CopyN(io.Discard, conn.Conn, total); err != nil {
		t.Fatal(err)
	}
	if grown := int64(heapInUse()) - int64(before); grown > total/4 {
		t.Errorf("%d bytes are kept of a header block of %d", grown, total)
	}
	close(finish)
}

// cart finds a service for its own host name only.
func (f *fixture) cart(visited func(host string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.find = func(field func(string) []string) (*service.Service, service.Port, *localreply.Reply) {
		host := strings.Join(field("Host"), "")
		visited(host)
		if host == "cart" {
			return f.service, service.Port{Number: 80}, nil
		}
		return nil, service.Port{}, localreply.New(http.StatusMisdirectedRequest, localreply.ReasonUnknownHost, "unknown")
	}
}

func of(host string) []string {
	return []string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", host}
}

// TestLateFramesOfStreamsWithLocalReplies sends frames of streams that got a local reply.
// They are not forwarded: the pod does not know these streams.
func TestLateFramesOfStreamsWithLocalReplies(t *testing.T) {
	for name, say := range map[string]func(w *wire){
		"WINDOW_UPDATE": func(w *wire) { w.do(w.WriteWindowUpdate(3, 1)) },
		"RST_STREAM":    func(w *wire) { w.do(w.WriteRSTStream(3, http2.ErrCodeCancel)) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.cart(func(string) {})
			finish := make(chan struct{})
			f.pods(httpPod(t, func(http.ResponseWriter, *http.Request) { <-finish }))
			w := dialWire(t, f.address)
			w.headers(1, true, of("cart")...)
			w.headers(3, true, of("other")...)
			if fields := w.decode(await[*http2.HeadersFrame](w)); fields[":status"] != "421" {
				t.Errorf("got %v", fields)
			}
			say(w)
			// The pod has read it once it acknowledges this.
			w.do(w.WritePing(false, [8]byte{}))
			await[*http2.PingFrame](w)
			close(finish)
			if fields := w.decode(await[*http2.HeadersFrame](w)); fields[":status"] != "200" {
				t.Errorf("got %v", fields)
			}
		})
	}
}

// TestPodsThatRejectWhileMoreIsSaid checks that bytes which follow a request to a pod that
// took nothing are neither lost nor taken for sent.
func TestPodsThatRejectWhileMoreIsSaid(t *testing.T) {
	for name, test := range map[string]struct {
		// say follows the header of stream 1, which has a body.
		say       func(w *wire)
		responses int
	}{
		"a body":           {func(w *wire) { w.do(w.WriteData(1, true, []byte("body"))) }, 1},
		"another request":  {func(w *wire) { w.headers(3, true, of("cart")...) }, 2},
		"settings, at all": {func(w *wire) { w.do(w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 7})) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			// The last request is read once the pod has rejected all before it.
			f.cart(func(host string) {
				if host == "last" {
					f.eventually(f.podHasEnded)
				}
			})
			dials := 0
			f.server.options.Dial = func(ctx context.Context, lease hold.Lease) (net.Conn, error) {
				tcp, err := lease.Dial(ctx)
				if dials++; err != nil || dials > 1 {
					return tcp, err
				}
				return tcp, socket.WaitClosed(tcp)
			}
			f.pods(rawPod(t, func(*wire) {}))
			w := dialRaw(t, f.address)
			client := w.Conn
			said := &onePiece{Conn: client}
			w.Conn, w.Framer = said, http2.NewFramer(said, client)
			w.write(http2.ClientPreface)
			w.do(w.WriteSettings())
			w.headers(1, false, of("cart")...)
			test.say(w)
			w.headers(5, true, of("last")...)
			if _, err := client.Write(said.all); err != nil {
				t.Fatal(err)
			}
			statuses := map[uint32]string{}
			for len(statuses) < test.responses+1 {
				h := await[*http2.HeadersFrame](w)
				statuses[h.StreamID] = w.decode(h)[":status"]
			}
			if statuses[1] != "502" || statuses[5] != "421" || test.responses > 1 && statuses[3] != "502" {
				t.Errorf("the statuses are %v", statuses)
			}
			f.eventually(func() bool { return f.service.Queue().InFlight() == 0 && f.service.Queue().Held() == 0 })
		})
	}
}

// onePiece keeps what is written, so that it can be sent in one piece.
type onePiece struct {
	net.Conn
	all []byte
}

func (p *onePiece) Write(data []byte) (int, error) {
	p.all = append(p.all, data...)
	return len(data), nil
}

// podHasEnded reports whether a connection knows that the one to its pod has ended.
func (f *fixture) podHasEnded() bool {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	for c := range f.server.conns {
		c.events.mu.Lock()
		ended := c.events.pending.podEnded
		c.events.mu.Unlock()
		if ended {
			return true
		}
	}
	return false
}
