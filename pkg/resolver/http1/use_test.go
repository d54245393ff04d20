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
	"testing/synctest"

	resolveractivity "github.com/truefoundry/elasti-apiserver/pkg/resolver/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/fallback"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// Where the controller decides by the traffic, a passive request does not count as use of
// an awake target. Another one does, until it ends.
func TestPassiveRequestIsNoUse(t *testing.T) {
	for name, test := range map[string]struct {
		agent  string
		needed bool
		want   bool
	}{
		"a scraper":                         {"kube-probe/1.37", true, false},
		"a client":                          {"curl/8", true, true},
		"a scraper, whose use is not known": {"kube-probe/1.37", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			inTestbed(t, true, func(_ *service.Config, options *Options) {
				options.Fallback = &fallback.Policy{PassiveUserAgents: []string{"kube-probe/"}}
			}, func(w *testbed) {
				traffic := w.service.Traffic()
				traffic.Apply(resolveractivity.Policy{Report: test.needed})
				w.serveHTTP(func(http.ResponseWriter, *http.Request) {
					if used := traffic.Open() == 1; used != test.want {
						t.Errorf("it counts as use while the pod responds: %t", used)
					}
				})
				client := w.client()
				send(t, client, "GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: "+test.agent+"\r\n\r\n")
				readResponse(t, bufio.NewReader(client), http.MethodGet)
				synctest.Wait()
				if traffic.Open() != 0 || traffic.Ended() != test.want {
					t.Errorf("%d requests count as use, one did: %t", traffic.Open(), traffic.Ended())
				}
			})
		})
	}
}
