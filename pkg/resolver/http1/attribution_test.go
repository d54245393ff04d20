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

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
)

// A request whose header is rejected is attributed by its own fields or by none:
// never by those of the request before, whose memory others have by then.
func TestRejectedHeaderIsNotAttributedByAnotherRequest(t *testing.T) {
	inTestbed(t, true, nil, func(w *testbed) {
		w.pod = func(conn *sockettest.Conn) {
			expect(t, conn, get("/"))
			respondWith(conn, "ok")
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}
		var hosts [][]string
		find := func(field func(string) []string) (*service.Service, service.Port, *localreply.Reply) {
			hosts = append(hosts, field("Host"))
			return destination.Fixed(w.service, w.port)(field)
		}
		here, there := sockettest.Pipe()
		w.keep(here)
		ended := make(chan struct{})
		w.running.Go(func() {
			w.server.serve(t.Context(), there, nil, nil, find, func() { close(ended) })
			<-ended
		})
		reader := bufio.NewReader(here)
		send(t, here, get("/"))
		readResponse(t, reader, http.MethodGet)
		w.running.Go(func() {
			// It is rejected before all of it was read.
			_, _ = here.Write([]byte("GET / HTTP/1.1\r\nX: " + strings.Repeat("a", 17<<10) + "\r\n\r\n"))
		})
		if response, _ := readResponse(t, reader, http.MethodGet); response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Fatalf("got %d", response.StatusCode)
		}
		if len(hosts) != 2 || len(hosts[0]) != 1 || len(hosts[1]) != 0 {
			t.Errorf("the hosts that were routed are %q", hosts)
		}
	})
}
