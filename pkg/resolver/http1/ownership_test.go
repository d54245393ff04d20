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
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// respondWith writes a response with a body.
func respondWith(conn io.Writer, body string) {
	fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// loginPod knows a user by the connection: a login counts for all requests on it.
func loginPod(t *testing.T) string {
	t.Helper()
	return rawPod(t, func(conn *net.TCPConn) {
		user := "unknown"
		reader := bufio.NewReader(conn)
		for {
			request, _, err := readRequest(reader)
			if err != nil {
				return
			}
			if login, ok := strings.CutPrefix(request.URL.Path, "/login/"); ok {
				user = login
			}
			respondWith(conn, user)
		}
	})
}

func TestPodKnowsAClientByItsConnection(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(loginPod(t))
	query := func(conn net.Conn, path string) string {
		send(t, conn, get(path))
		_, body := readResponse(t, bufio.NewReader(conn), http.MethodGet)
		return body
	}
	alice, bob := f.client(), f.client()
	if got := query(alice, "/login/alice"); got != "alice" {
		t.Fatalf("alice is %q after her login", got)
	}
	for range 3 {
		if got := query(bob, "/"); got != "unknown" {
			t.Fatalf("bob, who has not logged in, is %q", got)
		}
		if got := query(alice, "/"); got != "alice" {
			t.Fatalf("alice is %q", got)
		}
	}
	// What a client left behind belongs to no client.
	alice.Close()
	for range 3 {
		if got := query(f.client(), "/"); got != "unknown" {
			t.Fatalf("a new client is %q", got)
		}
	}
}

const smuggledRequest = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"

// requestLines reads requests whatever their bodies.
func requestLines(reader *bufio.Reader) (path string, err error) {
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			return "", err
		}
		if fields := strings.Fields(line); len(fields) == 3 && strings.HasPrefix(fields[2], "HTTP/1.") {
			path = fields[1]
		}
		if path != "" && line == "\r\n" {
			return path, nil
		}
	}
}

// requestHeaders reads requests and leaves their bodies unread.
func requestHeaders(reader *bufio.Reader) (string, error) {
	request, err := http.ReadRequest(reader)
	if err != nil {
		return "", err
	}
	return request.URL.Path, nil
}

// latePod responds to what it reads with next, those after the first not before
// something follows them when it is late: the worst moment, as by then it is
// taken to respond to that.
func latePod(t *testing.T, late bool, next func(*bufio.Reader) (string, error)) string {
	t.Helper()
	return rawPod(t, func(conn *net.TCPConn) {
		reader := bufio.NewReader(conn)
		for n := 0; ; n++ {
			path, err := next(reader)
			if err != nil {
				return
			}
			if late && n > 0 {
				if _, err := reader.Peek(1); err != nil {
					return
				}
			}
			respondWith(conn, path)
		}
	})
}

// twicePod responds to each request twice, in one piece.
func twicePod(t *testing.T, _ bool, _ func(*bufio.Reader) (string, error)) string {
	t.Helper()
	return rawPod(t, func(conn *net.TCPConn) {
		reader := bufio.NewReader(conn)
		for {
			request, _, err := readRequest(reader)
			if err != nil {
				return
			}
			var both bytes.Buffer
			respondWith(&both, request.URL.Path)
			respondWith(&both, "/smuggled")
			_, _ = conn.Write(both.Bytes())
		}
	})
}

func requestWithBody(method, path, body string) string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
}

// outOfTurnTests are pods that respond to more than what was sent.
var outOfTurnTests = map[string]struct {
	pod  func(*testing.T, bool, func(*bufio.Reader) (string, error)) string
	next func(*bufio.Reader) (string, error)
	// sent are the pieces of the request. The second one follows when the first is
	// at the pod, or when the response has come.
	sent  []string
	early bool
}{
	"body of a GET":             {latePod, requestLines, []string{requestWithBody("GET", "/1", smuggledRequest)}, false},
	"body of a GET in pieces":   {latePod, requestLines, []string{requestWithBody("GET", "/1", smuggledRequest)[:60], requestWithBody("GET", "/1", smuggledRequest)[60:]}, false},
	"body of a DELETE":          {latePod, requestLines, []string{requestWithBody("DELETE", "/1", smuggledRequest)}, false},
	"chunked body of an OPTION": {latePod, requestLines, []string{"OPTIONS /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(smuggledRequest), smuggledRequest)}, false},
	"early response": {latePod, requestHeaders, []string{
		"POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n",
		strings.Repeat(smuggledRequest, 100000/len(smuggledRequest)) + strings.Repeat("\r", 100000%len(smuggledRequest)),
	}, false},
	// Nothing that the pod has sent by the end of the request gives it away.
	"early response, then one request": {latePod, requestHeaders, []string{
		requestWithBody("POST", "/1", smuggledRequest)[:len(requestWithBody("POST", "/1", smuggledRequest))-len(smuggledRequest)], smuggledRequest,
	}, true},
	"two responses": {twicePod, nil, []string{get("/1")}, false},
}

// A pod that responds to more requests than there were is taken to respond to those of
// others, or the next.
func TestResponsesOutOfTurnReachNoOtherRequest(t *testing.T) {
	for name, test := range outOfTurnTests {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %t", name, late), func(t *testing.T) {
				f := newFixture(t, nil)
				f.pods(test.pod(t, late, test.next))
				alice, bob := f.client(), f.client()
				reader := bufio.NewReader(alice)
				for i, piece := range test.sent {
					send(t, alice, piece)
					if i > 0 || len(test.sent) == 1 {
						continue
					}
					f.inFlight(1)
					if test.early {
						if _, err := reader.Peek(1); err != nil {
							t.Fatal(err)
						}
					}
				}
				if _, body := readResponse(t, reader, "GET"); body != "/1" {
					t.Fatalf("alice got %q", body)
				}
				f.inFlight(0)
				send(t, bob, get("/2"))
				if _, body := readResponse(t, bufio.NewReader(bob), "GET"); body != "/2" {
					t.Errorf("bob got %q", body)
				}
				send(t, alice, get("/3"))
				if _, body := readResponse(t, reader, "GET"); body != "/3" {
					t.Errorf("alice got %q next", body)
				}
			})
		}
	}
}

// Each client has one connection to a pod, which ends with it.
func TestOneConnectionToThePodForEachClient(t *testing.T) {
	const clients = 50
	for name, request := range map[string]string{
		"kept":   get("/"),
		"closed": get("/", "Connection: close"),
	} {
		t.Run(name, func(t *testing.T) {
			var opened, open, most atomic.Int32
			f := newFixture(t, nil)
			served := httpPodWith(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }, func(_ net.Conn, state http.ConnState) {
				switch state {
				case http.StateNew:
					opened.Add(1)
					now := open.Add(1)
					for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
					}
				case http.StateClosed, http.StateHijacked:
					open.Add(-1)
				}
			})
			f.pods(served)
			var requesting sync.WaitGroup
			var conns []net.Conn
			for range clients {
				conn := f.client()
				conns = append(conns, conn)
				requesting.Go(func() {
					reader := bufio.NewReader(conn)
					for range 3 {
						if _, err := io.WriteString(conn, request); err != nil {
							t.Error(err)
							return
						}
						if _, body := readResponse(t, reader, "GET"); body != "ok" {
							t.Errorf("got %q", body)
						}
						if name == "closed" {
							return
						}
					}
				})
			}
			requesting.Wait()
			if n := opened.Load(); n != clients || most.Load() > clients {
				t.Errorf("%d clients opened %d connections to the pod, %d at a time", clients, n, most.Load())
			}
			for _, conn := range conns {
				conn.Close()
			}
			eventually(t, func() bool { return open.Load() == 0 })
		})
	}
}

// A client keeps to a pod for as long as that can be sent to.
func TestNextRequestGoesToTheSamePod(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.Limits.MaxConcurrencyPerPod = 2 })
	release := make(chan struct{})
	pod := func(name string) string {
		return httpPod(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				<-release
			}
			fmt.Fprint(w, name)
		})
	}
	a, b := pod("a"), pod("b")
	names := map[string]string{"a": a, "b": b}
	f.pods(a, b)
	query := func(conn net.Conn) string {
		t.Helper()
		send(t, conn, get("/"))
		_, body := readResponse(t, bufio.NewReader(conn), "GET")
		return body
	}
	client := f.client()
	first := query(client)
	for range 10 {
		if got := query(client); got != first {
			t.Fatalf("the next request went to %s, the one before to %s", got, first)
		}
	}
	// It is as busy as it may be: others take the work over.
	other := map[string]string{"a": "b", "b": "a"}[first]
	f.inFlight(0)
	f.pods(names[first])
	var slow []net.Conn
	for range 2 {
		conn := f.client()
		send(t, conn, get("/slow"))
		slow = append(slow, conn)
	}
	f.inFlight(2)
	f.pods(a, b)
	if got := query(client); got != other {
		t.Errorf("a request went to %s, which is as busy as it may be", got)
	}
	close(release)
	for _, conn := range slow {
		readResponse(t, bufio.NewReader(conn), "GET")
	}
	// It is about to end.
	before := query(client)
	left := map[string]string{"a": "b", "b": "a"}[before]
	ending := podsAt(a, b)
	for i := range ending {
		ending[i].Terminating = ending[i].Name == names[before]
	}
	f.service.SetPods(ending)
	if got := query(client); got != left {
		t.Errorf("a request went to %s, which terminates", got)
	}
	// It has left, and another has its address.
	again := podsAt(names[left])
	again[0].ID = "another"
	f.service.SetPods(again)
	if got := query(client); got != left {
		t.Errorf("got %q", got)
	}
}

// Clients of a pod that was alone share the work with the pods that come.
func TestClientsSpreadOverPodsAsTheyCome(t *testing.T) {
	const clients = 12
	f := newFixture(t, nil)
	arrived := make(chan string, clients)
	release := make(chan struct{})
	pod := func(name string) string {
		return httpPod(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				arrived <- name
				<-release
			}
			fmt.Fprint(w, name)
		})
	}
	addresses := []string{pod("a"), pod("b"), pod("c")}
	f.pods(addresses[0])
	var conns []net.Conn
	for range clients {
		conn := f.client()
		send(t, conn, get("/"))
		readResponse(t, bufio.NewReader(conn), "GET")
		conns = append(conns, conn)
	}
	f.pods(addresses...)
	work := map[string]int{}
	for _, conn := range conns {
		send(t, conn, get("/slow"))
		work[<-arrived]++
	}
	close(release)
	for name, n := range work {
		if n != clients/len(addresses) {
			t.Errorf("%s got %d of %d requests", name, n, clients)
		}
	}
	// Once they have, they keep to their pods.
	for _, conn := range conns {
		reader := bufio.NewReader(conn)
		_, first := readResponse(t, reader, "GET")
		for range 3 {
			send(t, conn, get("/"))
			if _, next := readResponse(t, reader, "GET"); next != first {
				t.Errorf("a client went from %s to %s", first, next)
			}
		}
	}
}

func TestServeModeEndsBothConnections(t *testing.T) {
	var open atomic.Int32
	f := newFixture(t, nil)
	f.pods(httpPodWith(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }, func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}))
	conn := f.client()
	reader := bufio.NewReader(conn)
	for _, closes := range []bool{false, true} {
		send(t, conn, get("/"))
		if response, _ := readResponse(t, reader, "GET"); response.Close != closes {
			t.Fatalf("close is %t, want %t", response.Close, closes)
		}
		config := *f.service.Config()
		config.Mode = v1alpha1.ModeServe
		f.service.Apply(&config)
	}
	if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
		t.Errorf("after the last response came %q, %v", rest, err)
	}
	eventually(t, func() bool { return open.Load() == 0 })
}
