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
	"sync/atomic"
	"testing"

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

// What certainly never reached a pod is not taken for received, and what did
// is, although neither was answered.
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
		tcp := client.(*net.TCPConn)
		raw, err := tcp.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tcp.Close(); server.Close() })
		return &podConn{tcp: tcp, raw: raw}, server.(*net.TCPConn)
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
		if err := socket.WaitClosed(p.tcp); err != nil {
			t.Fatal(err)
		}
		before := p.written
		if err := exchange(p); !p.neverReceived(before, err) {
			t.Errorf("a request to a closed connection counts as received (%v)", err)
		}
	})
	t.Run("read and not answered", func(t *testing.T) {
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
