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
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
)

// A client that gives up a download is not a failure of the pod, wherever that is
// noticed; a pod that breaks is.
func TestDownloadsThatEndEarlyTellWhoseDoingItWas(t *testing.T) {
	const size = 64 << 20
	for name, header := range map[string]string{
		"sized":       fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size),
		"chunked":     fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", size),
		"until close": "HTTP/1.1 200 OK\r\n\r\n",
	} {
		for how, leave := range map[string]func(*net.TCPConn){
			"close": func(conn *net.TCPConn) { conn.Close() },
			"reset": func(conn *net.TCPConn) { _ = conn.SetLinger(0); conn.Close() },
		} {
			serve := func(t *testing.T, most int, left chan struct{}) string {
				return rawPod(t, func(conn *net.TCPConn) {
					if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
						t.Error(err)
					}
					send(t, conn, header)
					// It fails when the client, and the resolver with it, has left.
					_, _ = io.Copy(conn, io.LimitReader(zeros{}, int64(most)))
					if most < size {
						<-left
						leave(conn)
					}
				})
			}
			t.Run(fmt.Sprintf("%s, client, %s", name, how), func(t *testing.T) {
				f := newFixture(t, nil)
				f.pods(serve(t, size, nil))
				client := f.client()
				send(t, client, get("/"))
				if _, err := io.CopyN(io.Discard, client, 4*spliceBytes); err != nil {
					t.Fatal(err)
				}
				leave(client)
				if record := f.record(1); record.Outcome != accesslog.ClientGone {
					t.Errorf("outcome %q (%s)", record.Outcome, record.Reason)
				}
				f.inFlight(0)
			})
			if name == "until close" && how == "close" {
				// That is how such a response ends.
				continue
			}
			t.Run(fmt.Sprintf("%s, pod, %s", name, how), func(t *testing.T) {
				f := newFixture(t, nil)
				left := make(chan struct{})
				f.pods(serve(t, 4*spliceBytes, left))
				client := f.client()
				send(t, client, get("/"))
				if _, err := io.CopyN(io.Discard, client, 2*spliceBytes); err != nil {
					t.Fatal(err)
				}
				close(left)
				if _, err := io.Copy(io.Discard, client); err == nil {
					t.Error("the response seems whole")
				}
				if record := f.record(1); record.Outcome != accesslog.Failed {
					t.Errorf("outcome %q (%s)", record.Outcome, record.Reason)
				}
			})
		}
	}
}

// zeros reads as the byte 0 for ever.
type zeros struct{}

func (zeros) Read(data []byte) (int, error) {
	clear(data)
	return len(data), nil
}

// An upload that its client gives up is not a failure of the pod either.
func TestUploadsThatEndEarlyTellThatTheClientWent(t *testing.T) {
	for name, begin := range map[string]string{
		"sized":   "Content-Length: 100000000\r\n\r\n" + strings.Repeat("x", 4*spliceBytes),
		"chunked": "Transfer-Encoding: chunked\r\n\r\n5f5e100\r\n" + strings.Repeat("x", 4*spliceBytes),
	} {
		for how, leave := range map[string]func(*net.TCPConn){
			"close": func(conn *net.TCPConn) { conn.Close() },
			"reset": func(conn *net.TCPConn) { _ = conn.SetLinger(0); conn.Close() },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				f := newFixture(t, nil)
				got := make(chan int64, 1)
				f.pods(rawPod(t, func(conn *net.TCPConn) {
					n, _ := io.CopyN(io.Discard, conn, 2*spliceBytes)
					got <- n
					// It does not respond.
					_, _ = io.Copy(io.Discard, conn)
				}))
				client := f.client()
				send(t, client, "POST / HTTP/1.1\r\nHost: a\r\n"+begin)
				<-got
				leave(client)
				if record := f.record(1); record.Outcome != accesslog.ClientGone {
					t.Errorf("outcome %q (%s)", record.Outcome, record.Reason)
				}
				f.inFlight(0)
			})
		}
	}
}
