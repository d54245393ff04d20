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
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// TestIdleConnectionsGiveBackTheirBuffers has connections carry large chunked
// bodies both ways and then rest: what they keep is little beside one buffer of a
// body, and what they count for is not less.
func TestIdleConnectionsGiveBackTheirBuffers(t *testing.T) {
	const connections = 500
	// A body buffer has 64 KiB, and a resolver would need two of them.
	var limit int64 = 16 << 10
	if raceDetector {
		limit = 48 << 10
	}
	port := freePort(t)
	es := elastiService("web", port)
	es.Status.ProxyPorts[0].AppProtocol = "http"
	c := newCluster(t, func(o *Options) { o.Timeouts.Idle = time.Hour }, es)
	c.apply(slice(es, true, resolvertest.Listen(t, respondInChunks)))
	c.eventually(func() bool { status, _, _ := fetch(port, "/"); return status == http.StatusOK })
	message := "POST / HTTP/1.1\r\nHost: web\r\n" + chunkedBody
	heapBefore, stacksBefore := memoryInUse()
	countedBefore := c.metric("elasti_resolver_held_bytes")
	var fds []int
	for range connections {
		fds = append(fds, exchangeRaw(t, port, message))
	}
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	each := func() (kept, counted int64) {
		heap, stacks := memoryInUse()
		return (int64(heap) + int64(stacks) - int64(heapBefore) - int64(stacksBefore)) / connections,
			int64(c.metric("elasti_resolver_held_bytes")-countedBefore) / connections
	}
	var kept, counted int64
	c.eventually(func() bool { kept, counted = each(); return kept <= limit })
	t.Logf("an idle connection keeps %d bytes, and counts for %d", kept, counted)
	if kept > limit {
		t.Errorf("an idle connection keeps %d bytes, more than %d", kept, limit)
	}
	if counted < connectionBytes {
		t.Errorf("it counts for %d bytes", counted)
	}
}

// chunkedBody is larger than any buffer.
var chunkedBody = fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", 256<<10, strings.Repeat("x", 256<<10))

// respondInChunks is a pod that keeps no buffer after a request.
func respondInChunks(conn *net.TCPConn) {
	if exchangeInChunks(conn) {
		// The end of the connection is all that comes next.
		_, _ = conn.Read(make([]byte, 1))
	}
}

func exchangeInChunks(conn *net.TCPConn) bool {
	request, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return false
	}
	if _, err := io.Copy(io.Discard, request.Body); err != nil {
		return false
	}
	_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\n"+chunkedBody)
	return err == nil
}

// exchangeRaw sends a request as rawRequest does, and reads the response.
func exchangeRaw(t *testing.T, port int32, message string) (fd int) {
	t.Helper()
	fd = rawRequest(t, port, message)
	buffer := make([]byte, 64<<10)
	for left := len("HTTP/1.1 200 OK\r\n" + chunkedBody); left > 0; {
		n, err := unix.Read(fd, buffer)
		if err != nil || n == 0 {
			t.Fatalf("reading a response: %d bytes, %v", n, err)
		}
		left -= n
	}
	return fd
}
