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
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

func TestHeldUntilAPodIsReady(t *testing.T) {
	f := newFixture(t, nil)
	const clients = 50
	var conns []net.Conn
	for i := range clients {
		conn := f.client()
		send(t, conn, fmt.Sprintf("POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", i))
		conns = append(conns, conn)
	}
	f.held(clients)
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", r.URL.Path, body)
	}))
	for i, conn := range conns {
		response, body := readResponse(t, bufio.NewReader(conn), "POST")
		if want := fmt.Sprintf("/%d body", i); response.StatusCode != http.StatusOK || body != want {
			t.Fatalf("got %d %q, want %q", response.StatusCode, body, want)
		}
	}
	f.held(0)
	record := f.record(clients)
	if !record.Held || record.EndpointReady.IsZero() || record.Released.Before(record.EndpointReady) || record.Responded.Before(record.Released) {
		t.Errorf("the record has no times of the cold start: %+v", record)
	}
	if used := f.budget.Used(); used != clients*podConnBytes {
		t.Errorf("%d bytes are counted for %d connections to a pod", used, clients)
	}
	for _, conn := range conns {
		conn.Close()
	}
	eventually(t, func() bool { return f.budget.Used() == 0 })
}

func TestClientGoneFreesItsPlace(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.Limits.MaxPending = 1 })
	for name, leave := range map[string]func(*net.TCPConn){
		"close": func(conn *net.TCPConn) { conn.Close() },
		"reset": func(conn *net.TCPConn) { _ = conn.SetLinger(0); conn.Close() },
		"close behind a body that nothing reads": func(conn *net.TCPConn) {
			send(t, conn, "the beginning of the body")
			conn.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn := f.client()
			send(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
			f.held(1)
			leave(conn)
			f.held(0)
		})
	}
	if record := f.record(3); record.Outcome != accesslog.ClientGone {
		t.Errorf("outcome %q", record.Outcome)
	}
}

func TestLimitsNameThemselves(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*service.Config)
		before func(*fixture)
		status int
		reason localreply.Reason
	}{
		"maxPending": {
			change: func(c *service.Config) { c.Limits.MaxPending = 1 },
			before: func(f *fixture) {
				send(f.t, f.client(), get("/first"))
				f.held(1)
			},
			status: 503, reason: localreply.ReasonTooManyPending,
		},
		"hold timeout": {
			change: func(c *service.Config) { c.HoldTimeout = time.Millisecond },
			before: func(*fixture) {},
			status: 504, reason: localreply.ReasonHoldTimeout,
		},
		"service deleted": {
			change: func(*service.Config) {},
			before: func(f *fixture) { f.service.Close() },
			status: 503, reason: localreply.ReasonServiceGone,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.change)
			test.before(f)
			conn := f.client()
			reader := bufio.NewReader(conn)
			// The connection survives a rejection, and may send another.
			for range 2 {
				send(t, conn, get("/"))
				response, body := readResponse(t, reader, "GET")
				var status metav1.Status
				if err := json.Unmarshal([]byte(body), &status); err != nil {
					t.Fatalf("the body %q: %v", body, err)
				}
				if response.StatusCode != test.status || status.Reason != metav1.StatusReason(test.reason) ||
					response.Header.Get("Retry-After") == "" || response.Header.Get(localreply.HeaderReason) != string(test.reason) {
					t.Fatalf("got %d %q %v", response.StatusCode, body, response.Header)
				}
			}
		})
	}
}

func TestRefusedConnectionGoesBackToWaiting(t *testing.T) {
	f := newFixture(t, nil)
	// No process listens there any more.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := listener.Addr().String()
	listener.Close()
	f.pods(dead)
	conn := f.client()
	send(t, conn, get("/"))
	f.held(1)
	f.pods(dead, httpPod(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	if _, body := readResponse(t, bufio.NewReader(conn), "GET"); body != "ok" {
		t.Fatalf("got %q", body)
	}
}

func TestConcurrencyLimitHoldsTheRest(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.Limits.MaxConcurrencyPerPod = 2 })
	proceed := make(chan struct{})
	pod := func() string {
		return httpPod(t, func(w http.ResponseWriter, _ *http.Request) {
			<-proceed
			fmt.Fprint(w, "ok")
		})
	}
	f.pods(pod(), pod())
	var conns []net.Conn
	for range 7 {
		conn := f.client()
		send(t, conn, get("/"))
		conns = append(conns, conn)
	}
	f.inFlight(4)
	f.held(3)
	close(proceed)
	for _, conn := range conns {
		if response, _ := readResponse(t, bufio.NewReader(conn), "GET"); response.StatusCode != http.StatusOK {
			t.Fatalf("got %d", response.StatusCode)
		}
	}
}

func TestDrainFinishesWhatIsHeld(t *testing.T) {
	f := newFixture(t, nil)
	conn := f.client()
	send(t, conn, get("/"))
	f.held(1)
	f.server.Drain()
	f.pods(httpPod(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	response, body := readResponse(t, bufio.NewReader(conn), "GET")
	if body != "ok" || !response.Close {
		t.Fatalf("got %q, close %t", body, response.Close)
	}
}

// shortTimeouts makes a server wait for a client for a short time only.
func shortTimeouts(options *Options) {
	options.HeaderTimeout = 50 * time.Millisecond
	options.IdleTimeout = 50 * time.Millisecond
}

func TestSlowHeadersAndIdleConnectionsEnd(t *testing.T) {
	for name, sent := range map[string]string{
		"no request":                 "",
		"half a header":              "GET / HTTP/1.1\r\nHo",
		"a header in a second piece": "HEAD / HTTP/1.0\r\n\r\nGET / HT",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureWith(t, nil, shortTimeouts)
			f.pods(httpPod(t, func(http.ResponseWriter, *http.Request) {}))
			conn := f.client()
			send(t, conn, sent)
			if _, err := io.ReadAll(conn); err != nil {
				t.Fatalf("the connection does not end: %v", err)
			}
		})
	}
}

// A body may take as long as it likes, and so may its response.
func TestTimeoutsDoNotEndSlowBodies(t *testing.T) {
	f := newFixtureWith(t, nil, shortTimeouts)
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	conn := f.client()
	send(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
	for _, piece := range []string{"a", "b", "c"} {
		// The time that passes is what is tested.
		<-time.After(100 * time.Millisecond)
		send(t, conn, piece)
	}
	if _, body := readResponse(t, bufio.NewReader(conn), "POST"); body != "abc" {
		t.Fatalf("got %q", body)
	}
}
