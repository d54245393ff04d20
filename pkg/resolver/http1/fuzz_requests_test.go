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
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
)

// received is what a server that reads with net/http makes of a request.
type received struct {
	method, target, host string
	header, trailer      http.Header
	encoding             []string
	body                 string
	// last is true when the client lets the connection end.
	last bool
}

// receive reads a request, after any empty lines.
func receive(reader *bufio.Reader) (received, error) {
	for {
		start, err := reader.Peek(2)
		if err != nil || string(start) != "\r\n" {
			break
		}
		_, _ = reader.Discard(len(start))
	}
	request, body, err := readRequest(reader)
	if err != nil {
		return received{}, err
	}
	header := endToEnd(request.Header)
	// An h2c upgrade request is taken out.
	header.Del("Upgrade")
	header.Del("Http2-Settings")
	return received{
		method: request.Method, target: request.RequestURI, host: request.Host, header: header, trailer: request.Trailer,
		encoding: request.TransferEncoding, body: body, last: request.Close,
	}, nil
}

// receiveAll returns the requests of a connection up to the last or the first
// that is malformed.
func receiveAll(data []byte) (all []received) {
	reader := bufio.NewReader(bytes.NewReader(data))
	for {
		request, err := receive(reader)
		if err != nil {
			return all
		}
		all = append(all, request)
		if request.last {
			return all
		}
	}
}

// numberingPod responds to each request with its number.
type numberingPod struct {
	mu       sync.Mutex
	requests []received
}

func (p *numberingPod) serve(conn *sockettest.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for {
		request, err := receive(reader)
		if err != nil {
			return
		}
		p.mu.Lock()
		number := len(p.requests)
		p.requests = append(p.requests, request)
		p.mu.Unlock()
		if _, err := fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nX-Number: %d\r\nContent-Length: 0\r\n\r\n", number); err != nil {
			return
		}
	}
}

// FuzzRequests has a client send anything and finish. The pod gets the requests
// that net/http makes of these bytes, from the first one on, each gets a response once
// and in its turn, and the client gets a rejection when the rest is not forwarded.
func FuzzRequests(f *testing.F) {
	const plain = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	for i, text := range requestSeeds {
		f.Add(byte(i), []byte(text))
		f.Add(byte(5*i), []byte(plain+text+plain))
	}
	f.Fuzz(func(t *testing.T, how byte, data []byte) {
		want := receiveAll(data)
		inTestbed(t, true, nil, func(w *testbed) {
			t := w.t
			pod := &numberingPod{}
			w.pod = pod.serve
			client := w.client()
			w.running.Go(func() {
				for piece := range slices.Chunk(data, 1+int(how)) {
					if _, err := client.Write(piece); err != nil {
						return
					}
				}
				_ = client.CloseWrite()
			})
			responses, rejected := readNumbers(t, bufio.NewReader(client), want)
			pod.mu.Lock()
			defer pod.mu.Unlock()
			if responses != len(pod.requests) {
				t.Errorf("%d requests of %q reached the pod, and %d got a response", len(pod.requests), data, responses)
			}
			if len(pod.requests) > len(want) {
				t.Fatalf("of %q, the pod got %+v, and net/http reads only %+v", data, pod.requests, want)
			}
			for i, got := range pod.requests {
				if !reflect.DeepEqual(got, want[i]) {
					t.Errorf("request %d of %q is %+v at the pod, and for net/http %+v", i, data, got, want[i])
				}
			}
			if len(pod.requests) < len(want) && !rejected {
				t.Errorf("%d of %d requests of %q were not forwarded, and none was rejected", len(want)-len(pod.requests), len(want), data)
			}
		})
	})
}

// readNumbers reads responses up to the end of a connection, checks their numbers, and
// reports whether the last of them is a rejection.
func readNumbers(t *testing.T, reader *bufio.Reader, requests []received) (responses int, rejected bool) {
	t.Helper()
	for {
		method := http.MethodGet
		if responses < len(requests) {
			method = requests[responses].method
		}
		response, err := http.ReadResponse(reader, &http.Request{Method: method})
		if err != nil {
			return responses, rejected
		}
		if rejected && method != http.MethodHead {
			t.Errorf("%d comes after a rejection that closes the connection", response.StatusCode)
		}
		if rejected = rejected || response.Header.Get(localreply.HeaderReason) != ""; rejected {
			// It has no body if it is to a HEAD that net/http does not read.
			_, _ = io.Copy(io.Discard, response.Body)
			continue
		}
		if number := response.Header.Get("X-Number"); number != fmt.Sprint(responses) {
			t.Errorf("response %d has the number %s", responses, number)
		}
		responses++
	}
}

// requestSeeds are requests whose ends are marked in different ways, or in two.
var requestSeeds = []string{
	"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET /%2e/../a?b=c&d#e HTTP/1.1\r\nhOsT:  a \r\nX-B:\r\nX-b: \t1\r\n\r\n",
	"HEAD / HTTP/1.1\r\nHost: a\r\n\r\nHEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
	"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
	"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET http://b/c HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET / HTTP/1.0\r\n\r\n",
	"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\nConnection: Keep-Alive, close\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\nConnection: x, close\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 04\r\n\r\nbody",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nbody",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 0\r\n\r\nbody",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 4\r\n\r\nbody",
	"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 28\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4;x=\"y\"\r\nbody\r\n0\r\nX-Sum: 1\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n0004\r\nbody\r\n00;z\r\nX-Sum: 1\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\tchunked\r\n\r\n4 \r\nbody\r\n0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
	"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\nbody\n0\n\n",
	"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody",
	"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\n",
	"GET / HTTP/1.1\nHost: a\n\n",
	"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
	"GET / HTTP/1.1\r\n\r\n",
	"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
	"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\nX: \x01\x7f\xff\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\nX",
	"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
	strings.Repeat("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok", 3),
}
