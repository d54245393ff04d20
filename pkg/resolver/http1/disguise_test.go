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
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
)

// Lengths that are written so that one reader sees them and another does not are
// rejected, and no byte of the message reaches a pod.
func TestDisguisedLengthsAreRejected(t *testing.T) {
	for name, test := range map[string]struct {
		request string
		status  int
	}{
		"both lengths in odd case":            {"POST / HTTP/1.1\r\nhOsT: a\r\ncOnTeNt-lEnGtH: 4\r\ntRaNsFeR-eNcOdInG: ChUnKeD\r\n\r\n0\r\n\r\n", http.StatusBadRequest},
		"two lengths in different case":       {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\ncontent-length: 5\r\n\r\nabcde", http.StatusBadRequest},
		"an encoding with a comma":            {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked,\r\n\r\n0\r\n\r\n", http.StatusNotImplemented},
		"an encoding in quotes":               {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", http.StatusNotImplemented},
		"an encoding with a parameter":        {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", http.StatusNotImplemented},
		"a list of encodings":                 {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", http.StatusNotImplemented},
		"no encoding":                         {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\nContent-Length: 4\r\n\r\nabcd", http.StatusNotImplemented},
		"a length of two numbers":             {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4 4\r\n\r\nabcd", http.StatusBadRequest},
		"a tab before the colon":              {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length\t: 4\r\n\r\nabcd", http.StatusBadRequest},
		"a field name with a control byte":    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length\x01: 4\r\n\r\nabcd", http.StatusBadRequest},
		"a NUL in the target":                 {"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n", http.StatusBadRequest},
		"a carriage return before the target": {"GET \r/ HTTP/1.1\r\nHost: a\r\n\r\n", http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.pods(rawPod(t, func(conn *net.TCPConn) {
				if got, _ := io.ReadAll(conn); len(got) > 0 {
					t.Errorf("the pod received %q", got)
				}
			}))
			conn := f.client()
			// What follows must not be taken for a request either.
			send(t, conn, test.request+"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
			reader := bufio.NewReader(conn)
			response, _ := readResponse(t, reader, http.MethodPost)
			if response.StatusCode != test.status || response.Header.Get(localreply.HeaderReason) == "" {
				t.Errorf("got %d %v, want %d", response.StatusCode, response.Header, test.status)
			}
			if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
				t.Errorf("after the response came %q, %v", rest, err)
			}
		})
	}
}
