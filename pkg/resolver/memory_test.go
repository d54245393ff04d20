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
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// rawRequest sends a request over a connection that costs this process no memory
// but a file descriptor, so that what grows is what the resolver keeps.
func rawRequest(t *testing.T, port int32, message string) (fd int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, []byte(message)); err != nil {
		t.Fatal(err)
	}
	return fd
}

// memoryInUse returns the bytes of live heap and stacks, after a collection.
func memoryInUse() (heap, stacks uint64) {
	// What finalizers and pools let go is free only after a second one.
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc, stats.StackInuse
}

func TestAHeldRequestKeepsLittleMemory(t *testing.T) {
	const requests = 2000
	// Heap and stack. The budget of 8 KiB resident has to include garbage too.
	var limit int64 = 6 << 10
	if raceDetector {
		// Its code needs larger stacks.
		limit = 16 << 10
	}
	port := freePort(t)
	es := elastiService("web", port)
	// On a busy machine the first bytes may take long, and a client that said
	// nothing for so long would be held as a stream.
	c := newCluster(t, func(o *Options) { o.Timeouts.Sniff = time.Minute }, es)
	message := fmt.Sprintf("GET /held HTTP/1.1\r\nHost: 10.96.17.4:%d\r\nUser-Agent: test\r\nAccept: */*\r\n\r\n", port)
	held := func(number int) {
		c.eventually(func() bool { return int(c.metric("elasti_resolver_queued_count")) == number })
	}
	fds := []int{rawRequest(t, port, message)}
	held(1)
	heapBefore, stacksBefore := memoryInUse()
	for range requests {
		fds = append(fds, rawRequest(t, port, message))
	}
	held(requests + 1)
	heapAfter, stacksAfter := memoryInUse()
	for _, fd := range fds {
		unix.Close(fd)
	}
	held(0)
	heap, stacks := int64(heapAfter-heapBefore)/requests, int64(stacksAfter-stacksBefore)/requests
	t.Logf("a held request keeps %d bytes of heap and %d of stack", heap, stacks)
	if heap+stacks > limit {
		t.Errorf("a held request keeps %d bytes of heap and %d of stack, more than %d together", heap, stacks, limit)
	}
}

// TestAnIdleConnectionKeepsLittleOfItsLastRequest bounds what is kept for an idle
// connection after a large request.
func TestAnIdleConnectionKeepsLittleOfItsLastRequest(t *testing.T) {
	const connections, limit = 200, 4 << 10
	port := freePort(t)
	es := elastiService("web", port)
	c := newCluster(t, nil, es)
	// It keeps nothing of what it has read itself.
	c.apply(slice(es, true, resolvertest.Listen(t, func(conn *net.TCPConn) {
		part, last := make([]byte, 512), ""
		for {
			n, err := conn.Read(part)
			if err != nil {
				return
			}
			last += string(part[:n])
			last = strings.Clone(last[max(0, len(last)-4):])
			if last == "\r\n\r\n" {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
		}
	})))
	query := func(fd int, path string, fields string) {
		t.Helper()
		message := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: web\r\n%s\r\n", path, fields)
		if _, err := unix.Write(fd, []byte(message)); err != nil {
			t.Fatal(err)
		}
		// A whole response is at hand once its body is.
		for text := ""; !strings.HasSuffix(text, "\r\n\r\nok"); {
			part := make([]byte, 4<<10)
			n, err := unix.Read(fd, part)
			if err != nil || n == 0 {
				t.Fatalf("reading after %q: %d, %v", text, n, err)
			}
			text += string(part[:n])
		}
	}
	var fds []int
	for range connections {
		fd := rawRequest(t, port, "")
		query(fd, "/", "")
		fds = append(fds, fd)
	}
	before, _ := memoryInUse()
	for i, fd := range fds {
		query(fd, fmt.Sprintf("/%d/%s", i, strings.Repeat("a", 30<<10)), fmt.Sprintf("Traceparent: %d-%s\r\n", i, strings.Repeat("b", 25<<10)))
	}
	after, _ := memoryInUse()
	for _, fd := range fds {
		unix.Close(fd)
	}
	kept := (int64(after) - int64(before)) / connections
	t.Logf("an idle connection keeps %d bytes of its last request", kept)
	if kept > limit {
		t.Errorf("an idle connection keeps %d bytes of its last request, more than %d", kept, limit)
	}
}
