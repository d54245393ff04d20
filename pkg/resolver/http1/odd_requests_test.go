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
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
)

// forwarded is the result of a message that arrives as it was sent.
const forwarded = 0

// oddRequest is a request that is written in an unusual way.
type oddRequest struct {
	name, text string
	// result is forwarded, or the status of the rejection, after which the
	// connection ends.
	result int
}

// withFields is a request whose only unusual part is its fields.
func withFields(fields string) string { return "POST / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n" }

// withChunks is a request whose only unusual part is its chunked body.
func withChunks(body string) string { return withFields("Transfer-Encoding: chunked\r\n") + body }

// oddRequests are what servers were seen to read in different ways, and what only
// looks like that.
var oddRequests = map[string][]oddRequest{
	"request line": {
		{"a method in lower case", "get / HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"a method of its own", "M-SEARCH * HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"a method of punctuation", "!#$%&'*+-.^_`|~ / HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"a method that another is the beginning of", "GETS / HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"a colon in the method", "GE:T / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"a letter beyond ASCII in the method", "G\xcbT / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"no method", " / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"two spaces after the method", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"two spaces before the version", "GET /  HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"a space after the version", "GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400},
		{"tabs for spaces", "GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"a form feed for a space", "GET\f/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"no version", "GET /\r\nHost: a\r\n\r\n", 400},
		{"only a version", "HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"a version in lower case", "GET / http/1.1\r\nHost: a\r\n\r\n", 505},
		{"a version of two digits", "GET / HTTP/1.10\r\nHost: a\r\n\r\n", 505},
		{"a version with zeros", "GET / HTTP/01.1\r\nHost: a\r\n\r\n", 505},
		{"a version that does not exist", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505},
		{"a version of another protocol", "GET / ICE/1.0\r\nHost: a\r\n\r\n", 505},
		{"a version after another", "GET / HTTP/1.1HTTP/1.1\r\nHost: a\r\n\r\n", 505},
		{"a comma in the version", "GET / HTTP/1,1\r\nHost: a\r\n\r\n", 505},
		{"an empty line before it", "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"a bare line feed before it", "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"a space before it", " GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
	},
	"target": {
		{"a star", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"no slash", "GET a/b HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"a fragment", "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"a query without a path", "GET ?a=b HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"braces, quotes and backslashes", "GET /{a}\\\"<b>^`|x HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"percent signs that encode nothing", "GET /%zz%2 HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"encoded line ends", "GET /%0d%0aX:%20y HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"steps upwards", "GET /../..//./a/%2e%2e/ HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"letters beyond ASCII", "GET /\xc3\xa4\xff?\xf0 HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"a delete character", "GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"a control character", "GET /\x1f HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"a bare carriage return", "GET /\ra HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"a NUL", "GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
		{"a tab", "GET /a\tb HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	},
	"authority": {
		{"absolute form", "GET http://a/b HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		// The port alone says where it goes; what the application makes of it is
		// what it would make of it without a resolver.
		{"absolute form of another host", "GET http://b/c HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"absolute form with a user", "GET http://u:p@a:80/ HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"absolute form of another scheme", "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"absolute form without Host", "GET http://a/ HTTP/1.1\r\n\r\n", 400},
		{"an empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", forwarded},
		{"a list of hosts", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", forwarded},
		{"an odd host", "GET / HTTP/1.1\r\nHost: a/b@c:x\r\n\r\n", forwarded},
		{"the same Host twice", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
		{"two hosts in different case", "GET / HTTP/1.1\r\nHost: a\r\nhOST: b\r\n\r\n", 400},
		{"two hosts in HTTP/1.0", "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400},
		{"no Host", "GET / HTTP/1.1\r\nX: Host: a\r\n\r\n", 400},
		{"no Host in HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", forwarded},
		{"a space before the colon of Host", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400},
		{"CONNECT", "CONNECT b:22 HTTP/1.1\r\nHost: b:22\r\n\r\n", 501},
	},
	"field names": {
		{"punctuation", withFields("!#$%&'*+-.^_`|~: 1\r\n"), forwarded},
		{"underscores in a name that frames", withFields("Content_Length: 4\r\nTransfer_Encoding: chunked\r\n"), forwarded},
		{"a name that begins like one that frames", withFields("Content-Lengthy: 4\r\nXTransfer-Encoding: chunked\r\n"), forwarded},
		{"no name", withFields(": 1\r\n"), 400},
		{"no colon", withFields("X\r\n"), 400},
		{"a space within", withFields("X Y: 1\r\n"), 400},
		{"a space before", withFields(" Content-Length: 4\r\n"), 400},
		{"a space before the colon", withFields("X : 1\r\n"), 400},
		{"a tab before the colon", withFields("X\t: 1\r\n"), 400},
		{"a vertical tab before the colon", withFields("Transfer-Encoding\v: chunked\r\n"), 400},
		{"a delete character", withFields("Content-Length\x7f: 4\r\n"), 400},
		{"a NUL", withFields("Content-Length\x00: 4\r\n"), 400},
		{"a letter beyond ASCII", withFields("Content-L\xc3\xa9ngth: 4\r\n"), 400},
		{"a hyphen that is none", withFields("Transfer\xe2\x80\x91Encoding: chunked\r\n"), 400},
		{"a byte order mark", withFields("\xef\xbb\xbfX: 1\r\n"), 400},
		{"quotes", withFields("\"X\": 1\r\n"), 400},
		{"a carriage return within", withFields("X\rY: 1\r\n"), 400},
		{"a second request line", withFields("GET /smuggled HTTP/1.1\r\n"), 400},
	},
	"field values": {
		{"none", withFields("X:\r\nY: \r\n"), forwarded},
		{"many colons", withFields("X:::: 1 :\r\n"), forwarded},
		{"letters beyond ASCII", withFields("X: \xc3\xa4\xff\r\n"), forwarded},
		{"control characters other than line ends and NUL", withFields("X: \x01\x08\x1b\x7f\r\n"), forwarded},
		{"quotes without an end", withFields("X: \"a\r\n"), forwarded},
		{"white space around", withFields("X: \t a \t \r\n"), forwarded},
		{"a NUL", withFields("X: a\x00b\r\n"), 400},
		{"a bare carriage return", withFields("X: a\rContent-Length: 4\r\n"), 400},
		{"a carriage return before the line end", withFields("X: a\r\r\n"), 400},
		{"a bare line feed", withFields("X: a\nContent-Length: 4\r\n"), 400},
		{"line feeds for the end", "POST / HTTP/1.1\r\nHost: a\r\n\n", 400},
		{"a line feed and a line end for the end", "POST / HTTP/1.1\r\nHost: a\n\r\n", 400},
	},
	"folding": {
		{"by a space", withFields("X: a\r\n b\r\n"), 400},
		{"by a tab", withFields("X: a\r\n\tb\r\n"), 400},
		{"an empty line of white space", withFields("X: a\r\n \r\n"), 400},
		{"a length", withFields("Content-Length:\r\n 4\r\n"), 400},
		{"an encoding", withFields("Transfer-Encoding:\r\n chunked\r\n"), 501},
		{"a host", "GET / HTTP/1.1\r\nHost:\r\n a\r\n\r\n", 400},
		{"the first field", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400},
		{"after a bare line feed", withFields("X: a\n b\r\n"), 400},
	},
	"transfer encoding": {
		{"in another case", withFields("TRANSFER-encoding: cHuNkEd\r\n") + "0\r\n\r\n", forwarded},
		{"after a tab", withFields("Transfer-Encoding:\tchunked \t\r\n") + "0\r\n\r\n", forwarded},
		{"without a space", withFields("Transfer-Encoding:chunked\r\n") + "0\r\n\r\n", forwarded},
		{"twice", withFields("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n", 400},
		{"twice, and the second is another", withFields("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n") + "0\r\n\r\n", 400},
		{"twice, and the first is another", withFields("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n", 501},
		{"of two", withFields("Transfer-Encoding: gzip, chunked\r\n") + "0\r\n\r\n", 501},
		{"of two, chunked first", withFields("Transfer-Encoding: chunked, gzip\r\n") + "0\r\n\r\n", 501},
		{"identity", withFields("Transfer-Encoding: identity\r\n"), 501},
		{"empty", withFields("Transfer-Encoding:\r\n"), 501},
		{"a comma before", withFields("Transfer-Encoding: ,chunked\r\n") + "0\r\n\r\n", 501},
		{"a comma after", withFields("Transfer-Encoding: chunked,\r\n") + "0\r\n\r\n", 501},
		{"a parameter", withFields("Transfer-Encoding: chunked;a=b\r\n") + "0\r\n\r\n", 501},
		{"quoted", withFields("Transfer-Encoding: 'chunked'\r\n") + "0\r\n\r\n", 501},
		{"misspelled", withFields("Transfer-Encoding: chunk\r\n") + "0\r\n\r\n", 501},
		{"with a letter before", withFields("Transfer-Encoding: xchunked\r\n") + "0\r\n\r\n", 501},
		{"a vertical tab before", withFields("Transfer-Encoding: \vchunked\r\n") + "0\r\n\r\n", 501},
		{"a form feed after", withFields("Transfer-Encoding: chunked\f\r\n") + "0\r\n\r\n", 501},
		{"a control character before", withFields("Transfer-Encoding: \x08chunked\r\n") + "0\r\n\r\n", 501},
		{"a letter that some fold to k", withFields("Transfer-Encoding: chun\xe2\x84\xaaed\r\n") + "0\r\n\r\n", 501},
		{"in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		{"beside a length", withFields("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n") + "0\r\n\r\n", 400},
		{"after a length", withFields("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n", 400},
		{"beside a length of nothing", withFields("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n") + "0\r\n\r\n", 400},
	},
	"content length": {
		{"zeros before", withFields("Content-Length: 0004\r\n") + "body", forwarded},
		{"white space around", withFields("Content-Length: \t4 \r\n") + "body", forwarded},
		{"of nothing", withFields("Content-Length: 0\r\n"), forwarded},
		{"of a GET", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", forwarded},
		{"twice", withFields("Content-Length: 4\r\nContent-Length: 4\r\n") + "body", 400},
		{"twice, in different case", withFields("Content-Length: 4\r\ncontent-length: 0\r\n") + "body", 400},
		{"a list", withFields("Content-Length: 4,4\r\n") + "body", 400},
		{"empty", withFields("Content-Length: \r\n") + "body", 400},
		{"a plus sign", withFields("Content-Length: +4\r\n") + "body", 400},
		{"a minus sign", withFields("Content-Length: -4\r\n") + "body", 400},
		{"minus nothing", withFields("Content-Length: -0\r\n") + "body", 400},
		{"in base 16", withFields("Content-Length: 0x4\r\n") + "body", 400},
		{"a fraction", withFields("Content-Length: 4.0\r\n") + "body", 400},
		{"an exponent", withFields("Content-Length: 4e0\r\n") + "body", 400},
		{"an underscore", withFields("Content-Length: 1_0\r\n") + "0123456789", 400},
		{"a comment", withFields("Content-Length: 4 (a)\r\n") + "body", 400},
		{"two numbers", withFields("Content-Length: 4 4\r\n") + "body", 400},
		{"a semicolon", withFields("Content-Length: 4;\r\n") + "body", 400},
		{"quoted", withFields("Content-Length: \"4\"\r\n") + "body", 400},
		{"other digits", withFields("Content-Length: \xd9\xa4\r\n") + "body", 400},
		{"a vertical tab before", withFields("Content-Length: \v4\r\n") + "body", 400},
		{"beyond 64 bits", withFields("Content-Length: 18446744073709551620\r\n") + "body", 400},
		{"beyond 63 bits", withFields("Content-Length: 9223372036854775812\r\n") + "body", 400},
	},
	"chunk sizes": {
		{"zeros before", withChunks("000000000000004\r\nbody\r\n000\r\n\r\n"), forwarded},
		{"capitals", withChunks("A\r\n0123456789\r\n0\r\n\r\n"), forwarded},
		{"small letters", withChunks("a\r\n0123456789\r\n0\r\n\r\n"), forwarded},
		{"more digits than a number has", withChunks("00000000000000004\r\nbody\r\n0\r\n\r\n"), 400},
		{"beyond 64 bits", withChunks("10000000000000004\r\nbody\r\n0\r\n\r\n"), 400},
		{"beyond 63 bits", withChunks("8000000000000004\r\nbody\r\n0\r\n\r\n"), 400},
		{"none", withChunks("\r\nbody\r\n0\r\n\r\n"), 400},
		{"none before an extension", withChunks(";a\r\nbody\r\n0\r\n\r\n"), 400},
		{"a plus sign", withChunks("+4\r\nbody\r\n0\r\n\r\n"), 400},
		{"a minus sign", withChunks("-4\r\nbody\r\n0\r\n\r\n"), 400},
		{"a prefix", withChunks("0x4\r\nbody\r\n0\r\n\r\n"), 400},
		{"an underscore", withChunks("0_4\r\nbody\r\n0\r\n\r\n"), 400},
		{"a letter after", withChunks("4g\r\nbody\r\n0\r\n\r\n"), 400},
		{"a space before", withChunks(" 4\r\nbody\r\n0\r\n\r\n"), 400},
		{"a space after", withChunks("4 \r\nbody\r\n0\r\n\r\n"), 400},
		{"a tab after", withChunks("4\t\r\nbody\r\n0\r\n\r\n"), 400},
		{"quoted", withChunks("\"4\"\r\nbody\r\n0\r\n\r\n"), 400},
		{"a NUL after", withChunks("4\x00\r\nbody\r\n0\r\n\r\n"), 400},
		{"other digits", withChunks("\xd9\xa4\r\nbody\r\n0\r\n\r\n"), 400},
		{"less than the data", withChunks("3\r\nbody\r\n0\r\n\r\n"), 400},
		{"more than the data", withChunks("5\r\nbody\r\n0\r\n\r\n"), 400},
		{"two line ends after the data", withChunks("4\r\nbody\r\n\r\n0\r\n\r\n"), 400},
		{"no line end after the data", withChunks("4\r\nbody0\r\n\r\n"), 400},
		{"a line feed after the data", withChunks("4\r\nbody\n0\r\n\r\n"), 400},
		{"a line feed after the size", withChunks("4\nbody\r\n0\r\n\r\n"), 400},
		{"a carriage return after the size", withChunks("4\rbody\r\n0\r\n\r\n"), 400},
		{"two carriage returns after the size", withChunks("4\r\r\nbody\r\n0\r\n\r\n"), 400},
		{"two bytes of anything after the data", withChunks("4\r\nbodyXX0\r\n\r\n"), 400},
	},
	"chunk extensions": {
		{"a name", withChunks("4;a\r\nbody\r\n0;b\r\n\r\n"), forwarded},
		{"a value", withChunks("4;a=b;c=d\r\nbody\r\n0\r\n\r\n"), forwarded},
		{"a quoted value", withChunks("4;a=\"b;\\\"c\"\r\nbody\r\n0\r\n\r\n"), forwarded},
		{"white space", withChunks("4; a = b\t\r\nbody\r\n0\r\n\r\n"), forwarded},
		{"nothing after the semicolon", withChunks("4;\r\nbody\r\n0\r\n\r\n"), forwarded},
		{"another size", withChunks("4;5;6\r\nbody\r\n0\r\n\r\n"), forwarded},
		{"letters beyond ASCII", withChunks("4;\xff\xc3\xa4\r\nbody\r\n0\r\n\r\n"), forwarded},
		{"a space before the semicolon", withChunks("4 ;a\r\nbody\r\n0\r\n\r\n"), 400},
		{"a bare line feed", withChunks("4;a\nbody\r\n0\r\n\r\n"), 400},
		{"a bare line feed in quotes", withChunks("4;a=\"\n\"\r\nbody\r\n0\r\n\r\n"), 400},
		{"a bare carriage return", withChunks("4;a\rb\r\nbody\r\n0\r\n\r\n"), 400},
		{"a NUL", withChunks("4;a\x00\r\nbody\r\n0\r\n\r\n"), 400},
		{"very long", withChunks("4;" + strings.Repeat("a", maxChunkLine+1) + "\r\nbody\r\n0\r\n\r\n"), 400},
	},
	"trailers": {
		{"a field", withChunks("0\r\nX-Sum: 1\r\n\r\n"), forwarded},
		{"a field that frames", withChunks("0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nHost: b\r\n\r\n"), forwarded},
		{"folded", withChunks("0\r\nX-Sum:\r\n 1\r\n\r\n"), 400},
		{"a space before the colon", withChunks("0\r\nX-Sum : 1\r\n\r\n"), 400},
		{"no colon", withChunks("0\r\nX-Sum\r\n\r\n"), 400},
		{"a bare line feed", withChunks("0\r\nX-Sum: 1\n\r\n"), 400},
		{"line feeds for the end", withChunks("0\r\n\n"), 400},
		{"a bare carriage return", withChunks("0\r\nX-Sum: 1\r2\r\n\r\n"), 400},
		{"a NUL", withChunks("0\r\nX-Sum: \x00\r\n\r\n"), 400},
		{"a request", withChunks("0\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"), 400},
		{"very many", withChunks("0\r\n" + strings.Repeat("X: "+strings.Repeat("a", 1000)+"\r\n", maxTrailers/1000+1) + "\r\n"), 400},
	},
	"size": {
		{"a long field", withFields("X: " + strings.Repeat("a", 12<<10) + "\r\n"), forwarded},
		{"a long target", "GET /" + strings.Repeat("a", 12<<10) + " HTTP/1.1\r\nHost: a\r\n\r\n", forwarded},
		{"many fields", withFields(strings.Repeat("X: a\r\n", 2000)), forwarded},
		{"a field that is too long", withFields("X: " + strings.Repeat("a", 17<<10) + "\r\n"), 431},
		{"a target that is too long", "GET /" + strings.Repeat("a", 17<<10) + " HTTP/1.1\r\nHost: a\r\n\r\n", 431},
		{"too many fields", withFields(strings.Repeat("X: a\r\n", 4000)), 431},
		{"a method that does not end", strings.Repeat("A", 17<<10), 431},
	},
}

// What two servers could read in different ways is rejected, and the request that
// is hidden in it, or follows it, reaches no pod. All else arrives byte for byte.
func TestOddRequests(t *testing.T) {
	for group, cases := range oddRequests {
		for _, odd := range cases {
			t.Run(group+"/"+odd.name, func(t *testing.T) {
				inTestbed(t, true, nil, func(w *testbed) {
					if odd.result == forwarded {
						w.expectForwarded(odd.text)
					} else {
						w.expectRejected(odd.text, odd.result)
					}
				})
			})
		}
	}
}

// expectForwarded fails the test unless a pod gets a request as it was sent, but
// for an empty line before it, and its client the pod's response.
func (w *testbed) expectForwarded(request string) {
	t := w.t
	w.pod = func(conn *sockettest.Conn) {
		expect(t, conn, strings.TrimPrefix(request, "\r\n"))
		send(t, conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		if rest := awaitEnd(t, conn); rest != "" {
			t.Errorf("the pod got %q too", rest)
		}
		conn.Close()
	}
	client := w.client()
	send(t, client, request)
	response, body := readResponse(t, bufio.NewReader(client), http.MethodGet)
	if response.StatusCode != http.StatusOK || body != "ok" {
		t.Errorf("the client got %d %q", response.StatusCode, body)
	}
	client.Close()
	// The pod's connection ends with it, at the latest when it is found out.
	w.pause(time.Minute)
}

// expectRejected fails the test unless a request is rejected with a status, its
// connection ends, and nothing of what follows it reaches a pod.
func (w *testbed) expectRejected(request string, status int) {
	t := w.t
	w.pod = func(conn *sockettest.Conn) {
		defer conn.Close()
		if got, _ := io.ReadAll(conn); strings.Contains(string(got), "smuggled") {
			t.Errorf("the pod got %q", got)
		}
	}
	client := w.client()
	w.running.Go(func() {
		// It may be rejected before all of it is sent.
		_, _ = io.WriteString(client, request+"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
	})
	reader := bufio.NewReader(client)
	response, _ := readResponse(t, reader, http.MethodPost)
	if response.StatusCode != status || response.Header.Get(localreply.HeaderReason) == "" || !response.Close {
		t.Errorf("got %d %v, want %d and the end of the connection", response.StatusCode, response.Header, status)
	}
	if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
		t.Errorf("after the rejection came %q, %v", rest, err)
	}
	w.inFlight(0)
}
