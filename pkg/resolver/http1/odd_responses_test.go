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
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
)

// What becomes of a response of a pod.
const (
	// wholeAndOn: it arrives as it was sent, and the connection carries another.
	wholeAndOn = iota
	// wholeAndEnd: it arrives as it was sent, and the connection ends.
	wholeAndEnd
	// replaced: the client gets a local reply that says that the response is malformed.
	replaced
	// cut: the client sees a connection that breaks in the middle of it.
	cut
)

// oddResponse is a response that is written in an unusual way.
type oddResponse struct {
	name, text string
	// client is what arrives of it, where that is not the same text.
	client string
	result int
}

const (
	status200 = "HTTP/1.1 200 OK\r\n"
	sized2    = "Content-Length: 2\r\n\r\nok"
	chunked   = status200 + "Transfer-Encoding: chunked\r\n\r\n"
)

// oddResponses are what clients were seen to read in different ways, and what only
// looks like that.
var oddResponses = map[string][]oddResponse{
	"status line": {
		{"no reason", "HTTP/1.1 200\r\n" + sized2, "", wholeAndOn},
		{"an empty reason", "HTTP/1.1 200 \r\n" + sized2, "", wholeAndOn},
		{"a long reason", "HTTP/1.1 200 All's well, \xc3\xa4\t!\r\n" + sized2, "", wholeAndOn},
		{"an unknown status", "HTTP/1.1 799 X\r\n" + sized2, "", wholeAndOn},
		{"two digits", "HTTP/1.1 20 OK\r\n" + sized2, "", replaced},
		{"four digits", "HTTP/1.1 2000 OK\r\n" + sized2, "", replaced},
		{"letters", "HTTP/1.1 OK 200\r\n" + sized2, "", replaced},
		{"a sign", "HTTP/1.1 +20 OK\r\n" + sized2, "", replaced},
		{"below 100", "HTTP/1.1 099 OK\r\n" + sized2, "", replaced},
		{"two spaces before the status", "HTTP/1.1  200 OK\r\n" + sized2, "", replaced},
		{"a tab before the status", "HTTP/1.1\t200 OK\r\n" + sized2, "", replaced},
		{"no version", "200 OK\r\n" + sized2, "", replaced},
		{"a version in lower case", "http/1.1 200 OK\r\n" + sized2, "", replaced},
		{"a version that does not exist", "HTTP/1.2 200 OK\r\n" + sized2, "", replaced},
		{"another protocol", "ICY 200 OK\r\n" + sized2, "", replaced},
		{"an empty line before it", "\r\nHTTP/1.1 200 OK\r\n" + sized2, "", replaced},
		{"a bare line feed", "HTTP/1.1 200 OK\n" + sized2, "", replaced},
		{"a bare carriage return", "HTTP/1.1 200 O\rK\r\n" + sized2, "", replaced},
		{"a NUL", "HTTP/1.1 200 O\x00K\r\n" + sized2, "", replaced},
	},
	"fields": {
		{"letters beyond ASCII", status200 + "X: \xc3\xa4\xff\r\n" + sized2, "", wholeAndOn},
		{"many cookies", status200 + strings.Repeat("Set-Cookie: a=b; Path=/\r\n", 100) + sized2, "", wholeAndOn},
		{"a space before the colon", status200 + "X : 1\r\n" + sized2, "", replaced},
		{"folded", status200 + "X: a\r\n b\r\n" + sized2, "", replaced},
		{"no colon", status200 + "X\r\n" + sized2, "", replaced},
		{"no name", status200 + ": 1\r\n" + sized2, "", replaced},
		{"a NUL", status200 + "X: \x00\r\n" + sized2, "", replaced},
		{"a bare carriage return", status200 + "X: a\rSet-Cookie: b\r\n" + sized2, "", replaced},
		{"a bare line feed", status200 + "X: a\nSet-Cookie: b\r\n" + sized2, "", replaced},
		{"too many", status200 + strings.Repeat("X: a\r\n", 4000) + sized2, "", replaced},
	},
	"length": {
		{"of nothing", status200 + "Content-Length: 0\r\n\r\n", "", wholeAndOn},
		{"zeros before", status200 + "Content-Length: 0002\r\n\r\nok", "", wholeAndOn},
		{"less than what comes", status200 + sized2 + "HTTP/1.1 200 OK\r\n" + sized2, status200 + sized2, wholeAndOn},
		{"more than what comes", status200 + "Content-Length: 3\r\n\r\nok", "", cut},
		{"twice", status200 + "Content-Length: 2\r\n" + sized2, "", replaced},
		{"twice, and different", status200 + "Content-Length: 3\r\n" + sized2, "", replaced},
		{"a list", status200 + "Content-Length: 2,2\r\n\r\nok", "", replaced},
		{"a sign", status200 + "Content-Length: +2\r\n\r\nok", "", replaced},
		{"a minus sign", status200 + "Content-Length: -2\r\n\r\nok", "", replaced},
		{"in base 16", status200 + "Content-Length: 0x2\r\n\r\nok", "", replaced},
		{"empty", status200 + "Content-Length:\r\n\r\nok", "", replaced},
		{"beyond 63 bits", status200 + "Content-Length: 9223372036854775812\r\n\r\nok", "", replaced},
		{"none", status200 + "\r\nok", status200 + "Connection: close\r\n\r\nok", wholeAndEnd},
		{"none, in HTTP/1.0", "HTTP/1.0 200 OK\r\n\r\nok", "HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nok", wholeAndEnd},
	},
	"encoding": {
		{"in another case", status200 + "transfer-ENCODING:\tcHuNkEd \r\n\r\n2\r\nok\r\n0\r\n\r\n", "", wholeAndOn},
		{"beside a length", status200 + "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", "", replaced},
		{"twice", status200 + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "", replaced},
		{"of two", status200 + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "", replaced},
		{"identity", status200 + "Transfer-Encoding: identity\r\n" + sized2, "", replaced},
		{"disguised", status200 + "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n", "", replaced},
		{"in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "", replaced},
		{"in HTTP/1.0 that goes on", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "", replaced},
	},
	"chunks": {
		{"extensions and trailers", chunked + "2;a=\"b\"\r\nok\r\n00;c\r\nX-Sum: 1\r\n\r\n", "", wholeAndOn},
		{"more after the last", chunked + "2\r\nok\r\n0\r\n\r\n" + status200 + sized2, chunked + "2\r\nok\r\n0\r\n\r\n", wholeAndOn},
		{"a size that is none", chunked + "x\r\n", "", replaced},
		{"a sign", chunked + "+2\r\nok\r\n0\r\n\r\n", "", replaced},
		{"a prefix", chunked + "0x2\r\nok\r\n0\r\n\r\n", "", replaced},
		{"a space after the size", chunked + "2 \r\nok\r\n0\r\n\r\n", "", replaced},
		{"a bare line feed", chunked + "2\nok\r\n0\r\n\r\n", "", replaced},
		{"a bare line feed in an extension", chunked + "2;a\nok\r\n0\r\n\r\n", "", replaced},
		{"a size beyond 63 bits", chunked + "8000000000000002\r\nok\r\n0\r\n\r\n", "", replaced},
		{"more data than the size", chunked + "1\r\nok\r\n0\r\n\r\n", "", replaced},
		{"a trailer without a colon", chunked + "0\r\nX\r\n\r\n", "", replaced},
		{"no end", chunked + "2\r\nok\r\n", "", cut},
		{"no end of the trailers", chunked + "2\r\nok\r\n0\r\n", "", cut},
		{"no end of a chunk", chunked + "3\r\nok", "", cut},
	},
	"no body": {
		{"no content", "HTTP/1.1 204 No Content\r\n\r\n", "", wholeAndOn},
		{"no content, with a length", "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n", "", wholeAndOn},
		{"no content, with a body", "HTTP/1.1 204 No Content\r\n" + sized2, "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n", wholeAndOn},
		{"no content, with an encoding", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", "", wholeAndOn},
		{"not modified, with a length", "HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n", "", wholeAndOn},
		{"reset content, with a body", "HTTP/1.1 205 Reset Content\r\n" + sized2, "", wholeAndOn},
	},
	"interim": {
		{"one", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + status200 + sized2, "", wholeAndOn},
		{"many", strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 50) + status200 + sized2, "", wholeAndOn},
		{"unsolicited continue", "HTTP/1.1 100 Continue\r\n\r\n" + status200 + sized2, "", wholeAndOn},
		{"with a length", "HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\n" + status200 + sized2, "", wholeAndOn},
		{"with an encoding", "HTTP/1.1 103 Early Hints\r\nTransfer-Encoding: chunked\r\n\r\n" + status200 + sized2, "", wholeAndOn},
		{"unsolicited switch of protocols", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n" + status200 + sized2, "", replaced},
		{"a malformed one", "HTTP/1.1 103 Early Hints\r\nX : 1\r\n\r\n" + status200 + sized2, "", replaced},
		{"before a malformed response", "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 2x0 OK\r\n" + sized2, "", replaced},
		{"and nothing else", "HTTP/1.1 103 Early Hints\r\n\r\n", "", replaced},
	},
	"connection": {
		{"ends", status200 + "Connection: close\r\n" + sized2, status200 + sized2, wholeAndOn},
		{"ends, in another case", status200 + "CONNECTION: Close\r\n" + sized2, status200 + sized2, wholeAndOn},
		{"goes on", status200 + "Connection: keep-alive\r\nKeep-Alive: timeout=5, max=2\r\n" + sized2, status200 + sized2, wholeAndOn},
		{"of a proxy", status200 + "Proxy-Connection: keep-alive\r\n" + sized2, status200 + sized2, wholeAndOn},
		{"names a field", status200 + "Connection: X-Internal\r\nX-Internal: 1\r\n" + sized2, "", wholeAndOn},
		// It says so to the client too, which must then see it.
		{"names a field and ends", status200 + "Connection: X-Internal, close\r\nX-Internal: 1\r\n" + sized2,
			status200 + "Connection: X-Internal, close\r\nX-Internal: 1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", wholeAndEnd},
		{"of HTTP/1.0 goes on", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + sized2,
			"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok", wholeAndOn},
		// To a client it goes on all the same, and a client of HTTP/1.0 needs a field that says so.
		{"of HTTP/1.0 ends", "HTTP/1.0 200 OK\r\n" + sized2,
			"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok", wholeAndOn},
		{"empty", status200 + "Connection:\r\n" + sized2, status200 + sized2, wholeAndOn},
	},
	"nothing": {
		{"at all", "", "", replaced},
		{"but line ends", "\r\n\r\n", "", replaced},
		{"but half a header", "HTTP/1.1 200 OK\r\nContent-", "", replaced},
		{"but a header without its end", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", "", replaced},
	},
}

// What two clients could read in different ways does not reach any. All else
// arrives byte for byte, and the response to the next request is its own.
func TestOddResponses(t *testing.T) {
	for group, cases := range oddResponses {
		for _, odd := range cases {
			t.Run(group+"/"+odd.name, func(t *testing.T) {
				inTestbed(t, true, nil, func(w *testbed) { w.respondOddly(odd) })
			})
		}
	}
}

// respondOddly sends two requests, of which the pod responds to the first oddly.
func (w *testbed) respondOddly(odd oddResponse) {
	t := w.t
	first := true
	w.pod = func(conn *sockettest.Conn) {
		defer conn.Close()
		if _, _, err := readRequest(bufio.NewReader(conn)); err != nil {
			return
		}
		if !first {
			respondWith(conn, "next")
			return
		}
		first = false
		_, _ = io.WriteString(conn, odd.text)
	}
	client := w.client()
	reader := bufio.NewReader(client)
	send(t, client, get("/"))
	switch odd.result {
	case wholeAndOn, wholeAndEnd:
		want := odd.client
		if want == "" {
			want = odd.text
		}
		got := make([]byte, len(want))
		if n, err := io.ReadFull(reader, got); err != nil || string(got) != want {
			t.Fatalf("the client got %q (%v), want %q", got[:n], err, want)
		}
	case replaced:
		expectReplaced(t, reader)
	case cut:
		if got, err := io.ReadAll(reader); err == nil {
			t.Errorf("the client got %q as if it were whole", got)
		}
		return
	}
	if odd.result != wholeAndOn {
		if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
			t.Errorf("after it came %q, %v", rest, err)
		}
		return
	}
	// The pod has closed its connection.
	synctest.Wait()
	send(t, client, get("/"))
	if _, body := readResponse(t, reader, http.MethodGet); body != "next" {
		t.Errorf("the response to the next request is %q", body)
	}
}

// expectReplaced reads a response of the resolver that says what the pod did, after
// what may have announced it.
func expectReplaced(t *testing.T, reader *bufio.Reader) {
	t.Helper()
	for {
		response, _ := readResponse(t, reader, http.MethodGet)
		if response.StatusCode < 200 {
			continue
		}
		if response.StatusCode != http.StatusBadGateway || response.Header.Get(localreply.HeaderReason) == "" || !response.Close {
			t.Errorf("got %d %v, want a 502 that ends the connection", response.StatusCode, response.Header)
		}
		return
	}
}
