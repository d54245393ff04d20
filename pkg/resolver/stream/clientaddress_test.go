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

package stream

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/clientaddress"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/sniff"
)

// proxied returns a pod that waits for a PROXY protocol header, sends it back and then
// echoes.
func proxied(t *testing.T) string {
	t.Helper()
	return resolvertest.Listen(t, func(conn *net.TCPConn) {
		if _, err := io.CopyN(conn, conn, int64(len(headerOf(conn)))); err != nil {
			return
		}
		echo(conn)
	})
}

// headerOf returns the header that a pod gets for the connection of a client.
func headerOf(client *net.TCPConn) string {
	return string(clientaddress.AppendProxyHeader(nil, endOf(client.LocalAddr()), endOf(client.RemoteAddr())))
}

// TestPodsGetTheAddressOfTheClientFirst connects as a client that speaks first, which is
// held, and as one that waits for the server, which waits for the header.
func TestPodsGetTheAddressOfTheClientFirst(t *testing.T) {
	tune := func(c *service.Config) { c.ProxyProtocol = true }
	t.Run("held", func(t *testing.T) {
		f := newFixture(t, tuning{change: tune})
		conn := f.Client()
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		f.Held(1)
		f.Pods(proxied(t))
		expect(t, conn, headerOf(conn)+"hello")
	})
	t.Run("silent", func(t *testing.T) {
		f := newFixture(t, tuning{change: tune, greeting: time.Hour, greets: sniff.EitherGreets})
		f.Pods(proxied(t))
		conn := f.Client()
		expect(t, conn, headerOf(conn))
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		expect(t, conn, "hello")
	})
}
