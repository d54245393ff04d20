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
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
)

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"

// A request for another protocol may have a body. The pod gets it once,
// and what the client says after it comes after it.
func TestUpgradeWithABody(t *testing.T) {
	const fields = "POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n"
	long := strings.Repeat("0123456789abcdef", 4*bufferSize/16)
	for name, test := range map[string]struct {
		pieces []string
		// early is true when the pod switches before it has the body.
		early bool
	}{
		"in one piece":                    {pieces: []string{fields + "Content-Length: 4\r\n\r\nbody"}},
		"body later":                      {pieces: []string{fields + "Content-Length: 4\r\n\r\n", "bo", "dy"}},
		"chunks":                          {pieces: []string{fields + "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"}},
		"chunks later":                    {pieces: []string{fields + "Transfer-Encoding: chunked\r\n\r\n", "4\r\nbo", "dy\r\n0\r\n\r\n"}},
		"long":                            {pieces: []string{fields + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(long)) + long}},
		"switched before the body is all": {pieces: []string{fields + "Content-Length: 4\r\n\r\n", "bo", "dy"}, early: true},
		"switched before a long body":     {pieces: []string{fields + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(long)), long}, early: true},
	} {
		for _, awake := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, awake %t", name, awake), func(t *testing.T) {
				inTestbed(t, awake, nil, func(w *testbed) {
					request := strings.Join(test.pieces, "")
					w.pod = func(conn *sockettest.Conn) {
						rest := request
						if test.early {
							expect(t, conn, test.pieces[0])
							send(t, conn, switching+"early ")
							rest = request[len(test.pieces[0]):]
						}
						expect(t, conn, rest)
						if !test.early {
							send(t, conn, switching+"early ")
						}
						expect(t, conn, "hello")
						send(t, conn, "hello too")
						awaitEnd(t, conn)
						conn.Close()
					}
					client := w.client()
					// While it is held, not all of it may find room.
					w.running.Go(func() { send(t, client, test.pieces[0]) })
					if !awake {
						w.held(1)
						w.wake()
					}
					if test.early {
						// The pod's protocol begins although the request has not ended.
						expect(t, client, switching+"early ")
					}
					synctest.Wait()
					for _, piece := range test.pieces[1:] {
						send(t, client, piece)
					}
					send(t, client, "hello")
					if !test.early {
						expect(t, client, switching+"early ")
					}
					expect(t, client, "hello too")
					client.Close()
					if record := w.record(); record.Outcome != accesslog.Forwarded || record.BytesIn != int64(len(request)+len("hello")) {
						t.Errorf("outcome %q (%s), %d bytes in, want %d", record.Outcome, record.Reason, record.BytesIn, len(request)+len("hello"))
					}
					w.inFlight(0)
				})
			})
		}
	}
}

// An h2c upgrade request reaches only pods whose Service port has that protocol.
func TestUpgradeToHTTP2(t *testing.T) {
	const settings = "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
	for name, test := range map[string]struct{ fields, want string }{
		"as curl sends it":        {"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" + settings, ""},
		"without settings":        {"Connection: Upgrade\r\nUpgrade: h2c\r\n", ""},
		"without a Connection":    {"Upgrade: h2c\r\n" + settings, ""},
		"in odd case":             {"cOnNeCtIoN: uPgRaDe,hTtP2-sEtTiNgS\r\nuPgRaDe:H2C\r\nhttp2-settings: x\r\n", ""},
		"settings alone":          {settings + "X: 1\r\n", "X: 1\r\n"},
		"among others":            {"Connection: keep-alive, Upgrade, HTTP2-Settings\r\nUpgrade: websocket, h2c\r\n" + settings, "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"},
		"with others of the list": {"Connection: TE, Upgrade , HTTP2-Settings,X\r\nUpgrade: h2c\r\n" + settings + "TE: trailers\r\nX: 1\r\n", "Connection: TE, X\r\nTE: trailers\r\nX: 1\r\n"},
		"in several lines":        {"Connection: Upgrade\r\nUpgrade: h2c\r\nConnection: HTTP2-Settings\r\nUpgrade: h2c/1, H2C\r\n" + settings + settings, ""},
		"with a parameter":        {"Connection: Upgrade\r\nUpgrade: h2c;q=1\r\n", ""},
		"another protocol":        {"Connection: Upgrade\r\nUpgrade: websocket\r\n", "Connection: Upgrade\r\nUpgrade: websocket\r\n"},
		"a similar one":           {"Connection: Upgrade\r\nUpgrade: h2cx\r\n", "Connection: Upgrade\r\nUpgrade: h2cx\r\n"},
	} {
		for _, body := range []string{"", "body"} {
			t.Run(name+", "+body, func(t *testing.T) {
				header := func(fields string) string {
					if body != "" {
						fields += fmt.Sprintf("Content-Length: %d\r\n", len(body))
					}
					return "POST / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n" + body
				}
				for appProtocol, want := range map[string]string{"": header(test.want), "http": header(test.want), "kubernetes.io/h2c": header(test.fields)} {
					inTestbed(t, true, nil, func(w *testbed) {
						w.port.AppProtocol = appProtocol
						w.pod = func(conn *sockettest.Conn) {
							for range 2 {
								expect(t, conn, want)
								respondWith(conn, "plain")
							}
						}
						client := w.client()
						reader := bufio.NewReader(client)
						// In one piece, and with the body later.
						send(t, client, header(test.fields))
						if _, got := readResponse(t, reader, http.MethodPost); got != "plain" {
							t.Errorf("got %q", got)
						}
						whole := header(test.fields)
						send(t, client, whole[:len(whole)-len(body)])
						w.pause(1)
						send(t, client, body)
						if _, got := readResponse(t, reader, http.MethodPost); got != "plain" {
							t.Errorf("got %q", got)
						}
					})
				}
			})
		}
	}
}

// A pod without a request for it does not switch, however much it would like to.
func TestUpgradeThatWasTakenOutIsNotMade(t *testing.T) {
	inTestbed(t, true, nil, func(w *testbed) {
		w.pod = func(conn *sockettest.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
				t.Error(err)
			}
			send(t, conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}
		client := w.client()
		send(t, client, get("/", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"))
		if response, _ := readResponse(t, bufio.NewReader(client), http.MethodGet); response.StatusCode != http.StatusBadGateway {
			t.Errorf("got %d", response.StatusCode)
		}
	})
}
