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
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
)

// Messages that two servers could split in different ways are rejected with an
// error, and no byte of them reaches a pod.
func TestAmbiguousRequestsAreRejected(t *testing.T) {
	const host = "Host: a\r\n"
	tests := map[string]struct {
		request string
		status  int
	}{
		"both lengths":            {"POST / HTTP/1.1\r\n" + host + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"two lengths":             {"POST / HTTP/1.1\r\n" + host + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", 400},
		"the same length twice":   {"POST / HTTP/1.1\r\n" + host + "Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd", 400},
		"a list of lengths":       {"POST / HTTP/1.1\r\n" + host + "Content-Length: 4, 4\r\n\r\nabcd", 400},
		"a signed length":         {"POST / HTTP/1.1\r\n" + host + "Content-Length: +4\r\n\r\nabcd", 400},
		"a hexadecimal length":    {"POST / HTTP/1.1\r\n" + host + "Content-Length: 0x4\r\n\r\nabcd", 400},
		"an empty length":         {"POST / HTTP/1.1\r\n" + host + "Content-Length:\r\n\r\n", 400},
		"a huge length":           {"POST / HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999\r\n\r\n", 400},
		"space before the colon":  {"POST / HTTP/1.1\r\n" + host + "Content-Length : 4\r\n\r\nabcd", 400},
		"a folded field":          {"POST / HTTP/1.1\r\n" + host + "X: a\r\n b\r\n\r\n", 400},
		"a folded first field":    {"POST / HTTP/1.1\r\n X: a\r\n" + host + "\r\n", 400},
		"an unknown encoding":     {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
		"an encoding twice":       {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"a disguised encoding":    {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 501},
		"an encoding in HTTP/1.0": {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"bare line feeds":         {"GET / HTTP/1.1\nHost: a\n\n", 400},
		"one bare line feed":      {"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400},
		"a bare carriage return":  {"GET / HTTP/1.1\r\nHost: a\r\nX: b\rY: c\r\n\r\n", 400},
		"a NUL":                   {"GET / HTTP/1.1\r\nHost: a\r\nX: b\x00c\r\n\r\n", 400},
		"no host":                 {"GET / HTTP/1.1\r\n\r\n", 400},
		"two hosts":               {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
		"no field name":           {"GET / HTTP/1.1\r\n" + host + ": x\r\n\r\n", 400},
		"no colon":                {"GET / HTTP/1.1\r\n" + host + "X\r\n\r\n", 400},
		"a space in the target":   {"GET /a b HTTP/1.1\r\n" + host + "\r\n", 400},
		"no target":               {"GET  HTTP/1.1\r\n" + host + "\r\n", 400},
		"another version":         {"GET / HTTP/2.0\r\n" + host + "\r\n", 505},
		"HTTP/0.9":                {"GET /\r\n\r\n", 400},
		"a tunnel":                {"CONNECT 10.0.0.1:22 HTTP/1.1\r\n" + host + "\r\n", 501},
		"a huge header":           {"GET / HTTP/1.1\r\n" + host + "X: " + strings.Repeat("a", 17<<10) + "\r\n\r\n", 431},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pods(rawPod(t, func(conn *net.TCPConn) {
				if got, _ := io.ReadAll(conn); len(got) > 0 {
					t.Errorf("the pod received %q", got)
				}
			}))
			conn := f.client()
			send(t, conn, test.request)
			response, _ := readResponse(t, bufio.NewReader(conn), "POST")
			if response.StatusCode != test.status || response.Header.Get(localreply.HeaderReason) == "" {
				t.Fatalf("got %d %v, want %d", response.StatusCode, response.Header, test.status)
			}
		})
	}
}

// A body that turns out to be malformed ends the request and both connections:
// what follows it is never taken for another request.
func TestMalformedChunksEndTheConnection(t *testing.T) {
	for name, body := range map[string]string{
		"no digits":              "\r\n\r\n",
		"a sign":                 "+5\r\nhello\r\n0\r\n\r\n",
		"a prefix":               "0x5\r\nhello\r\n0\r\n\r\n",
		"too many digits":        "0000000000000000005\r\nhello\r\n0\r\n\r\n",
		"space after the size":   "5 \r\nhello\r\n0\r\n\r\n",
		"bare line feed":         "5\nhello\n0\n\n",
		"bare LF in extension":   "5;a\nhello\r\n0\r\n\r\n",
		"too much data":          "5\r\nhello!\r\n0\r\n\r\n",
		"no line end after data": "5\r\nhelloX\n0\r\n\r\n",
		"bad trailer":            "0\r\nX : 1\r\n\r\n",
		"bare LF in trailers":    "0\r\nX: 1\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pods(rawPod(t, func(conn *net.TCPConn) {
				got, _ := io.ReadAll(conn)
				if strings.Contains(string(got), "smuggled") {
					t.Errorf("the pod received %q", got)
				}
			}))
			conn := f.client()
			send(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"+body+get("/smuggled"))
			response, _ := readResponse(t, bufio.NewReader(conn), "POST")
			if response.StatusCode != http.StatusBadRequest || !response.Close {
				t.Fatalf("got %d, close %t", response.StatusCode, response.Close)
			}
			f.inFlight(0)
		})
	}
}

func TestMalformedResponsesAreNotPassedOn(t *testing.T) {
	for name, reply := range map[string]string{
		"both lengths":        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"two lengths":         "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
		"not HTTP":            "SSH-2.0-OpenSSH_9.2\r\n\r\n",
		"bad status":          "HTTP/1.1 2x0 OK\r\n\r\n",
		"bad first chunk":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"unsolicited upgrade": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
		"nothing":             "",
		"half a header":       "HTTP/1.1 200 OK\r\nContent-",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pods(scriptPod(t, get("/"), reply))
			conn := f.client()
			send(t, conn, get("/"))
			response, _ := readResponse(t, bufio.NewReader(conn), "GET")
			if response.StatusCode != http.StatusBadGateway {
				t.Fatalf("got %d", response.StatusCode)
			}
			f.inFlight(0)
		})
	}
}

func TestTruncatedResponsesLookTruncated(t *testing.T) {
	for name, reply := range map[string]string{
		"sized":   "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
		"chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pods(scriptPod(t, get("/"), reply))
			conn := f.client()
			send(t, conn, get("/"))
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(response.Body); err == nil {
				t.Fatalf("read %q as if it were complete", body)
			}
		})
	}
}
