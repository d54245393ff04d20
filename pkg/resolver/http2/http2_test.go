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
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// TestUserAgentsThatDoNotWake sends local replies to the configured ones while the target
// sleeps, and forwards theirs as any other once it is awake.
func TestUserAgentsThatDoNotWake(t *testing.T) {
	f := newFixture(t, nil)
	client := f.client()
	query := func(agent string) *http.Response {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.address+"/", nil)
		if err != nil {
			t.Error(err)
			return &http.Response{}
		}
		request.Header.Set("User-Agent", agent)
		response, err := client.Do(request)
		if err != nil {
			t.Error(err)
			return &http.Response{}
		}
		response.Body.Close()
		return response
	}
	passive := []string{"kube-probe/1.37", "Monitor 2 (https://example.com)"}
	for _, agent := range passive {
		response := query(agent)
		if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get(localreply.HeaderReason) != string(localreply.ReasonAsleep) {
			t.Errorf("%q gets %d %v", agent, response.StatusCode, response.Header)
		}
	}
	if f.service.Queue().NeedsPod() {
		t.Error("a health check wakes the target")
	}

	held := make(chan *http.Response, 1)
	go func() { held <- query("Mozilla/5.0 (Monitor 2)") }()
	f.held(1)
	if !f.service.Queue().NeedsPod() {
		t.Error("another user agent does not wake the target")
	}
	f.pods(httpPod(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	if response := <-held; response.StatusCode != http.StatusNoContent {
		t.Errorf("the held request gets %d", response.StatusCode)
	}
	for _, agent := range passive {
		if response := query(agent); response.StatusCode != http.StatusNoContent {
			t.Errorf("%q gets %d though the target is awake", agent, response.StatusCode)
		}
	}
}

func TestLimitsNameThemselves(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.Limits.MaxPending = 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client := f.grpc()
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if _, err := client.UnaryCall(ctx, &testpb.SimpleRequest{}); err != nil {
			t.Errorf("the held call: %v", err)
		}
	})
	f.held(1)
	_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
	if got := status.Convert(err); got.Code() != codes.ResourceExhausted || !strings.Contains(got.Message(), "maxPending") {
		t.Errorf("gRPC got %v", err)
	}
	response, err := f.client().Get("http://" + f.address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" ||
		response.Header.Get(localreply.HeaderReason) != string(localreply.ReasonTooManyPending) || !bytes.Contains(body, []byte("maxPending")) {
		t.Errorf("HTTP got %d %v %s", response.StatusCode, response.Header, body)
	}
	f.pods(grpcPod(t))
	waiting.Wait()
}

func TestRequestsArriveAsTheyWereSent(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Trailer", "X-Declared")
		w.Header().Set("X-Seen", fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.Host, " ", r.Header["X-A"], " ", r.UserAgent(), " ", r.Trailer.Get("X-T")))
		fmt.Fprintf(w, "%d", len(body))
		w.Header().Set("X-Declared", "1")
		w.Header().Set(http.TrailerPrefix+"X-Undeclared", "2")
	}))
	const size = 4 << 20
	for _, path := range []string{"/", "/a%2Fb/../c?x=%20&y", "//double//slash?z", "/?"} {
		request, err := http.NewRequest(http.MethodPut, "http://"+f.address+path, io.MultiReader(bytes.NewReader(make([]byte, size))))
		if err != nil {
			t.Fatal(err)
		}
		request.Host = "cart.example"
		request.Header["X-A"] = []string{"1", "2"}
		request.Header["User-Agent"] = []string{""}
		request.Trailer = http.Header{"X-T": {"t"}}
		response, err := f.client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(body) != fmt.Sprint(size) {
			t.Fatalf("got %q, %v", body, err)
		}
		if got, want := response.Header.Get("X-Seen"), fmt.Sprint("PUT ", path, " cart.example [1 2]  t"); got != want {
			t.Errorf("the pod saw %q, want %q", got, want)
		}
		if response.Trailer.Get("X-Declared") != "1" || response.Trailer.Get("X-Undeclared") != "2" {
			t.Errorf("the trailers are %v", response.Trailer)
		}
	}
}

// Clients of a service that no longer needs a resolver are told to reconnect,
// and lose nothing.
func TestServeModeMakesClientsReconnect(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.Mode = v1alpha1.ModeServe })
	f.pods(httpPod(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	client := f.client()
	for range 5 {
		response, err := client.Get("http://" + f.address)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(response.Body); err != nil || string(body) != "ok" {
			t.Fatalf("got %q, %v", body, err)
		}
		response.Body.Close()
	}
	f.eventually(func() bool { return f.conns.Load() > 1 })
}

func TestDrainFinishesOpenStreams(t *testing.T) {
	f := newFixture(t, nil)
	client := f.client()
	responded := make(chan error, 1)
	go func() {
		response, err := client.Get("http://" + f.address)
		if err == nil {
			_, err = io.ReadAll(response.Body)
			response.Body.Close()
		}
		responded <- err
	}()
	f.held(1)
	f.server.Drain()
	f.pods(httpPod(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	if err := <-responded; err != nil {
		t.Fatal(err)
	}
}

func TestPodThatBreaksInTheMiddle(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/early" {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, "part")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	client := f.client()
	var reset http2.StreamError
	if _, err := client.Get("http://" + f.address + "/early"); !errors.As(err, &reset) || reset.Code != http2.ErrCodeInternal {
		t.Errorf("a stream that the pod resets ends with %v", err)
	}
	response, err := client.Get("http://" + f.address + "/late")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("read %q as if it were complete", body)
	}
}
