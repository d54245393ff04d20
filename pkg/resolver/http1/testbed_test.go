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
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/fallback"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
)

// testbed is a server with one service whose connections are in memory, in a
// bubble of testing/synctest: any silence takes no time.
type testbed struct {
	t       *testing.T
	service *service.Service
	server  *Server
	port    service.Port
	// pod serves each connection to the pod, which it owns.
	pod func(conn *sockettest.Conn)

	running sync.WaitGroup

	mu      sync.Mutex
	records []accesslog.Record
	// ends are the ends of all connections that tests have, closed at the end.
	ends []*sockettest.Conn
}

// podAddress is where the pod of a testbed is said to be.
const podAddress = "192.0.2.80:8080"

// inTestbed runs a test in a bubble, with a pod that is there when awake is true.
func inTestbed(t *testing.T, awake bool, change func(*service.Config, *Options), test func(w *testbed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &testbed{t: t, port: service.Port{Number: 80}}
		config := &service.Config{
			Mode: v1alpha1.ModeProxy, HoldTimeout: 10 * time.Minute, Limits: hold.Limits{MaxPending: 100},
		}
		options := Options{
			Fallback: &fallback.Policy{}, IdleTimeout: 10 * time.Minute, HeaderTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
			Dial: w.dial,
		}
		if change != nil {
			change(config, &options)
		}
		w.service = service.New(service.Options{
			Namespace: "shop", Name: "cart", PublicService: "cart",
			Config: config, Budget: memory.NewBudget(memory.Limits{Process: 1 << 30}), Logger: klog.Background(),
			Finish: func(record *accesslog.Record) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.records = append(w.records, *record)
			},
		})
		w.server = New(options)
		ctx, cancel := context.WithCancel(t.Context())
		w.running.Go(func() { w.server.Run(ctx) })
		// Also when the test fails.
		defer func() {
			w.service.Close()
			cancel()
			w.mu.Lock()
			ends := w.ends
			w.mu.Unlock()
			for _, end := range ends {
				end.Close()
			}
			w.running.Wait()
		}()
		if awake {
			w.wake()
		}
		test(w)
	})
}

// wake makes the pod ready.
func (w *testbed) wake() { w.service.SetPods(podsAt(podAddress)) }

func (w *testbed) keep(conn *sockettest.Conn) *sockettest.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends = append(w.ends, conn)
	return conn
}

// dial is Options.Dial.
func (w *testbed) dial(context.Context, hold.Lease) (socket.Conn, error) {
	if w.pod == nil {
		return nil, errors.New("connection refused")
	}
	here, there := sockettest.Pipe()
	w.keep(there)
	w.running.Go(func() { w.pod(there) })
	return here, nil
}

// client opens a connection to the server.
func (w *testbed) client() *sockettest.Conn {
	return w.clientOn(func(conn *sockettest.Conn) socket.Conn { return conn })
}

// clientOn is client with a server that has its end of the connection from a function.
func (w *testbed) clientOn(served func(*sockettest.Conn) socket.Conn) *sockettest.Conn {
	here, there := sockettest.Pipe()
	w.keep(here)
	ended := make(chan struct{})
	w.running.Go(func() {
		w.server.serve(w.t.Context(), served(there), nil, w.service.Memory(), destination.Fixed(w.service, w.port), func() { close(ended) })
		<-ended
	})
	return here
}

// pause lets time pass, and everything happen that is to happen by then.
func (w *testbed) pause(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// record returns the only record.
func (w *testbed) record() accesslog.Record {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.records) != 1 {
		w.t.Fatalf("there are %d records, want 1", len(w.records))
	}
	return w.records[0]
}

// held fails the test unless n requests are held.
func (w *testbed) held(n int) {
	w.t.Helper()
	synctest.Wait()
	if got := w.service.Queue().Held(); got != n {
		w.t.Fatalf("%d requests are held, want %d", got, n)
	}
}

// inFlight fails the test unless n requests are with the pod.
func (w *testbed) inFlight(n int) {
	w.t.Helper()
	synctest.Wait()
	if got := w.service.Queue().InFlight(); got != n {
		w.t.Fatalf("%d requests are with the pod, want %d", got, n)
	}
}

// serveHTTP makes the pod serve a handler with net/http.
func (w *testbed) serveHTTP(handler http.HandlerFunc) {
	w.pod = func(conn *sockettest.Conn) { serveConn(conn, handler) }
}

// serveConn serves one connection with net/http.
func serveConn(conn net.Conn, handler http.Handler) {
	ended := make(chan struct{})
	listener := &oneConn{conn: conn, ended: ended}
	server := &http.Server{Handler: handler, ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			close(ended)
		}
	}}
	_ = server.Serve(listener)
}

// oneConn is a listener that accepts one connection, and fails when that has ended.
type oneConn struct {
	conn  net.Conn
	ended <-chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	if conn := l.conn; conn != nil {
		l.conn = nil
		return conn, nil
	}
	<-l.ended
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// awaitEnd reads until the end of a connection and returns what came.
func awaitEnd(tb testing.TB, conn net.Conn) string {
	tb.Helper()
	got, err := io.ReadAll(conn)
	if err != nil {
		tb.Errorf("reading until the end: %v (after %q)", err, got)
	}
	return string(got)
}

// readRequest reads a request and its body.
func readRequest(reader *bufio.Reader) (*http.Request, string, error) {
	request, err := http.ReadRequest(reader)
	if err != nil {
		return nil, "", err
	}
	body, err := io.ReadAll(request.Body)
	return request, string(body), err
}
