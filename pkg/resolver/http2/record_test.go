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

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
)

// TestRecordsSayWhatBecameOfAStream checks the access log and the metrics of streams.
func TestRecordsSayWhatBecameOfAStream(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/download":
			_, _ = w.Write(make([]byte, 1<<20))
		case "/teapot":
			w.WriteHeader(http.StatusTeapot)
		case "/reset":
			panic(http.ErrAbortHandler)
		}
	}))
	w := dialWire(t, f.address)
	request := func(id uint32, path string) {
		w.headers(id, true, ":method", "GET", ":scheme", "http", ":path", path, ":authority", "cart", "traceparent", "00-1-2-01")
	}
	request(1, "/teapot?secret")
	await[*http2.HeadersFrame](w)
	f.ended(1)
	request(3, "/reset")
	await[*http2.RSTStreamFrame](w)
	f.ended(2)
	request(5, "/download")
	await[*http2.DataFrame](w)
	w.do(w.WriteRSTStream(5, http2.ErrCodeCancel))
	records := f.ended(3)
	for i, want := range []accesslog.Record{
		{Path: "/teapot", Status: 418, Outcome: accesslog.Forwarded},
		{Path: "/reset", Outcome: accesslog.Failed, Reason: "the pod reset the stream: INTERNAL_ERROR"},
		{Path: "/download", Status: 200, Outcome: accesslog.ClientGone},
	} {
		got := records[i]
		if got.Path != want.Path || got.Status != want.Status || got.Outcome != want.Outcome || got.Reason != want.Reason ||
			got.Protocol != accesslog.HTTP2 || got.TraceParent != "00-1-2-01" || got.Pod == "" || got.Client == "" || got.Released.IsZero() || got.Ended.IsZero() {
			t.Errorf("record %d is %+v", i, got)
		}
	}
	if out := records[2].BytesOut; out < 1 {
		t.Errorf("%d bytes went out", out)
	}
}
