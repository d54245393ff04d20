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
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// A pod that closes an idle connection does not cost the next request anything.
func TestIdleConnectionClosedByThePod(t *testing.T) {
	f := newFixture(t, nil)
	closed := make(chan struct{})
	var conns atomic.Int32
	f.pods(rawPod(t, func(conn *net.TCPConn) {
		n := conns.Add(1)
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
			return
		}
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d", n)
		conn.Close()
		if n == 1 {
			close(closed)
		}
	}))
	conn := f.client()
	reader := bufio.NewReader(conn)
	for want := 1; want <= 2; want++ {
		send(t, conn, get("/"))
		if response, body := readResponse(t, reader, "GET"); body != fmt.Sprint(want) {
			t.Fatalf("got %d %q, want %d", response.StatusCode, body, want)
		}
		<-closed
	}
}

// seemsIdle is a connection of which it is not seen that the pod has closed it: it
// did so just then.
type seemsIdle struct{ *socket.TCP }

func (seemsIdle) Idle() bool { return true }

func dialSeemingIdle(ctx context.Context, lease hold.Lease) (socket.Conn, error) {
	conn, err := dialTCP(ctx, lease)
	if err != nil {
		return nil, err
	}
	return seemsIdle{conn.(*socket.TCP)}, nil
}

// closingPod closes its first connection after a response, when something more was
// received or at once, and responds to what comes on others.
type closingPod struct {
	received bool
	conns    atomic.Int32
	// closed is closed with the first connection.
	closed chan struct{}
}

func (p *closingPod) start(t *testing.T) string {
	t.Helper()
	return rawPod(t, func(conn *net.TCPConn) {
		reader := bufio.NewReader(conn)
		if p.conns.Add(1) == 1 {
			if _, _, err := readRequest(reader); err != nil {
				t.Errorf("the pod: %v", err)
			}
			respondWith(conn, "1")
			if p.received {
				if _, err := reader.Peek(1); err != nil {
					t.Errorf("the pod: %v", err)
				}
				return
			}
			conn.Close()
			close(p.closed)
			return
		}
		request, body, err := readRequest(reader)
		if err != nil {
			t.Errorf("the pod: %v", err)
			return
		}
		respondWith(conn, fmt.Sprint(request.URL.Path, len(body)))
	})
}

// A request that a pod closed the connection under is sent again, whatever its
// body, when the pod has received nothing of it, and only then.
func TestRequestOnAConnectionThatThePodJustClosed(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 1<<16)
	for name, pieces := range map[string][]string{
		"no body":        {get("/2")},
		"body":           {"POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"},
		"body later":     {"POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n", "bo", "dy"},
		"chunks later":   {"POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "4\r\nbo", "dy\r\n0\r\n\r\n"},
		"long body":      {fmt.Sprintf("POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", len(long)), long},
		"in one":         {fmt.Sprintf("POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(long), long)},
		"one long chunk": {fmt.Sprintf("POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(long), long)},
	} {
		for _, received := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, received %t", name, received), func(t *testing.T) {
				pod := &closingPod{received: received, closed: make(chan struct{})}
				f := newFixtureWith(t, nil, func(options *Options) { options.Dial = dialSeemingIdle })
				f.pods(pod.start(t))
				conn := f.client()
				reader := bufio.NewReader(conn)
				send(t, conn, get("/1"))
				readResponse(t, reader, "GET")
				if !received {
					<-pod.closed
				}
				want := 0
				for i, piece := range pieces {
					if _, err := io.WriteString(conn, piece); err != nil && !received {
						t.Fatal(err)
					}
					if i == 0 && len(pieces) > 1 && !received {
						f.inFlight(1)
					}
				}
				switch {
				case strings.Contains(name, "long"), name == "in one":
					want = len(long)
				case name != "no body":
					want = len("body")
				}
				response, err := http.ReadResponse(reader, nil)
				if received {
					// What is left of the request may have reset the connection.
					if err == nil && response.StatusCode != http.StatusBadGateway {
						t.Errorf("got %d", response.StatusCode)
					}
					f.inFlight(0)
					if n := pod.conns.Load(); n != 1 {
						t.Errorf("a request that the pod had received was sent again")
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if body, err := io.ReadAll(response.Body); err != nil || string(body) != fmt.Sprint("/2", want) {
					t.Errorf("got %d %q, %v", response.StatusCode, body, err)
				}
			})
		}
	}
}

// What certainly never reached a pod is not taken for received, and what did
// is, although neither got a response.
func TestNeverReceived(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dial := func() (*podConn, *net.TCPConn) {
		client, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		tcp, err := socket.NewTCP(client.(*net.TCPConn))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tcp.Close(); server.Close() })
		return &podConn{tcp: tcp}, server.(*net.TCPConn)
	}
	request := []byte(get("/"))
	exchange := func(p *podConn) error {
		_, _ = p.Write(request)
		_, err := p.tcp.Read(make([]byte, 1))
		return err
	}
	t.Run("closed before", func(t *testing.T) {
		p, pod := dial()
		// An exchange that went well comes first.
		go func() {
			_, _ = io.ReadFull(pod, make([]byte, len(request)))
			_, _ = pod.Write([]byte("x"))
			pod.Close()
		}()
		if err := exchange(p); err != nil {
			t.Fatal(err)
		}
		if err := p.tcp.WaitClosed(); err != nil {
			t.Fatal(err)
		}
		before := p.written
		if err := exchange(p); !p.neverReceived(before, err) {
			t.Errorf("a request to a closed connection counts as received (%v)", err)
		}
	})
	t.Run("read without a response", func(t *testing.T) {
		p, pod := dial()
		go func() {
			_, _ = io.ReadFull(pod, make([]byte, len(request)))
			pod.Close()
		}()
		if err := exchange(p); p.neverReceived(0, err) {
			t.Errorf("a request that was read counts as never received (%v)", err)
		}
	})
	t.Run("reset", func(t *testing.T) {
		p, pod := dial()
		if err := pod.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = pod.Read(make([]byte, 1))
			pod.Close()
		}()
		if err := exchange(p); p.neverReceived(0, err) {
			t.Errorf("a request before a reset counts as never received (%v)", err)
		}
	})
}
