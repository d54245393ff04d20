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

func ask(t *testing.T, action v1alpha1.ReadinessProbeAction) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return Ask(ctx, Target{Address: loopback, Action: &action})
}

func portOf(address net.Addr) int32 { return int32(address.(*net.TCPAddr).Port) }

// TestAnswersThatAreTooLargeAreRefused: what a pod answers a probe with costs a resolver
// memory that it needs for the services of others.
func TestAnswersThatAreTooLargeAreRefused(t *testing.T) {
	const size = 256 << 10
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Large", strings.Repeat("x", size))
	}))
	defer plain.Close()
	if err := ask(t, v1alpha1.ReadinessProbeAction{HTTPGet: &v1alpha1.HTTPGetAction{Port: portOf(plain.Listener.Addr())}}); err == nil {
		t.Error("a probe takes a header of 256 KiB")
	}
	for name, answer := range map[string]func(context.Context) (*healthv1.HealthCheckResponse, error){
		"a header": func(ctx context.Context) (*healthv1.HealthCheckResponse, error) {
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
		healthv1.RegisterHealthServer(server, answering{check: answer})
		var running sync.WaitGroup
		running.Go(func() { _ = server.Serve(listener) })
		err = ask(t, v1alpha1.ReadinessProbeAction{GRPC: &v1alpha1.GRPCAction{Port: portOf(listener.Addr())}})
		server.Stop()
		running.Wait()
		if err == nil {
			t.Errorf("a probe takes %s of 256 KiB", name)
		}
	}
}

// answering is a health service with an answer of its own.
type answering struct {
	healthv1.UnimplementedHealthServer
	check func(context.Context) (*healthv1.HealthCheckResponse, error)
}

func (a answering) Check(ctx context.Context, _ *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	return a.check(ctx)
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
			if err := ask(t, v1alpha1.ReadinessProbeAction{HTTPGet: &test.action}); (err == nil) != test.ready {
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
	if err := ask(t, action); err != nil {
		t.Error(err)
	}
	listener.Close()
	if err := ask(t, action); err == nil {
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
		if err := ask(t, action); (err == nil) != ready {
			t.Errorf("service %q: got %v, want ready %t", service, err, ready)
		}
	}
}

// fakeQueue has one question until it is answered.
type fakeQueue struct {
	mu        sync.Mutex
	questions []endpoint.Question
	answers   []string
}

func (q *fakeQueue) Questions() []endpoint.Question {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]endpoint.Question(nil), q.questions...)
}

func (q *fakeQueue) Open(endpoint.Question) bool { return len(q.Questions()) > 0 }

func (q *fakeQueue) Accepted(_ endpoint.Question, enough bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.answers = append(q.answers, fmt.Sprintf("accepted %t", enough))
	q.questions = nil
}

func (q *fakeQueue) Confirmed(endpoint.Question) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.answers = append(q.answers, "confirmed")
}

func TestProber(t *testing.T) {
	pod := &endpoint.Pod{Addresses: []netip.Addr{loopback}}
	http := &v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{{HTTPGet: &v1alpha1.HTTPGetAction{Port: 1}}}}
	for name, test := range map[string]struct {
		question endpoint.Question
		probes   *v1alpha1.ReadinessProbes
		want     string
	}{
		"its probes and the port":         {endpoint.Question{Pod: pod, Number: 2}, http, "[confirmed accepted false]"},
		"no probes: the port is enough":   {endpoint.Question{Pod: pod, Number: 2}, &v1alpha1.ReadinessProbes{}, "[accepted true]"},
		"unknown probes: nothing":         {endpoint.Question{Pod: pod, Number: 2}, nil, "[]"},
		"ready, but refused a connection": {endpoint.Question{Pod: pod, Number: 2, Ready: true}, nil, "[accepted false]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := &fakeQueue{questions: []endpoint.Question{test.question}}
				var asked atomic.Int32
				prober := New(Options{
					Queue:  queue,
					Probes: func() *v1alpha1.ReadinessProbes { return test.probes },
					Slots:  make(chan struct{}, 8),
					Ask: func(ctx context.Context, _ Target) error {
						switch n := asked.Add(1); {
						case n < 10:
							return errors.New("connection refused")
						case n < 13:
							// It accepts, and does not answer.
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
				for len(queue.Questions()) > 0 && time.Since(started) < time.Minute {
					<-time.After(time.Millisecond)
				}
				if got := fmt.Sprint(queue.answers); got != test.want {
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
