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
	"net/http"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
)

// An h2c upgrade request that is held, with a body or without, reaches a pod as it does
// when it is not held.
func TestUpgradeToHTTP2WhileHeld(t *testing.T) {
	const upgradeFields = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
	for name, rest := range map[string]string{
		"without a body":   "\r\n",
		"with a body":      "Content-Length: 4\r\n\r\nbody",
		"a body in chunks": "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
	} {
		for appProtocol, fields := range map[string]string{"": "", "http": "", "kubernetes.io/h2c": upgradeFields} {
			t.Run(name+", "+appProtocol, func(t *testing.T) {
				inTestbed(t, false, nil, func(w *testbed) {
					const line = "POST / HTTP/1.1\r\nHost: a\r\n"
					w.port.AppProtocol = appProtocol
					w.pod = func(conn *sockettest.Conn) {
						expect(t, conn, line+fields+rest)
						respondWith(conn, "plain")
					}
					client := w.client()
					send(t, client, line+upgradeFields+rest)
					w.held(1)
					w.wake()
					if _, got := readResponse(t, bufio.NewReader(client), http.MethodPost); got != "plain" {
						t.Errorf("got %q", got)
					}
				})
			})
		}
	}
}
