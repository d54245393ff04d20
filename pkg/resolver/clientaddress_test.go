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
	"strings"
	"sync/atomic"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// TestProbesCarryNoClientAddress wakes a pod that is not ready, and whose connections
// begin with the address of a client: the resolver probes it as the kubelet does,
// which knows of no client.
func TestProbesCarryNoClientAddress(t *testing.T) {
	port := freePort(t)
	es := elastiService("db", port)
	es.Status.ProxyPorts[0].AppProtocol = "tcp"
	es.Status.ReadinessProbes = &v1alpha1.ReadinessProbes{}
	es.Spec.Proxy = &v1alpha1.ProxySpec{ClientAddress: &v1alpha1.ClientAddressSpec{ProxyProtocol: true}}
	c := newCluster(t, nil, es)
	var probes atomic.Int32
	address := resolvertest.Listen(t, func(conn *net.TCPConn) {
		first := make([]byte, len("\r\n\r\n\x00\r\nQUIT\n"))
		if n, _ := io.ReadFull(conn, first); n == 0 {
			probes.Add(1)
			return
		}
		if string(first) != "\r\n\r\n\x00\r\nQUIT\n" {
			t.Errorf("a connection begins with %q", first)
		}
		_, _ = io.Copy(conn, conn)
	})
	wake := func(*v1alpha1.WakeRequest) error {
		go c.apply(slice(es, false, address))
		return nil
	}
	c.wake.Store(&wake)
	conn := resolvertest.Dial(t, fmt.Sprintf("127.0.0.1:%d", port))
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(got), "hello") {
		t.Errorf("got %q, %v", got, err)
	}
	c.eventually(func() bool { return probes.Load() > 0 })
}
