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
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
)

// A header that is being read counts as what it takes, which is not much more than
// what was sent of it, and not after its end.
func TestHeaderThatIsReadIsCounted(t *testing.T) {
	const size = 10 << 10
	f := newFixture(t, nil)
	client := f.client()
	send(t, client, "GET / HTTP/1.1\r\nHost: cart\r\nX: "+strings.Repeat("x", size))
	eventually(t, func() bool { used := f.budget.Used(); return used >= size && used <= 2*size })
	send(t, client, "\r\n\r\n")
	f.held(1)
	if used := f.budget.Used(); used < size || used > 2*size {
		t.Errorf("held, %d bytes of header count as %d", size, used)
	}
	client.Close()
	eventually(t, func() bool { return f.budget.Used() == 0 })
}

// When there is no room for a header, its client gets a local reply.
func TestHeaderWithoutRoomIsRejected(t *testing.T) {
	inTestbed(t, true, nil, func(w *testbed) {
		here, there := sockettest.Pipe()
		w.keep(here)
		ended := make(chan struct{})
		account := memory.NewBudget(memory.Limits{Process: 10 << 10}).Open(nil)
		w.running.Go(func() {
			w.server.serve(w.t.Context(), there, nil, account, destination.Fixed(w.service, w.port), func() { close(ended) })
			<-ended
		})
		w.running.Go(func() { _, _ = io.WriteString(here, "GET / HTTP/1.1\r\nHost: cart\r\nX: "+strings.Repeat("x", 14<<10)) })
		response, _ := readResponse(w.t, bufio.NewReader(here), http.MethodGet)
		if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get(localreply.HeaderReason) != string(localreply.ReasonTooManyBytes) || !response.Close {
			w.t.Errorf("the client gets %d %v", response.StatusCode, response.Header)
		}
		here.Close()
		<-ended
		if used := account.Used(); used != 0 {
			w.t.Errorf("%d bytes still count", used)
		}
	})
}

// What waits for clients that do not read counts, and goes on in small pieces when
// there is no room for large ones.
func TestUnreadResponsesAreCounted(t *testing.T) {
	const clients, size = 4, 8 << 20
	f := newFixture(t, nil)
	body := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", size, strings.Repeat("x", size))
	f.pods(rawPod(t, func(conn *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"+body)
		}
	}))
	var conns []*net.TCPConn
	for range clients {
		conn := f.client()
		send(t, conn, get("/"))
		conns = append(conns, conn)
	}
	eventually(t, func() bool { return f.budget.Used() >= clients*wideSize })
	for _, conn := range conns {
		if _, got := readResponse(t, bufio.NewReader(conn), http.MethodGet); len(got) != size {
			t.Errorf("a client got %d bytes", len(got))
		}
		conn.Close()
	}
	eventually(t, func() bool { return f.budget.Used() == 0 })
}

// A client may begin its next request with the end of a body, and take its time for the
// rest.
func TestHeaderDoesNotKeepTheMemoryOfTheBodyBefore(t *testing.T) {
	const size = 4 << 20
	f := newFixture(t, nil)
	f.pods(httpPod(t, func(w http.ResponseWriter, request *http.Request) {
		n, _ := io.Copy(io.Discard, request.Body)
		fmt.Fprint(w, n)
	}))
	client := f.client()
	reader := bufio.NewReader(client)
	for range 3 {
		send(t, client, fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%sGET / HTTP/1.1\r\nHo", size, strings.Repeat("x", size)))
		if _, body := readResponse(t, reader, http.MethodPost); body != strconv.Itoa(size) {
			t.Fatalf("the pod got %q bytes", body)
		}
		eventually(t, func() bool { return f.budget.Used() < wideSize })
		send(t, client, "st: a\r\n\r\n")
		if _, body := readResponse(t, reader, http.MethodGet); body != "0" {
			t.Fatalf("the pod got %q bytes", body)
		}
	}
}

func TestBufferWithoutRoomStaysSmall(t *testing.T) {
	budget := memory.NewBudget(memory.Limits{Process: 2*wideSize + bufferSize})
	here, there := sockettest.Pipe()
	defer here.Close()
	read := func(b *buffer) int {
		send(t, there, "x")
		if err := b.fill(here, wideSize); err != nil {
			t.Fatal(err)
		}
		return len(b.data)
	}
	account := budget.Open(nil)
	large, small := &buffer{filled: true, charge: account.Charge()}, &buffer{filled: true, charge: account.Charge()}
	if got := read(large); got != wideSize {
		t.Errorf("a buffer has %d bytes", got)
	}
	if got := read(small); got != bufferSize {
		t.Errorf("a buffer for which there is no room has %d bytes", got)
	}
	large.release()
	small.release()
	if used := budget.Used(); used != 0 {
		t.Errorf("%d bytes still count", used)
	}
}

// TestOpenRequestsAreCounted has a pod take long to respond to requests whose large
// headers were edited.
func TestOpenRequestsAreCounted(t *testing.T) {
	const requests, size, limit = 100, 14 << 10, 4 << 10
	f := newFixture(t, func(c *service.Config) { c.ClientHeader = v1alpha1.ClientAddressXForwardedFor })
	f.pods(rawPod(t, func(conn *net.TCPConn) { _ = socket.WaitClosed(conn) }))
	var conns []*net.TCPConn
	for range requests {
		conns = append(conns, f.client())
	}
	eventually(t, func() bool { return f.server.count() == requests })
	heap, counted := heapInUse(), f.budget.Used()
	message := get("/" + strings.Repeat("a", size))
	for _, conn := range conns {
		send(t, conn, message)
	}
	f.inFlight(requests)
	heap, counted = (heapInUse()-heap)/requests, (f.budget.Used()-counted)/requests
	t.Logf("an open request keeps %d bytes, which count as %d", heap, counted)
	if heap > counted+limit {
		t.Errorf("an open request keeps %d bytes, which count as %d", heap, counted)
	}
	for _, conn := range conns {
		conn.Close()
	}
	eventually(t, func() bool { return f.budget.Used() == 0 })
}

func (s *Server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// heapInUse returns the bytes of live heap, after a collection.
func heapInUse() int64 {
	// What pools let go is free only after a second one.
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
