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
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// openFiles returns how many files the process has open.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestConnectionsAreBoundedByOpenFiles opens connections to two services until
// both are rejected. Each of those that are open has one to a pod, and there are
// files left.
func TestConnectionsAreBoundedByOpenFiles(t *testing.T) {
	if !resolvertest.InOwnProcess(t, false) {
		return
	}
	const files = 256
	ports := []int32{freePort(t), freePort(t)}
	first, second := elastiService("cart", ports[0]), elastiService("till", ports[1])
	first.Status.ProxyPorts[0].AppProtocol, second.Status.ProxyPorts[0].AppProtocol = "http", "http"
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, nil, first, second)
	// The clients and the pods are in this process too, and need files of their own.
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	address := resolvertest.ListenHTTP(t, func(http.ResponseWriter, *http.Request) {})
	c.apply(slice(first, true, address))
	c.apply(slice(second, true, address))
	var clients []net.Conn
	for _, port := range ports {
		c.eventually(func() bool { status, _, _ := fetch(port, "/"); return status == http.StatusOK })
		opened := c.openUntilRejected(port)
		if len(opened) == 0 {
			t.Error("a service has no connection at all")
		}
		clients = append(clients, opened...)
	}
	// Each client has two files that are not those of the resolver: its own, and that
	// of the pod.
	if used := openFiles(t) - 2*len(clients); used > files || used < files/2 {
		t.Errorf("a resolver that may have %d files open has %d, with %d connections", files, used, len(clients))
	}
	if got := c.counter("elasti_resolver_local_faults_total", "kind", "descriptors"); got != 0 {
		t.Errorf("%v times there was no file left", got)
	}
}

// openUntilRejected opens connections to a port, each of which a pod responds on
// and stays open, until one is reset.
func (c *cluster) openUntilRejected(port int32) (opened []net.Conn) {
	c.t.Helper()
	for {
		// The reset may be faster than the client.
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return opened
		}
		c.t.Cleanup(func() { conn.Close() })
		_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: cart\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return opened
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			c.t.Fatalf("connection %d gets %d", len(opened)+1, response.StatusCode)
		}
		opened = append(opened, conn)
	}
}
