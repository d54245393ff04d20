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
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
)

// seenResponse is what a client that reads with net/http makes of a response.
type seenResponse struct {
	status  int
	interim []int
	header  http.Header
	body    string
	trailer http.Header
	// close is true when the client may send nothing more.
	close bool
	// local is true for a response of the resolver.
	local bool
	// rest is what came after the switch to another protocol.
	rest string
	// err is why there is no response, or not all of it.
	err error
}

// readFuzzed reads a response to a request with a method.
func readFuzzed(reader *bufio.Reader, method string) (read seenResponse) {
	var response *http.Response
	for {
		if response, read.err = http.ReadResponse(reader, &http.Request{Method: method}); read.err != nil {
			return read
		}
		if read.status = response.StatusCode; read.status >= 200 || read.status == http.StatusSwitchingProtocols {
			break
		}
		read.interim = append(read.interim, read.status)
	}
	read.header, read.close = response.Header, response.Close
	read.local = read.header.Get(localreply.HeaderReason) != ""
	if read.status == http.StatusSwitchingProtocols {
		rest, err := io.ReadAll(reader)
		read.rest, read.err = string(rest), err
		return read
	}
	body, err := io.ReadAll(response.Body)
	read.body, read.err, read.trailer = string(body), err, response.Trailer
	return read
}

// endToEnd returns the fields that do not concern one connection only.
func endToEnd(header http.Header) http.Header {
	header = header.Clone()
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection"} {
		header.Del(name)
	}
	return header
}

// differs returns how what a client got differs from what it would have got from
// the pod, or "". What is malformed may be rejected, in the middle of a body too,
// but never be taken for a whole response.
func differs(direct, through seenResponse) string {
	var malformed textproto.ProtocolError
	switch {
	case through.local:
		if through.status != http.StatusBadGateway || !through.close {
			return fmt.Sprintf("the resolver responds with %d, close %t", through.status, through.close)
		}
	case direct.header == nil && through.header != nil && errors.As(direct.err, &malformed):
		// What net/http does not read is in a line that is left out.
	case through.err != nil:
		if !strings.HasPrefix(direct.body, through.body) {
			return fmt.Sprintf("before %v came %q, which is no part of %q", through.err, through.body, direct.body)
		}
	case direct.err != nil:
		return fmt.Sprintf("got %+v as if it were whole, from a pod whose response is not: %v", through, direct.err)
	case !slices.Equal(direct.interim, through.interim):
		return fmt.Sprintf("announced by %v instead of %v", through.interim, direct.interim)
	case direct.status != through.status || direct.body != through.body || direct.rest != through.rest ||
		!reflect.DeepEqual(endToEnd(direct.header), endToEnd(through.header)) ||
		len(direct.trailer)+len(through.trailer) > 0 && !reflect.DeepEqual(direct.trailer, through.trailer):
		return fmt.Sprintf("got %+v from a pod that responds %+v", through, direct)
	}
	return ""
}

// clientRequests are the requests that fuzzed responses are to.
var clientRequests = []struct{ method, text string }{
	{http.MethodGet, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"},
	{http.MethodHead, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"},
	{http.MethodPost, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"},
	{http.MethodPut, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\nbody\r\n0\r\nX-Sum: 1\r\n\r\n"},
	{http.MethodGet, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n"},
	{http.MethodGet, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"},
	{http.MethodGet, "GET / HTTP/1.0\r\n\r\n"},
	{http.MethodGet, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"},
	{http.MethodDelete, "DELETE / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody"},
}

// fuzzedPod responds to the first request with one text and all others with another.
type fuzzedPod struct {
	first, second string
	// piece is how many bytes of a response are written at a time.
	piece int
	// closes is true when the connection ends with a response.
	closes    bool
	responses atomic.Int32
}

func (p *fuzzedPod) serve(conn *sockettest.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for {
		if _, _, err := readRequest(reader); err != nil {
			return
		}
		text := p.second
		if p.responses.Add(1) == 1 {
			text = p.first
		}
		for piece := range slices.Chunk([]byte(text), p.piece) {
			if _, err := conn.Write(piece); err != nil {
				return
			}
			// Each piece is read alone.
			<-time.After(time.Millisecond)
		}
		if p.closes {
			return
		}
	}
}

// FuzzResponses has a pod respond to two requests of one connection. The client gets
// what net/http makes of these bytes, and the response of each request is its own.
func FuzzResponses(f *testing.F) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	for request := range clientRequests {
		for i, text := range responseSeeds {
			f.Add(byte(request), byte(i), []byte(text), []byte(ok))
		}
	}
	f.Fuzz(func(t *testing.T, request, how byte, first, second []byte) {
		to := clientRequests[int(request)%len(clientRequests)]
		if strings.Contains(to.text, "HTTP/1.0") && (announces(first) || announces(second)) {
			// A client of HTTP/1.0 gets no interim responses.
			return
		}
		stream := bufio.NewReader(io.MultiReader(bytes.NewReader(first), bytes.NewReader(second)))
		readFuzzed(stream, to.method)
		want := [][]seenResponse{
			{readFuzzed(bufio.NewReader(bytes.NewReader(first)), to.method)},
			// What the pod says too much may come so late that it is taken for the
			// beginning of its next response, as it is without a resolver.
			{readFuzzed(bufio.NewReader(bytes.NewReader(second)), to.method), readFuzzed(stream, to.method)},
		}
		pod := &fuzzedPod{first: string(first), second: string(second), piece: 1 + int(how>>2), closes: how&1 != 0}
		for _, a := range slices.Concat(want...) {
			// What ends with the connection, or is not whole, would be waited for.
			pod.closes = pod.closes || a.err != nil || a.close || a.status == http.StatusSwitchingProtocols
		}
		inTestbed(t, true, nil, func(w *testbed) {
			w.pod = pod.serve
			exchangeFuzzed(w, to.method, to.text, how&2 != 0, want)
		})
	})
}

// announces reports whether a text begins with an interim response.
func announces(text []byte) bool {
	_, status, _ := bytes.Cut(text, []byte(" "))
	return bytes.HasPrefix(bytes.TrimLeft(status, " "), []byte("1"))
}

// exchangeFuzzed sends a request as often as there are responses to come, and
// compares each with those that it may be.
func exchangeFuzzed(w *testbed, method, request string, pipelined bool, want [][]seenResponse) {
	t := w.t
	client := w.client()
	reader := bufio.NewReader(client)
	if pipelined {
		send(t, client, strings.Repeat(request, len(want)))
	}
	for i, candidates := range want {
		if !pipelined {
			send(t, client, request)
		}
		got := readFuzzed(reader, method)
		difference := ""
		for _, candidate := range candidates {
			if difference = differs(candidate, got); difference == "" {
				break
			}
		}
		if difference != "" {
			t.Fatalf("response %d to %q: %s", i+1, request, difference)
		}
		if got.close || got.err != nil || got.status == http.StatusSwitchingProtocols {
			expectEnd(t, reader, got.err)
			return
		}
	}
}

// expectEnd fails the test unless nothing more comes, after a reading that ended
// with an error, or whole.
func expectEnd(t *testing.T, reader *bufio.Reader, before error) {
	t.Helper()
	rest, err := io.ReadAll(reader)
	if before == nil && (err != nil || len(rest) > 0) {
		t.Fatalf("after the last response came %q, %v", rest, err)
	}
	if before != nil && errors.Is(before, io.ErrUnexpectedEOF) && len(rest) > 0 {
		t.Fatalf("after the end came %q", rest)
	}
}

// responseSeeds are responses whose ends are marked in different ways, or in two.
var responseSeeds = []string{
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok, and more",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 1\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\n\r\nuntil the end",
	"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nConnection: close, x-internal\r\nX-Internal: 1\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: timeout=1\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nConnection: close\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2;a=b;c=\"d\"\r\nok\r\n0;e\r\nX-Sum: 1\r\nX-Other: 2\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nContent-Length: 5\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2 \r\nok\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n00000002\r\nok\r\n000\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nok\n0\n\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\ntransfer-encoding: CHUNKED\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.0 200 OK\r\n\r\nuntil the end",
	"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"HTTP/1.1 204 No Content\r\n\r\n",
	"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
	"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n",
	"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n",
	"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
	"HTTP/1.1 102 Processing\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\nhello",
	"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\nContent-Length: 2\r\n\r\nhello",
	"HTTP/1.1 200 OK\r\nConnection: Upgrade\r\nUpgrade: chat\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 426 Upgrade Required\r\nUpgrade: chat\r\nConnection: upgrade, close\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1  200 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 99 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 999 \xff\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.2 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
	"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nX: \x01\x7f\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nX-Empty:\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\n: a\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\nContent-Le",
	"",
}
