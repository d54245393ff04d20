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
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// TestPodLearnsTheAddressOfTheClient opens a stream that is held, and one that is not.
func TestPodLearnsTheAddressOfTheClient(t *testing.T) {
	for header, want := range map[v1alpha1.ClientAddressHeader]string{
		v1alpha1.ClientAddressNone:          "203.0.113.7|10.0.0.1 for=203.0.113.7",
		v1alpha1.ClientAddressXForwardedFor: "203.0.113.7, 10.0.0.1, 127.0.0.1 for=203.0.113.7",
		v1alpha1.ClientAddressForwarded:     "203.0.113.7|10.0.0.1 for=203.0.113.7, for=127.0.0.1",
	} {
		t.Run(string(header), func(t *testing.T) {
			f := newFixture(t, func(c *service.Config) { c.ClientHeader = header })
			w := dialWire(t, f.address)
			fields := get("x-forwarded-for", "203.0.113.7", "a", "1", "forwarded", "for=203.0.113.7", "x-forwarded-for", "10.0.0.1")
			w.headers(1, true, fields...)
			f.held(1)
			f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Seen", strings.Join(r.Header["X-Forwarded-For"], "|")+" "+strings.Join(r.Header["Forwarded"], "|"))
				w.Header().Set("Kept", r.Header.Get("A"))
			}))
			for id := uint32(1); id < 5; id += 2 {
				if id > 1 {
					w.headers(id, true, fields...)
				}
				if got := w.decode(await[*http2.HeadersFrame](w)); got["seen"] != want || got["kept"] != "1" {
					t.Errorf("in stream %d the pod sees %q, want %q", id, got["seen"], want)
				}
			}
		})
	}
}

// TestTrailersOfAHeldRequestPassAsTheyAre checks that the address of the client is not
// added to them.
func TestTrailersOfAHeldRequestPassAsTheyAre(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.ClientHeader = v1alpha1.ClientAddressXForwardedFor })
	w := dialWire(t, f.address)
	w.headers(1, false, post("trailer", "sum, x-forwarded-for")...)
	w.headers(1, true, "sum", "7")
	// The trailers are held once this is acknowledged.
	w.do(w.WritePing(false, [8]byte{}))
	await[*http2.PingFrame](w)
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Sum", r.Trailer.Get("Sum"))
		w.Header().Set("Added", r.Trailer.Get("X-Forwarded-For"))
	}))
	if got := w.decode(await[*http2.HeadersFrame](w)); got["sum"] != "7" || got["added"] != "" {
		t.Errorf("the trailers are sum %q and x-forwarded-for %q", got["sum"], got["added"])
	}
}
