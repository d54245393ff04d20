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

package adminserver

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves a handler, and returns its address.
func serve(t *testing.T, limits limits, timeouts timeouts, handler http.Handler) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(listener, nil, handler, klog.Background(), limits, timeouts)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return listener.Addr().String()
}

func ok(http.ResponseWriter, *http.Request) {}

// probe gets its response, on a connection of its own from a source.
func probe(t *testing.T, source, address string) {
	t.Helper()
	conn := resolvertest.DialFrom(t, source, address)
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("a probe from %s: %v", source, err)
	}
	response.Body.Close()
}

// TestOneSourceTakesNoPlaceOfAnother has silent connections of one source, of which
// only the newest stay, and those of another.
func TestOneSourceTakesNoPlaceOfAnother(t *testing.T) {
	address := serve(t, limits{total: 8, perSource: 4}, defaultTimeouts(), http.HandlerFunc(ok))
	kept := resolvertest.DialFrom(t, "127.0.0.1", address)
	var silent []net.Conn
	for range 20 {
		silent = append(silent, resolvertest.DialFrom(t, "127.0.0.2", address))
	}
	for _, conn := range silent[:16] {
		resolvertest.AwaitEnd(t, conn)
	}
	probe(t, "127.0.0.1", address)
	fmt.Fprint(kept, "GET / HTTP/1.1\r\nHost: kept\r\n\r\n")
	if response, err := http.ReadResponse(bufio.NewReader(kept), nil); err != nil {
		t.Errorf("the connection of another source: %v", err)
	} else {
		response.Body.Close()
	}
}

// TestManySourcesTakeNotAllPlaces has more sources than there are places, which open
// one connection each, and several sources that each open as many as one may have.
func TestManySourcesTakeNotAllPlaces(t *testing.T) {
	for name, each := range map[string]int{"one each": 1, "as many as they may": 4} {
		t.Run(name, func(t *testing.T) {
			address := serve(t, limits{total: 8, perSource: 4}, defaultTimeouts(), http.HandlerFunc(ok))
			var first net.Conn
			for i := range 20 {
				for range each {
					conn := resolvertest.DialFrom(t, fmt.Sprintf("127.0.1.%d", i+1), address)
					if first == nil {
						first = conn
					}
				}
			}
			resolvertest.AwaitEnd(t, first)
			probe(t, "127.0.0.1", address)
		})
	}
}

// TestSurplusIsTakenFromTheSourceWithMost opens the last connections from a source
// that has few.
func TestSurplusIsTakenFromTheSourceWithMost(t *testing.T) {
	address := serve(t, limits{total: 4, perSource: 4}, defaultTimeouts(), http.HandlerFunc(ok))
	older := resolvertest.DialFrom(t, "127.0.0.1", address)
	var many []net.Conn
	for range 3 {
		many = append(many, resolvertest.DialFrom(t, "127.0.0.2", address))
	}
	newer := resolvertest.DialFrom(t, "127.0.0.3", address)
	resolvertest.AwaitEnd(t, many[0])
	for _, conn := range []net.Conn{older, newer, many[2]} {
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: kept\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
}

// TestClosedConnectionsGiveTheirPlaceBack opens one connection after the other.
func TestClosedConnectionsGiveTheirPlaceBack(t *testing.T) {
	address := serve(t, limits{total: 2, perSource: 2}, defaultTimeouts(), http.HandlerFunc(ok))
	for range 20 {
		probe(t, "127.0.0.1", address)
	}
}

// TestNoPartOfARequestTakesLongerThanItMay has clients that are silent, send half of
// the headers, half of a body, do not read the response, and are idle after one.
func TestNoPartOfARequestTakesLongerThanItMay(t *testing.T) {
	const short = 50 * time.Millisecond
	large := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chunk := make([]byte, 1<<20)
		for r.URL.Path == "/large" {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
		if r.URL.Path == "/body" {
			_, _ = r.Body.Read(make([]byte, 100))
			_, _ = r.Body.Read(make([]byte, 100))
		}
	})
	for name, test := range map[string]struct {
		timeouts timeouts
		sends    string
	}{
		"silent":         {timeouts{short, time.Minute, time.Minute, time.Minute}, ""},
		"half a header":  {timeouts{short, time.Minute, time.Minute, time.Minute}, "GET / HTTP/1.1\r\nHost: "},
		"half a body":    {timeouts{time.Minute, short, time.Minute, time.Minute}, "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf"},
		"does not read":  {timeouts{time.Minute, time.Minute, short, time.Minute}, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n"},
		"idle after one": {timeouts{time.Minute, time.Minute, time.Minute, short}, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan struct{})
			listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := newServer(listener, nil, large, klog.Background(), limits{total: 8, perSource: 8}, test.timeouts)
			server.http.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateClosed {
					close(gone)
				}
			}
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { _ = server.Run(ctx) })
			defer running.Wait()
			defer cancel()
			conn := resolvertest.DialFrom(t, "127.0.0.1", listener.Addr().String())
			fmt.Fprint(conn, test.sends)
			select {
			case <-gone:
			case <-time.After(20 * time.Second):
				t.Error("the connection is still open")
			}
		})
	}
}

func TestLongestPortCheckIsNotTooLarge(t *testing.T) {
	address := serve(t, limits{total: 8, perSource: 8}, defaultTimeouts(), http.HandlerFunc(ok))
	response, err := http.Get("http://" + address + "/?" + strings.Repeat("port=65535%3A65535&", 1024))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if response.StatusCode != http.StatusOK {
		t.Errorf("the longest port check gets %s", response.Status)
	}
}
