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
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

const okResponse = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// passThroughTests are what is sent in either direction, and what arrives of it.
var passThroughTests = map[string]struct{ sent, toPod, fromPod, received string }{
	"plain": {
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", okResponse, okResponse},
	"odd target, case, order and spacing": {
		"PROPFIND /%2e/../a%00?x={|}&\xff HTTP/1.1\r\nhOsT:  a \r\nX-B:\r\nX-b: \t1\r\n\r\n",
		"PROPFIND /%2e/../a%00?x={|}&\xff HTTP/1.1\r\nhOsT:  a \r\nX-B:\r\nX-b: \t1\r\n\r\n",
		"HTTP/1.1 299\r\ncOntent-length: 2\r\n\r\nok", "HTTP/1.1 299\r\ncOntent-length: 2\r\n\r\nok"},
	"absolute form": {
		"GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n", "GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n", okResponse, okResponse},
	"hop by hop": {
		"GET / HTTP/1.1\r\nConnection: keep-alive\r\nHost: a\r\nKeep-Alive: timeout=5\r\nProxy-Connection: close\r\nX: 1\r\n\r\n",
		"GET / HTTP/1.1\r\nConnection: keep-alive\r\nHost: a\r\nKeep-Alive: timeout=5\r\nProxy-Connection: close\r\nX: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", okResponse},
	"client closes": {
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
		okResponse, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"},
	"HTTP/1.0": {
		"GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.0\r\n\r\n",
		"HTTP/1.0 200 OK\r\n\r\nuntil the end", "HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nuntil the end"},
	"HTTP/1.0 keep-alive": {
		"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
		okResponse, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok"},
	"body": {
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", okResponse, okResponse},
	"chunks, extensions and trailers": {
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=\"b\"\r\nhello\r\n00\r\nX-Sum: 1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=\"b\"\r\nhello\r\n00\r\nX-Sum: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;z\r\nok\r\n0\r\nX-T: 2\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;z\r\nok\r\n0\r\nX-T: 2\r\n\r\n"},
	"interim responses": {
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + okResponse, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + okResponse},
	"no interim responses to HTTP/1.0": {
		"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + okResponse, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok"},
	"HEAD": {
		"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"},
	"no content": {
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n"},
	"not modified": {
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n"},
	"an empty line before the request": {
		"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", okResponse, okResponse},
	"what Connection names stays": {
		"GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\r\n", okResponse, okResponse},
}

// What is forwarded is what was received, but for what concerns one connection.
func TestBytesPassThrough(t *testing.T) {
	for name, test := range passThroughTests {
		t.Run(name, func(t *testing.T) {
			for _, pieces := range []bool{false, true} {
				f := newFixture(t, nil)
				f.pods(scriptPod(t, test.toPod, test.fromPod))
				conn := f.client()
				if pieces {
					for i := range len(test.sent) {
						send(t, conn, test.sent[i:i+1])
					}
				} else {
					send(t, conn, test.sent)
				}
				expect(t, conn, test.received)
				if record := f.record(1); record.Outcome != accesslog.Forwarded {
					t.Errorf("outcome %q (%s)", record.Outcome, record.Reason)
				}
				f.inFlight(0)
			}
		})
	}
}

func TestKeepAliveReusesBothConnections(t *testing.T) {
	var podConns atomic.Int32
	f := newFixture(t, nil)
	f.pods(rawPod(t, func(conn *net.TCPConn) {
		podConns.Add(1)
		reader := bufio.NewReader(conn)
		for {
			request, err := http.ReadRequest(reader)
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(request.URL.Path), request.URL.Path)
		}
	}))
	conn := f.client()
	reader := bufio.NewReader(conn)
	for i := range 20 {
		path := fmt.Sprintf("/%d", i)
		send(t, conn, get(path))
		if _, body := readResponse(t, reader, "GET"); body != path {
			t.Fatalf("got the response %q to %q", body, path)
		}
	}
	if n := podConns.Load(); n != 1 {
		t.Errorf("used %d connections to the pod, want 1", n)
	}
}

func TestPipelining(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", r.URL.Path, body)
	}))
	conn := f.client()
	send(t, conn, get("/1")+
		"POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"+
		"POST /3 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\n\r\n"+
		get("/4"))
	reader := bufio.NewReader(conn)
	for _, want := range []string{"/1 ", "/2 abc", "/3 xyz", "/4 "} {
		if _, body := readResponse(t, reader, "GET"); body != want {
			t.Fatalf("got %q, want %q", body, want)
		}
	}
}

func TestLargeBodiesBothWays(t *testing.T) {
	const size = 8 << 20
	for _, chunked := range []bool{false, true} {
		t.Run(fmt.Sprintf("chunked=%t", chunked), func(t *testing.T) {
			f := newFixture(t, nil)
			f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
				if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
					t.Error(err)
				}
				if !chunked {
					w.Header().Set("Content-Length", fmt.Sprint(size))
				}
				if _, err := io.Copy(w, r.Body); err != nil {
					t.Errorf("the pod: %v", err)
				}
			}))
			body := strings.Repeat("0123456789abcdef", size/16)
			var reader io.Reader = strings.NewReader(body)
			if chunked {
				reader = io.MultiReader(reader)
			}
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			response, err := client.Post("http://"+f.address, "", reader)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			got, err := io.ReadAll(response.Body)
			if err != nil || string(got) != body {
				t.Fatalf("echo of %d bytes differs (%d bytes, %v)", size, len(got), err)
			}
		})
	}
}

func TestExpectContinue(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s", body)
	}))
	conn := f.client()
	reader := bufio.NewReader(conn)
	for range 2 {
		send(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
		line, err := reader.ReadString('\n')
		if err != nil || line != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("got %q, %v", line, err)
		}
		if line, err = reader.ReadString('\n'); err != nil || line != "\r\n" {
			t.Fatalf("got %q, %v", line, err)
		}
		send(t, conn, "hello")
		if _, body := readResponse(t, reader, "POST"); body != "hello" {
			t.Fatalf("got %q", body)
		}
	}
}

func TestExpectContinueRejected(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(scriptPod(t, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n"))
	conn := f.client()
	send(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
	expect(t, conn, "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

func TestUpgrade(t *testing.T) {
	const request = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n"
	const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	f := newFixture(t, nil)
	f.pods(rawPod(t, func(conn *net.TCPConn) {
		expect(t, conn, request)
		send(t, conn, switching+"hello")
		// Half a close reaches the pod, and what it still sends the client.
		got, err := io.ReadAll(conn)
		if err != nil {
			t.Errorf("the pod: %v", err)
		}
		send(t, conn, "you said "+string(got))
	}))
	conn := f.client()
	send(t, conn, request+"early ")
	expect(t, conn, switching+"hello")
	send(t, conn, "late")
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, conn); got != "you said early late" {
		t.Fatalf("got %q", got)
	}
	f.inFlight(0)
}

func TestServerSentEventsArriveOneByOne(t *testing.T) {
	next := make(chan struct{})
	f := newFixture(t, nil)
	f.pods(httpPod(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
	}))
	conn := f.client()
	send(t, conn, get("/"))
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		want := fmt.Sprintf("data: %d\n\n", i)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != want {
			t.Fatalf("got %q, %v", got, err)
		}
		next <- struct{}{}
	}
}

func TestServeModeRequestsClientsToMove(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*service.Config)
		closes bool
	}{
		"proxy mode":               {func(*service.Config) {}, false},
		"serve mode":               {func(c *service.Config) { c.Mode = v1alpha1.ModeServe }, true},
		"serve mode, always proxy": {func(c *service.Config) { c.Mode, c.Always = v1alpha1.ModeServe, true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.change)
			f.pods(httpPod(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
			conn := f.client()
			send(t, conn, get("/"))
			response, _ := readResponse(t, bufio.NewReader(conn), "GET")
			if response.StatusCode != http.StatusOK || response.Close != test.closes {
				t.Fatalf("got status %d, close %t", response.StatusCode, response.Close)
			}
			if test.closes {
				if rest := readAll(t, conn); rest != "" {
					t.Fatalf("got %q after the response", rest)
				}
			}
		})
	}
}

func TestEarlyResponseToUnfinishedBody(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(rawPod(t, func(conn *net.TCPConn) {
		expect(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
		send(t, conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	}))
	conn := f.client()
	send(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
	if got := readAll(t, conn); !strings.HasPrefix(got, "HTTP/1.1 413 Too Large\r\n") {
		t.Fatalf("got %q", got)
	}
	f.inFlight(0)
}

func TestClientGoneFreesThePod(t *testing.T) {
	podSaw := make(chan error, 1)
	f := newFixture(t, nil)
	f.pods(rawPod(t, func(conn *net.TCPConn) {
		expect(t, conn, get("/"))
		// There is no response: only the end of the connection can be read.
		_, err := conn.Read(make([]byte, 1))
		podSaw <- err
	}))
	conn := f.client()
	send(t, conn, get("/"))
	f.inFlight(1)
	conn.Close()
	if err := <-podSaw; err == nil {
		t.Fatal("the pod's connection stays open")
	}
	if record := f.record(1); record.Outcome != accesslog.ClientGone {
		t.Fatalf("outcome %q (%s)", record.Outcome, record.Reason)
	}
	f.inFlight(0)
}
