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
	"os"
	"strings"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// TestResetOfAClientGivesUpItsPlaceAtAPodThatDoesNotRead resets a client while nothing can
// be written to its pod and nothing comes from it.
func TestResetOfAClientGivesUpItsPlaceAtAPodThatDoesNotRead(t *testing.T) {
	for name, test := range map[string]struct {
		framing string
		body    io.Reader
	}{
		"sized":   {"Content-Length: 1073741824", &endless{}},
		"chunked": {"Transfer-Encoding: chunked", io.MultiReader(strings.NewReader("40000000\r\n"), &endless{})},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(c *service.Config) { c.Limits.MaxConcurrencyPerPod = 1 })
			ended := make(chan struct{})
			defer close(ended)
			f.pods(rawPod(t, func(conn *net.TCPConn) {
				_ = conn.SetReadBuffer(4 << 10)
				<-ended
			}))
			client := f.client()
			send(t, client, "POST / HTTP/1.1\r\nHost: cart\r\n"+test.framing+"\r\n\r\n")
			f.inFlight(1)
			_ = client.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			if _, err := io.Copy(struct{ io.Writer }{client}, test.body); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			_ = client.SetLinger(0)
			client.Close()
			f.inFlight(0)
			if record := f.record(1); record.Outcome != accesslog.ClientGone {
				t.Errorf("the record is %+v", record)
			}
		})
	}
}

// TestEndOfAClientGivesUpItsPlaceAtAPodThatDoesNotRead ends a client whose FIN is behind
// bytes that are not read, as they cannot be written to the pod.
func TestEndOfAClientGivesUpItsPlaceAtAPodThatDoesNotRead(t *testing.T) {
	const buffered, sent = 4 << 10, 192 << 10
	for name, body := range map[string]string{
		"sized":   "Content-Length: 1073741824\r\n\r\n",
		"chunked": "Transfer-Encoding: chunked\r\n\r\n40000000\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureWith(t, func(c *service.Config) { c.Limits.MaxConcurrencyPerPod = 1 }, func(o *Options) {
				o.Dial = func(ctx context.Context, lease hold.Lease) (socket.Conn, error) {
					conn, err := lease.Dial(ctx)
					if err != nil {
						return nil, err
					}
					if err := conn.SetWriteBuffer(buffered); err != nil {
						return nil, err
					}
					return socket.NewTCP(conn)
				}
			})
			ended := make(chan struct{})
			defer close(ended)
			f.pods(rawPod(t, func(conn *net.TCPConn) {
				_ = conn.SetReadBuffer(buffered)
				<-ended
			}))
			client := f.client()
			send(t, client, "POST / HTTP/1.1\r\nHost: cart\r\n"+body+strings.Repeat("x", sent))
			f.inFlight(1)
			client.Close()
			f.inFlight(0)
			if record := f.record(1); record.Outcome != accesslog.ClientGone {
				t.Errorf("the record is %+v", record)
			}
		})
	}
}

// TestUploadToAPodThatPausesGoesOn checks that a client that is connected keeps its place,
// also when it has finished its side of the connection.
func TestUploadToAPodThatPausesGoesOn(t *testing.T) {
	const size = 1 << 20
	f := newFixture(t, nil)
	resume := make(chan struct{})
	f.pods(rawPod(t, func(conn *net.TCPConn) {
		<-resume
		request, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			t.Error(err)
			return
		}
		if n, err := io.Copy(io.Discard, request.Body); n != size || err != nil {
			t.Errorf("the pod got %d bytes, %v", n, err)
		}
		send(t, conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}))
	client := f.client()
	send(t, client, "POST / HTTP/1.1\r\nHost: cart\r\nContent-Length: 1048576\r\n\r\n"+strings.Repeat("x", size))
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	f.inFlight(1)
	<-time.After(5 * silence)
	close(resume)
	if _, body := readResponse(t, bufio.NewReader(client), http.MethodPost); body != "ok" {
		t.Errorf("the client got %q", body)
	}
}

// endless is a body without an end.
type endless struct{}

func (*endless) Read(data []byte) (int, error) {
	for i := range data {
		data[i] = 'x'
	}
	return len(data), nil
}
