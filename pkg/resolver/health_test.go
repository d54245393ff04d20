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

package resolver

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// TestProbesGetResponsesWhateverAnotherSourceOpens has one source open connections to
// the health port that stay open: the oldest give way, those of another source stay.
func TestProbesGetResponsesWhateverAnotherSourceOpens(t *testing.T) {
	c := newCluster(t, nil)
	address := strings.TrimPrefix(c.health, "http://")
	request := func(conn net.Conn) {
		t.Helper()
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: resolver\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("got %s", response.Status)
		}
	}
	kept := resolvertest.DialFrom(t, "127.0.0.1", address)
	request(kept)
	var first net.Conn
	for range 100 {
		conn := resolvertest.DialFrom(t, "127.0.0.2", address)
		request(conn)
		if first == nil {
			first = conn
		}
	}
	resolvertest.AwaitEnd(t, first)
	request(kept)
	request(resolvertest.DialFrom(t, "127.0.0.1", address))
}
