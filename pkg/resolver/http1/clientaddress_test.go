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
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// TestPodLearnsTheAddressOfTheClient sends requests that are held, and ones that are
// not. What the client wrote itself comes before its address, in one field.
func TestPodLearnsTheAddressOfTheClient(t *testing.T) {
	const ok, switched = "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello"
	for name, test := range map[string]struct {
		header      v1alpha1.ClientAddressHeader
		sent, want  string
		tail, reply string
	}{
		"off":           {v1alpha1.ClientAddressNone, "X-Forwarded-For: 203.0.113.7\r\n", "X-Forwarded-For: 203.0.113.7\r\n", "", ok},
		"nothing yet":   {v1alpha1.ClientAddressXForwardedFor, "", "X-Forwarded-For: 127.0.0.1\r\n", "", ok},
		"one before":    {v1alpha1.ClientAddressXForwardedFor, "x-forwarded-for: 203.0.113.7\r\nB: 2\r\n", "B: 2\r\nX-Forwarded-For: 203.0.113.7, 127.0.0.1\r\n", "", ok},
		"several":       {v1alpha1.ClientAddressXForwardedFor, "X-Forwarded-For: 203.0.113.7,203.0.113.8\r\nB: 2\r\nX-FORWARDED-FOR:\r\nX-Forwarded-For: \t10.0.0.1 \r\n", "B: 2\r\nX-Forwarded-For: 203.0.113.7,203.0.113.8, 10.0.0.1, 127.0.0.1\r\n", "", ok},
		"other header":  {v1alpha1.ClientAddressForwarded, "X-Forwarded-For: 203.0.113.7\r\nForwarded: for=203.0.113.7;proto=https\r\n", "X-Forwarded-For: 203.0.113.7\r\nForwarded: for=203.0.113.7;proto=https, for=127.0.0.1\r\n", "", ok},
		"body":          {v1alpha1.ClientAddressXForwardedFor, "Content-Length: 3\r\n", "Content-Length: 3\r\nX-Forwarded-For: 127.0.0.1\r\n", "abc", ok},
		"hop by hop":    {v1alpha1.ClientAddressXForwardedFor, "Connection: keep-alive, x-forwarded-for\r\n", "Connection: keep-alive\r\nX-Forwarded-For: 127.0.0.1\r\n", "", ok},
		"other options": {v1alpha1.ClientAddressXForwardedFor, "Connection:  keep-alive,X-A\r\n", "Connection:  keep-alive,X-A\r\nX-Forwarded-For: 127.0.0.1\r\n", "", ok},
		"WebSocket":     {v1alpha1.ClientAddressXForwardedFor, "Connection: Upgrade\r\nUpgrade: websocket\r\n", "Connection: Upgrade\r\nUpgrade: websocket\r\nX-Forwarded-For: 127.0.0.1\r\n", "", switched},
		"h2c": {v1alpha1.ClientAddressXForwardedFor, "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n", "X-Forwarded-For: 127.0.0.1\r\n",
			"", ok},
	} {
		t.Run(name, func(t *testing.T) {
			for _, held := range []bool{true, false} {
				f := newFixture(t, func(c *service.Config) { c.ClientHeader = test.header })
				const line = "POST / HTTP/1.1\r\nHost: cart\r\n"
				pod := scriptPod(t, line+test.want+"\r\n"+test.tail, test.reply)
				if !held {
					f.pods(pod)
				}
				conn := f.client()
				send(t, conn, line+test.sent+"\r\n"+test.tail)
				if held {
					f.held(1)
					f.pods(pod)
				}
				expect(t, conn, test.reply[:len("HTTP/1.1 204")])
			}
		})
	}
}
