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

package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddr("127.0.0.1")

func run(t *testing.T, action v1alpha1.ReadinessProbeAction) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return Run(ctx, Target{Address: loopback, Action: &action})
}

func portOf(address net.Addr) int32 { return int32(address.(*net.TCPAddr).Port) }

// The response to a probe costs the resolver memory that it needs for other
// services, so that a large one fails the probe.
func TestAResponseThatIsTooLargeFailsTheProbe(t *testing.T) {
	const size = 256 << 10
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Large", strings.Repeat("x", size))
	}))
	defer plain.Close()
	if err := run(t, v1alpha1.ReadinessProbeAction{HTTPGet: &v1alpha1.HTTPGetAction{Port: portOf(plain.Listener.Addr())}}); err == nil {
		t.Error("a probe succeeds with headers of 256 KiB")
	}
	for name, check := range map[string]func(context.Context) (*healthv1.HealthCheckResponse, error){
		"headers": func(ctx context.Context) (*healthv1.HealthCheckResponse, error) {
			return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, grpc.SetHeader(ctx, metadata.Pairs("x-large", strings.Repeat("x", size)))
		},
		"a message": func(context.Context) (*healthv1.HealthCheckResponse, error) {
			large := &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}
			large.ProtoReflect().SetUnknown(append([]byte{0x12, 0x80, 0x80, 0x10}, make([]byte, size)...))
			return large, nil
		},
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		healthv1.RegisterHealthServer(server, healthServer{check: check})
		var running sync.WaitGroup
		running.Go(func() { _ = server.Serve(listener) })
		err = run(t, v1alpha1.ReadinessProbeAction{GRPC: &v1alpha1.GRPCAction{Port: portOf(listener.Addr())}})
		server.Stop()
		running.Wait()
		if err == nil {
			t.Errorf("a probe succeeds with %s of 256 KiB", name)
		}
	}
}

// healthServer is a health service whose response is that of check.
type healthServer struct {
	healthv1.UnimplementedHealthServer
	check func(context.Context) (*healthv1.HealthCheckResponse, error)
}

func (s healthServer) Check(ctx context.Context, _ *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	return s.check(ctx)
}

func TestHTTP(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "/missing", http.StatusFound)
		case "/headers":
			if r.Host != "cart.example" || r.UserAgent() != "mine" || fmt.Sprint(r.Header["X-A"]) != "[1 2]" || r.URL.RawQuery != "q=1" {
				http.Error(w, fmt.Sprint(r.Host, r.Header, r.URL), http.StatusInternalServerError)
			}
		case "/missing":
			http.NotFound(w, r)
		}
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	for name, test := range map[string]struct {
		action v1alpha1.HTTPGetAction
		ready  bool
	}{
		"ok":          {v1alpha1.HTTPGetAction{Path: "/ok", Port: portOf(plain.Listener.Addr())}, true},
		"no path":     {v1alpha1.HTTPGetAction{Port: portOf(plain.Listener.Addr())}, true},
		"https":       {v1alpha1.HTTPGetAction{Path: "/ok", Scheme: "HTTPS", Port: portOf(secure.Listener.Addr())}, true},
		"redirect":    {v1alpha1.HTTPGetAction{Path: "/redirect", Port: portOf(plain.Listener.Addr())}, true},
		"not found":   {v1alpha1.HTTPGetAction{Path: "/missing", Port: portOf(plain.Listener.Addr())}, false},
		"wrong port":  {v1alpha1.HTTPGetAction{Path: "/ok", Port: 1}, false},
		"wrong kind":  {v1alpha1.HTTPGetAction{Path: "/ok", Port: portOf(secure.Listener.Addr())}, false},
		"all headers": {v1alpha1.HTTPGetAction{Path: "/headers?q=1", Port: portOf(plain.Listener.Addr()), HTTPHeaders: []v1alpha1.HTTPHeader{{Name: "host", Value: "cart.example"}, {Name: "User-Agent", Value: "mine"}, {Name: "x-a", Value: "1"}, {Name: "X-A", Value: "2"}}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(t, v1alpha1.ReadinessProbeAction{HTTPGet: &test.action}); (err == nil) != test.ready {
				t.Errorf("got %v, want ready %t", err, test.ready)
			}
		})
	}
}

func TestTCP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	action := v1alpha1.ReadinessProbeAction{TCPSocket: &v1alpha1.TCPSocketAction{Port: portOf(listener.Addr())}}
	if err := run(t, action); err != nil {
		t.Error(err)
	}
	listener.Close()
	if err := run(t, action); err == nil {
		t.Error("a closed port is ready")
	}
}

func TestGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	states := health.NewServer()
	states.SetServingStatus("up", healthv1.HealthCheckResponse_SERVING)
	states.SetServingStatus("down", healthv1.HealthCheckResponse_NOT_SERVING)
	server := grpc.NewServer()
	healthv1.RegisterHealthServer(server, states)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	defer running.Wait()
	defer server.Stop()
	for service, ready := range map[string]bool{"": true, "up": true, "down": false, "unknown": false} {
		action := v1alpha1.ReadinessProbeAction{GRPC: &v1alpha1.GRPCAction{Port: portOf(listener.Addr()), Service: service}}
		if err := run(t, action); (err == nil) != ready {
			t.Errorf("service %q: got %v, want ready %t", service, err, ready)
		}
	}
}

// fakeQueue has candidates until one of them accepts a connection.
type fakeQueue struct {
	mu         sync.Mutex
	candidates []endpoint.Candidate
	results    []string
}

func (q *fakeQueue) Candidates() []endpoint.Candidate {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]endpoint.Candidate(nil), q.candidates...)
}

func (q *fakeQueue) NeedsProbe(endpoint.Candidate) bool { return len(q.Candidates()) > 0 }

func (q *fakeQueue) Accepted(_ endpoint.Candidate, enough bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.results = append(q.results, fmt.Sprintf("accepted %t", enough))
	q.candidates = nil
}

func (q *fakeQueue) ProbesSucceeded(endpoint.Candidate) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.results = append(q.results, "probes succeeded")
}

func TestProber(t *testing.T) {
	pod := &endpoint.Pod{Addresses: []netip.Addr{loopback}}
	http := &v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{{HTTPGet: &v1alpha1.HTTPGetAction{Port: 1}}}}
	for name, test := range map[string]struct {
		candidate endpoint.Candidate
		probes    *v1alpha1.ReadinessProbes
		want      string
	}{
		"its probes and the port":         {endpoint.Candidate{Pod: pod, Number: 2}, http, "[probes succeeded accepted false]"},
		"no probes: the port is enough":   {endpoint.Candidate{Pod: pod, Number: 2}, &v1alpha1.ReadinessProbes{}, "[accepted true]"},
		"unknown probes: nothing":         {endpoint.Candidate{Pod: pod, Number: 2}, nil, "[]"},
		"ready, but refused a connection": {endpoint.Candidate{Pod: pod, Number: 2, Ready: true}, nil, "[accepted false]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := &fakeQueue{candidates: []endpoint.Candidate{test.candidate}}
				var attempts atomic.Int32
				prober := New(Options{
					Queue:  queue,
					Probes: func() *v1alpha1.ReadinessProbes { return test.probes },
					Slots:  make(chan struct{}, 8),
					RunProbe: func(ctx context.Context, _ Target) error {
						switch n := attempts.Add(1); {
						case n < 10:
							return errors.New("connection refused")
						case n < 13:
							// The pod accepts the connection and does not respond.
							<-ctx.Done()
							return ctx.Err()
						}
						return nil
					},
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				started := time.Now()
				go func() { defer close(done); prober.Run(ctx, nil) }()
				for len(queue.Candidates()) > 0 && time.Since(started) < time.Minute {
					<-time.After(time.Millisecond)
				}
				if got := fmt.Sprint(queue.results); got != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
				if took := time.Since(started); test.want != "[]" && took > time.Second {
					t.Errorf("took %s to find a pod that was ready after 13 probes", took)
				}
				cancel()
				<-done
			})
		})
	}
}
