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
	"fmt"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// TestLocalRepliesAreLiteral checks that a local reply changes nothing in the table of the
// client's decoder, also when the size of the table has to be sent.
func TestLocalRepliesAreLiteral(t *testing.T) {
	for name, size := range map[string]uint32{"a table as usual": initialTableSize, "a table of 0": 0, "a small table": 100} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			w := dialWire(t, f.address, http2.Setting{ID: http2.SettingHeaderTableSize, Val: size})
			w.headers(1, true, get("user-agent", "kube-probe/1")...)
			f1 := await[*http2.HeadersFrame](w)
			first := f1.HeaderBlockFragment()[0]
			if updates := first&0xe0 == 0x20; updates != (size < initialTableSize) {
				t.Errorf("the block begins with %#x", first)
			}
			fields := w.decode(f1)
			if fields[":status"] != "503" || fields["x-elasti-answer"] != string(localreply.ReasonAsleep) {
				t.Errorf("got %v", fields)
			}
			if _, err := w.decoder.DecodeFull([]byte{0x80 | 62}); err == nil {
				t.Error("there is something in the table")
			}
		})
	}
}

// TestLocalRepliesKeepToTheWindow checks that a body is sent only where the client has
// granted more than the pod will count on.
func TestLocalRepliesKeepToTheWindow(t *testing.T) {
	for name, test := range map[string]struct {
		initial, grant uint32
		body           bool
	}{
		"no more than at the beginning": {65535, 0, false},
		"more for the connection":       {65535, 100_000, true},
		"nothing for the stream":        {0, 100_000, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			w := dialWire(t, f.address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: test.initial})
			if test.grant > 0 {
				w.do(w.WriteWindowUpdate(0, test.grant))
			}
			w.headers(1, true, get("user-agent", "kube-probe/1")...)
			headers := await[*http2.HeadersFrame](w)
			fields := w.decode(headers)
			if headers.StreamEnded() == test.body || (fields["content-length"] != "") != test.body {
				t.Errorf("ended: %v, fields %v", headers.StreamEnded(), fields)
			}
			if test.body {
				if data := await[*http2.DataFrame](w); !data.StreamEnded() || fmt.Sprint(len(data.Data())) != fields["content-length"] {
					t.Errorf("%d bytes, ended %v", len(data.Data()), data.StreamEnded())
				}
			}
			// The pod is granted exactly what is left.
			granted := make(chan uint32, 1)
			f.pods(rawPod(t, func(pod *wire) {
				if !pod.greet() {
					return
				}
				sum := uint32(0)
				pod.events(func(frame http2.Frame) {
					switch frame := frame.(type) {
					case *http2.WindowUpdateFrame:
						if frame.StreamID == 0 {
							sum += frame.Increment
						}
					case *http2.HeadersFrame:
						granted <- sum
					}
				})
			}))
			w.headers(3, true, get()...)
			want := test.grant
			if test.body {
				var length uint32
				if _, err := fmt.Sscan(fields["content-length"], &length); err != nil {
					t.Error(err)
				}
				want -= length
			}
			if got := <-granted; got != want {
				t.Errorf("the pod was granted %d, want %d", got, want)
			}
		})
	}
}

// TestAnotherAuthorityIsMisdirected sends a request for another service than that of the
// first request, which the connection belongs to.
func TestAnotherAuthorityIsMisdirected(t *testing.T) {
	f := newFixture(t, nil)
	other := service.New(service.Options{Namespace: "shop", Name: "other", PublicService: "other", Logger: klog.Background(),
		Config: &service.Config{}, Budget: memory.NewBudget(memory.Limits{Process: 1 << 20})})
	t.Cleanup(other.Close)
	f.mu.Lock()
	f.find = func(field func(string) []string) (*service.Service, service.Port, *localreply.Reply) {
		host := strings.Join(field("Host"), "")
		switch host {
		case "cart", "cart.shop":
			return f.service, service.Port{Number: 80}, nil
		case "other":
			return other, service.Port{Number: 80}, nil
		}
		return nil, service.Port{}, localreply.New(http.StatusMisdirectedRequest, localreply.ReasonUnknownHost, "unknown")
	}
	f.mu.Unlock()
	f.pods(httpPod(t, func(http.ResponseWriter, *http.Request) {}))
	w := dialWire(t, f.address)
	for i, test := range []struct{ host, status string }{{"unknown", "421"}, {"cart", "200"}, {"other", "421"}, {"cart.shop", "200"}} {
		w.headers(uint32(2*i+1), true, ":method", "GET", ":scheme", "http", ":path", "/", ":authority", test.host)
		if got := w.decode(await[*http2.HeadersFrame](w))[":status"]; got != test.status {
			t.Errorf("%s: %s, want %s", test.host, got, test.status)
		}
	}
}
