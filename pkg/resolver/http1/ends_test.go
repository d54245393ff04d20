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
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
)

// ends are the ways in which a peer ends a connection.
var ends = map[string]func(*sockettest.Conn){
	"half":  func(conn *sockettest.Conn) { _ = conn.CloseWrite() },
	"close": func(conn *sockettest.Conn) { conn.Close() },
	"reset": (*sockettest.Conn).Reset,
}

// eachEnd runs a test for each way to end a connection, after each silence, held
// and awake.
func eachEnd(t *testing.T, test func(w *testbed, awake bool, silence time.Duration, how string)) {
	t.Helper()
	for how := range ends {
		eachWay(t, func(t *testing.T, awake bool, silence time.Duration) {
			t.Run(how, func(t *testing.T) {
				inTestbed(t, awake, nil, func(w *testbed) { test(w, awake, silence, how) })
			})
		})
	}
}

// standstill is where an exchange stands when a peer ends its connection.
type standstill struct{ name, request, response string }

const (
	plainGet   = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	upgradeGet = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
)

// A client that ends before its request is one leaves nothing behind.
func TestClientEndsBeforeARequest(t *testing.T) {
	for name, begin := range map[string]string{
		"before it":          "",
		"within the line":    "GET / HT",
		"within the header":  "POST / HTTP/1.1\r\nHost: a\r\nContent-",
		"after an exchange":  plainGet,
		"within the next":    plainGet + "GET / HTTP/1.1\r\nHo",
		"after an empty one": "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			eachEnd(t, func(w *testbed, awake bool, silence time.Duration, how string) {
				responds := strings.HasPrefix(begin, plainGet)
				w.serveHTTP(func(http.ResponseWriter, *http.Request) {})
				client := w.client()
				send(w.t, client, begin)
				if responds && !awake {
					w.held(1)
					w.wake()
				}
				w.pause(silence)
				ends[how](client)
				w.pause(4 * time.Second)
				w.held(0)
				w.inFlight(0)
				if how == "half" {
					if got := awaitEnd(w.t, client); strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") != responds {
						w.t.Errorf("the client got %q", got)
					}
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				if len(w.records) > 1 || (len(w.records) == 1) != responds {
					w.t.Errorf("there are %d records", len(w.records))
				}
			})
		})
	}
}

// A client that ends within a response gets the rest when it only finished its
// side; otherwise the connection to its pod is closed, and the pod is free.
func TestClientEndsWithinAResponse(t *testing.T) {
	for _, at := range []standstill{
		{"after an interim one", plainGet, "HTTP/1.1 103 Early Hints\r\n\r\n|HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"within the header", plainGet, "HTTP/1.1 200 OK\r\nConte|nt-Length: 2\r\n\r\nok"},
		{"before the body", plainGet, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n|ok"},
		{"within the body", plainGet, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no|k"},
		{"within a chunk", plainGet, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\no|k\r\n0\r\n\r\n"},
		{"within the trailers", plainGet, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-|Sum: 1\r\n\r\n"},
		{"after the switch to another protocol", upgradeGet, switching + "wel|come"},
	} {
		t.Run(at.name, func(t *testing.T) {
			eachEnd(t, func(w *testbed, awake bool, silence time.Duration, how string) {
				before, after, _ := strings.Cut(at.response, "|")
				w.pod = func(conn *sockettest.Conn) {
					defer conn.Close()
					expect(w.t, conn, at.request)
					send(w.t, conn, before)
					if how == "half" {
						// It may get a response to that.
						<-time.After(silence + 5*time.Second)
						send(w.t, conn, after)
						return
					}
					_ = conn.WaitClosed()
				}
				client := w.client()
				send(w.t, client, at.request)
				if !awake {
					w.held(1)
					w.wake()
				}
				w.pause(silence)
				ends[how](client)
				w.pause(10 * time.Second)
				want := accesslog.ClientGone
				if how == "half" {
					want = accesslog.Forwarded
				}
				if how == "half" {
					if got := awaitEnd(w.t, client); !strings.HasPrefix(got, strings.Split(before, "\r\n")[0]) || !strings.HasSuffix(got, after) {
						w.t.Errorf("the client got %q", got)
					}
				}
				w.inFlight(0)
				if record := w.record(); record.Outcome != want {
					w.t.Errorf("the outcome is %q (%s), want %q", record.Outcome, record.Reason, want)
				}
			})
		})
	}
}

// What a client gets of a response within which its pod ends is distinguished from a
// whole one, and from one that the pod would give.
func TestPodEndsAtAnyStep(t *testing.T) {
	const lost, broken, ended = "lost", "broken", "ended"
	for _, at := range []struct {
		standstill
		// half and reset are what the client sees of either end.
		half, reset string
	}{
		{standstill{"before the response", plainGet, ""}, lost, lost},
		{standstill{"after an interim one", plainGet, "HTTP/1.1 103 Early Hints\r\n\r\n"}, lost, lost},
		{standstill{"within the line", plainGet, "HTTP/1.1 2"}, lost, lost},
		{standstill{"within the header", plainGet, "HTTP/1.1 200 OK\r\nConte"}, lost, lost},
		{standstill{"before the body", plainGet, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"}, broken, broken},
		{standstill{"within the body", plainGet, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no"}, broken, broken},
		{standstill{"within a chunk", plainGet, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\no"}, broken, broken},
		{standstill{"before the last chunk", plainGet, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"}, broken, broken},
		{standstill{"within a body that the end ends", plainGet, "HTTP/1.1 200 OK\r\n\r\nok"}, ended, broken},
		{standstill{"after the switch to another protocol", upgradeGet, switching}, ended, broken},
		{standstill{"within another protocol", upgradeGet, switching + "welcome"}, ended, broken},
		{standstill{"in a body's place", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n", ""}, lost, lost},
	} {
		t.Run(at.name, func(t *testing.T) {
			eachEnd(t, func(w *testbed, awake bool, silence time.Duration, how string) {
				want := at.half
				if how == "reset" {
					want = at.reset
				}
				w.pod = func(conn *sockettest.Conn) {
					expect(w.t, conn, at.request)
					send(w.t, conn, at.response)
					<-time.After(silence)
					ends[how](conn)
				}
				client := w.client()
				send(w.t, client, at.request)
				if !awake {
					w.held(1)
					w.wake()
				}
				got, err := io.ReadAll(client)
				if saw := seen(string(got), err); saw != want {
					w.t.Errorf("the client sees %s, want %s: %q, %v", saw, want, got, err)
				}
				client.Close()
				synctest.Wait()
				w.pause(2 * time.Second)
				w.inFlight(0)
			})
		})
	}
}

// seen returns what a client that read all that came sees of the end.
func seen(got string, err error) string {
	switch {
	case strings.Contains(got, "HTTP/1.1 502 Bad Gateway\r\n") && err == nil:
		return "lost"
	case err != nil:
		return "broken"
	}
	return "ended"
}
