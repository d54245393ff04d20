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

package http1

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// faulty is a connection to a pod of which one method panics once, when it is told to.
type faulty struct {
	socket.Conn
	method string
	on     *atomic.Bool
}

func (f *faulty) panics(method string) {
	if f.method == method && f.on.CompareAndSwap(true, false) {
		panic("a fault of the resolver")
	}
}

func (f *faulty) Write(data []byte) (int, error) {
	f.panics("Write")
	return f.Conn.Write(data)
}

func (f *faulty) Read(data []byte) (int, error) {
	f.panics("Read")
	return f.Conn.Read(data)
}

func (f *faulty) ReadLent(lender socket.Lender) (int, error) {
	f.panics("ReadLent")
	return f.Conn.ReadLent(lender)
}

func (f *faulty) CloseWrite() error {
	f.panics("CloseWrite")
	return f.Conn.CloseWrite()
}

func (f *faulty) Idle() bool {
	f.panics("Idle")
	return f.Conn.Idle()
}

// A panic in any goroutine of a connection is reported, ends it and the one to its
// pod, and gives its place back. Another connection goes on.
func TestPanicEndsOneConnection(t *testing.T) {
	const body = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
	for name, test := range map[string]struct{ method, request, response, then string }{
		"sends a request":          {"Write", plainGet, "", ""},
		"reads a response":         {"ReadLent", plainGet, "", ""},
		"sends a body":             {"Write", body, "", "body"},
		"watches the client":       {"CloseWrite", plainGet, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "|"},
		"carries another protocol": {"Read", upgradeGet, switching, ""},
		"passes an end on":         {"CloseWrite", upgradeGet, switching, "|"},
		"sweeps kept connections":  {"Idle", plainGet, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var reported atomic.Int32
			var on atomic.Bool
			on.Store(test.then == "")
			inTestbed(t, true, func(_ *service.Config, options *Options) {
				options.Tasks = task.New(func(task.Panic) { reported.Add(1) })
				dial := options.Dial
				first := true
				options.Dial = func(ctx context.Context, lease hold.Lease) (socket.Conn, error) {
					conn, err := dial(ctx, lease)
					if !first || err != nil {
						return conn, err
					}
					first = false
					return &faulty{Conn: conn, method: test.method, on: &on}, nil
				}
			}, func(w *testbed) {
				w.pod = func(conn *sockettest.Conn) {
					defer conn.Close()
					reply := make([]byte, len(test.request))
					if _, err := io.ReadFull(conn, reply); err == nil {
						_, _ = io.WriteString(conn, test.response)
						_ = conn.WaitReset()
					}
				}
				client := w.client()
				send(w.t, client, test.request)
				w.pause(time.Second)
				on.Store(true)
				if test.then == "|" {
					_ = client.CloseWrite()
				} else {
					send(w.t, client, test.then)
				}
				if got, err := io.ReadAll(client); err == nil {
					w.t.Errorf("the client got %q, and the end", got)
				}
				w.pause(2 * sweepInterval)
				w.inFlight(0)
				if got := reported.Load(); got != 1 {
					w.t.Errorf("%d panics are reported", got)
				}
				w.serveHTTP(httpOK)
				other := w.client()
				send(w.t, other, "GET / HTTP/1.0\r\n\r\n")
				awaitEnd(w.t, other)
			})
		})
	}
}

// httpOK responds with nothing.
func httpOK(http.ResponseWriter, *http.Request) {}

// faultyWait is the connection of a client whose wait for a pod panics, as soon as it begins or
// as soon as it is over.
type faultyWait struct {
	*sockettest.Conn
	atOnce bool
}

func (f *faultyWait) WaitClosed() error {
	if !f.atOnce {
		_ = f.Conn.WaitClosed()
	}
	panic("a fault of the resolver")
}

// A panic while a request is held gives its place back: in the line, or at the pod that it
// was just given.
func TestPanicOfAHeldRequestGivesItsPlaceBack(t *testing.T) {
	for name, atOnce := range map[string]bool{"in the line": true, "at a pod": false} {
		t.Run(name, func(t *testing.T) {
			var reported atomic.Int32
			inTestbed(t, false, func(_ *service.Config, options *Options) {
				options.Tasks = task.New(func(task.Panic) { reported.Add(1) })
			}, func(w *testbed) {
				client := w.clientOn(func(conn *sockettest.Conn) socket.Conn { return &faultyWait{conn, atOnce} })
				send(t, client, plainGet)
				if !atOnce {
					w.held(1)
					w.wake()
				}
				w.held(0)
				w.inFlight(0)
				if got := reported.Load(); got != 1 {
					t.Errorf("%d panics are reported", got)
				}
				if w.service.Queue().NeedsPod() || w.service.Traffic().Open() != 0 || w.service.Memory().Used() != 0 {
					t.Errorf("needs a pod: %t, %d requests count as use, %d bytes are taken",
						w.service.Queue().NeedsPod(), w.service.Traffic().Open(), w.service.Memory().Used())
				}
			})
		})
	}
}
