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

package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// A response of another server than the application is a failure.
func TestColdStartWithAResponseOfAnotherServerIsAFailure(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	app := &cluster.Application{Name: "web", Address: server.Listener.Addr().String()}
	times, err := burst(t.Context(), app, 3)
	if err == nil || times.failed != 3 {
		t.Fatalf("%d of 3 requests failed: %v", times.failed, err)
	}
	if text := err.Error(); strings.Contains(text, "%!") || !strings.Contains(text, "status 404") {
		t.Errorf("the error does not have the response: %s", text)
	}
}

func TestColdStartWithoutAResponseIsAFailure(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	_, err = burst(t.Context(), &cluster.Application{Name: "web", Address: address}, 2)
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the error is %v", err)
	}
}

func TestEstablishedConnectionsAreCountedByTheirLocalPort(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:4E21 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0500F40A:4E21 015F5F0A:9C40 01 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 0500F40A:4E21 015F5F0A:9C41 06 00000000:00000000 00:00000000 00000000     0        0 0 1
   3: 0500F40A:4E22 015F5F0A:9C42 01 00000000:00000000 00:00000000 00000000     0        0 3 1
   4: 0500F40A:9C43 015F5F0A:4E21 01 00000000:00000000 00:00000000 00000000     0        0 4 1
`
	if count := countEstablished(table, map[uint64]bool{0x4e21: true}); count != 1 {
		t.Errorf("%d connections, want 1", count)
	}
}
