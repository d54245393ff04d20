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
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
)

// silences are how long a peer says nothing: within all intervals of the resolver,
// beyond most, and beyond all.
var silences = []time.Duration{100 * time.Millisecond, 3 * time.Second, 40 * time.Second}

// eachWay runs a test for each silence, held and awake.
func eachWay(t *testing.T, test func(t *testing.T, awake bool, silence time.Duration)) {
	t.Helper()
	for _, silence := range silences {
		for _, awake := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, awake %t", silence, awake), func(t *testing.T) { test(t, awake, silence) })
		}
	}
}

// An exchange that stands still at any of its steps goes on as if it had not.
func TestSilenceAtAnyStepOfAnExchange(t *testing.T) {
	steps := []struct{ name, request, response string }{
		// A | is where it stands still.
		{"before the request", "|GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"within the header", "GET / HTTP/1.1\r\nHo|st: a\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"before the body", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n|body", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"within the body", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo|dy", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"within a chunk", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbo|dy\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"within a chunk size", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1|0\r\n0123456789abcdef\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"within the trailers", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-|Sum: 1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"before the response", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "|HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"before an interim response", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "|HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"after an interim response", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 103 Early Hints\r\n\r\n|HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"within the header of the response", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\nConte|nt-Length: 2\r\n\r\nok"},
		{"within the body of the response", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no|k"},
		{"within a chunk of the response", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\no|k\r\n0\r\n\r\n"},
		{"within both bodies", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo|dy", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no|k"},
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, awake bool, silence time.Duration) {
				// The hold timeout and the header timeout are longer.
				inTestbed(t, awake, nil, func(w *testbed) {
					wantRequest := strings.ReplaceAll(step.request, "|", "")
					w.pod = func(conn *sockettest.Conn) {
						for range 2 {
							expect(t, conn, wantRequest)
							sendInPieces(t, conn, step.response, silence)
						}
					}
					client := w.client()
					for i := range 2 {
						sendInPieces(t, client, step.request, silence)
						if !awake && i == 0 {
							w.held(1)
							w.pause(silence)
							w.wake()
						}
						expect(t, client, strings.ReplaceAll(step.response, "|", ""))
					}
					synctest.Wait()
					for _, record := range w.records {
						if record.Outcome != accesslog.Forwarded {
							t.Errorf("outcome %q (%s)", record.Outcome, record.Reason)
						}
					}
				})
			})
		})
	}
}

// sendInPieces sends a text, with a silence wherever it has a |.
func sendInPieces(tb testing.TB, conn *sockettest.Conn, text string, silence time.Duration) {
	tb.Helper()
	for i, piece := range strings.Split(text, "|") {
		if i > 0 {
			<-time.After(silence)
		}
		send(tb, conn, piece)
	}
}

// WebSockets and other upgrades work however long the pod takes to agree, and
// however long nothing is said after that.
func TestUpgradeAfterAnySilence(t *testing.T) {
	const request = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	test := func(t *testing.T, awake bool, agrees, silence time.Duration) {
		inTestbed(t, awake, nil, func(w *testbed) {
			w.pod = func(conn *sockettest.Conn) {
				expect(t, conn, request)
				sendInPieces(t, conn, "|"+switching+"hello", agrees)
				expect(t, conn, "how are you")
				sendInPieces(t, conn, "|fine", silence)
				if rest := awaitEnd(t, conn); rest != "bye" {
					t.Errorf("the pod got %q", rest)
				}
				send(t, conn, "bye too")
				conn.Close()
			}
			client := w.client()
			send(t, client, request)
			if !awake {
				w.held(1)
				w.pause(silence)
				w.wake()
			}
			expect(t, client, switching+"hello")
			sendInPieces(t, client, "|how are you", silence)
			expect(t, client, "fine")
			sendInPieces(t, client, "|bye", silence)
			if err := client.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if rest := awaitEnd(t, client); rest != "bye too" {
				t.Errorf("the client got %q", rest)
			}
			if record := w.record(); record.Outcome != accesslog.Forwarded || record.Status != http.StatusSwitchingProtocols {
				t.Errorf("the record is %+v", record)
			}
			w.inFlight(0)
		})
	}
	for _, agrees := range append([]time.Duration{0}, silences...) {
		t.Run(fmt.Sprintf("the pod agrees after %s", agrees), func(t *testing.T) {
			eachWay(t, func(t *testing.T, awake bool, silence time.Duration) { test(t, awake, agrees, silence) })
		})
	}
}

// A client that ends a request by finishing its side of the connection waits for
// the response with the other. It gets it, however long that takes.
func TestHalfCloseGetsItsResponseAfterAnySilence(t *testing.T) {
	for name, request := range map[string]string{
		"HTTP/1.1":        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"HTTP/1.0":        "GET / HTTP/1.0\r\n\r\n",
		"last of several": "HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"with a body":     "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody",
		"with chunks":     "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, awake bool, silence time.Duration) {
				for _, late := range []bool{false, true} {
					inTestbed(t, awake, nil, func(w *testbed) {
						w.serveHTTP(func(response http.ResponseWriter, r *http.Request) {
							if r.Method != http.MethodHead {
								<-time.After(silence)
							}
							if _, err := fmt.Fprint(response, "late, but here"); err != nil {
								t.Errorf("the pod: %v", err)
							}
						})
						client := w.client()
						send(t, client, request)
						if late {
							// The response may have come by then.
							<-time.After(silence / 2)
						}
						if err := client.CloseWrite(); err != nil {
							t.Fatal(err)
						}
						if !awake {
							w.held(1)
							w.pause(silence)
							w.wake()
						}
						got := awaitEnd(t, client)
						if !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") && !strings.HasPrefix(got, "HTTP/1.0 200 OK\r\n") || !strings.HasSuffix(got, "\r\n\r\nlate, but here") {
							t.Errorf("late %t: got %q", late, got)
						}
						w.inFlight(0)
					})
				}
			})
		})
	}
}

// A client that has left frees its place, or the pod, at once.
func TestClientThatHasLeftFreesItsPlaceAfterAnySilence(t *testing.T) {
	leaves := map[string]func(*sockettest.Conn){
		"close":            func(conn *sockettest.Conn) { conn.Close() },
		"reset":            (*sockettest.Conn).Reset,
		"half and whole":   func(conn *sockettest.Conn) { _ = conn.CloseWrite(); synctest.Wait(); conn.Close() },
		"half, then reset": func(conn *sockettest.Conn) { _ = conn.CloseWrite(); synctest.Wait(); conn.Reset() },
	}
	requests := map[string]string{
		"whole":             "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"without its body":  "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
		"in a body":         "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nbody",
		"in a chunked body": "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nbody",
	}
	for how, leave := range leaves {
		for where, request := range requests {
			t.Run(how+", "+where, func(t *testing.T) {
				eachWay(t, func(t *testing.T, awake bool, silence time.Duration) {
					inTestbed(t, awake, nil, func(w *testbed) {
						w.pod = func(conn *sockettest.Conn) {
							_ = conn.WaitReset()
							conn.Close()
						}
						client := w.client()
						send(t, client, request)
						w.pause(silence)
						leave(client)
						if awake {
							// A pod that is only silent is checked after the client.
							w.pause(2 * 2 * time.Second)
							w.inFlight(0)
						} else {
							w.held(0)
						}
						if record := w.record(); record.Outcome != accesslog.ClientGone {
							t.Errorf("outcome %q (%s)", record.Outcome, record.Reason)
						}
					})
				})
			})
		}
	}
}

// A client that finishes in the middle of a body has said so to the pod too, which
// may respond to that.
func TestEndWithinABodyIsPassedOn(t *testing.T) {
	for name, begin := range map[string]string{
		"sized":   "Content-Length: 9\r\n\r\nbody",
		"chunked": "Transfer-Encoding: chunked\r\n\r\n9\r\nbody",
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, awake bool, silence time.Duration) {
				inTestbed(t, awake, nil, func(w *testbed) {
					request := "POST / HTTP/1.1\r\nHost: a\r\n" + begin
					w.pod = func(conn *sockettest.Conn) {
						if got := awaitEnd(t, conn); got != request {
							t.Errorf("the pod got %q", got)
						}
						sendInPieces(t, conn, "|HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\nshort", silence)
						conn.Close()
					}
					client := w.client()
					sendInPieces(t, client, request+"|", silence)
					if err := client.CloseWrite(); err != nil {
						t.Fatal(err)
					}
					if !awake {
						w.held(1)
						w.pause(silence)
						w.wake()
					}
					if got := awaitEnd(t, client); !strings.HasPrefix(got, "HTTP/1.1 400 Bad Request\r\n") || !strings.HasSuffix(got, "short") {
						t.Errorf("got %q", got)
					}
				})
			})
		})
	}
}

// A pod that stops in the middle of a response, and a client that stops reading,
// go on when they like.
func TestSlowPeersAreNotDead(t *testing.T) {
	for _, pause := range []time.Duration{45 * time.Second, time.Hour} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, chunked %t", pause, chunked), func(t *testing.T) {
				body := strings.Repeat("0123456789abcdef", spliceBytes/4)
				inTestbed(t, true, nil, func(w *testbed) {
					w.serveHTTP(func(response http.ResponseWriter, r *http.Request) {
						// It does not read for a while, and then not write.
						<-time.After(pause)
						got, err := io.ReadAll(r.Body)
						if err != nil || string(got) != body {
							t.Errorf("the pod got %d bytes, %v", len(got), err)
						}
						<-time.After(pause)
						if !chunked {
							response.Header().Set("Content-Length", fmt.Sprint(len(body)))
						}
						fmt.Fprint(response, body)
					})
					client := w.client()
					if chunked {
						send(t, client, fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body))
					} else {
						send(t, client, fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
					}
					// Nor does the client read.
					w.pause(3 * pause)
					if response, got := readResponse(t, bufio.NewReader(client), http.MethodPost); response.StatusCode != http.StatusOK || got != body {
						t.Errorf("got %d, %d bytes", response.StatusCode, len(got))
					}
				})
			})
		}
	}
}
