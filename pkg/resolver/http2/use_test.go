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

package http2

import (
	"net/http"
	"testing"

	"golang.org/x/net/http2"

	resolveractivity "github.com/truefoundry/elasti-apiserver/pkg/resolver/activity"
)

// Where the controller decides by the traffic, a passive stream does not count as use of
// an awake target. Another one does, until it ends.
func TestPassiveStreamIsNoUse(t *testing.T) {
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
			f := newFixture(t, nil)
			traffic := f.service.Traffic()
			traffic.Apply(resolveractivity.Policy{Report: test.needed})
			f.pods(httpPod(t, func(http.ResponseWriter, *http.Request) {
				if used := traffic.Open() == 1; used != test.want {
					t.Errorf("it counts as use while the pod responds: %t", used)
				}
			}))
			w := dialWire(t, f.address)
			w.headers(1, true, get("user-agent", test.agent)...)
			if got := w.decode(await[*http2.HeadersFrame](w)); got[":status"] != "200" {
				t.Errorf("it gets %v", got)
			}
			f.ended(1)
			f.eventually(func() bool { return traffic.Open() == 0 })
			if traffic.Ended() != test.want {
				t.Errorf("it counted as use: %t", traffic.Ended())
			}
		})
	}
}

// A stream that is held counts as use until its client resets it.
func TestHeldStreamIsUseUntilItEnds(t *testing.T) {
	f := newFixture(t, nil)
	w := dialWire(t, f.address)
	w.headers(1, true, get()...)
	f.held(1)
	if open := f.service.Traffic().Open(); open != 1 {
		t.Errorf("%d streams count as use", open)
	}
	w.do(w.WriteRSTStream(1, http2.ErrCodeCancel))
	f.eventually(func() bool { return f.service.Traffic().Open() == 0 })
}
