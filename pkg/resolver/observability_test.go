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

package resolver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collectortracev1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/tracing"
	tracingv1 "k8s.io/component-base/tracing/api/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
)

// collector receives spans as a collector of OpenTelemetry does.
type collector struct {
	collectortracev1.UnimplementedTraceServiceServer
	address string

	mu    sync.Mutex
	spans []*tracev1.Span
	raw   bytes.Buffer
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{address: listener.Addr().String()}
	server := grpc.NewServer()
	collectortracev1.RegisterTraceServiceServer(server, c)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		running.Wait()
	})
	return c
}

// Export implements the service of a collector.
func (c *collector) Export(_ context.Context, request *collectortracev1.ExportTraceServiceRequest) (*collectortracev1.ExportTraceServiceResponse, error) {
	raw, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw.Write(raw)
	for _, resource := range request.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	return &collectortracev1.ExportTraceServiceResponse{}, nil
}

// The secrets of a request, none of which may leave the resolver but to the pod.
const (
	secretToken = "token-0f1e2d3c"
	secretQuery = "query-4b5a6978"
	secretBody  = "body-8796a5b4"
)

// check checks the spans of a cold start, which belong to a trace and a span of the
// client.
func (c *collector) check(t *testing.T, traceID, parentID string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	names := map[string]*tracev1.Span{}
	for _, span := range c.spans {
		names[span.GetName()] = span
		if got := fmt.Sprintf("%x", span.GetTraceId()); got != traceID {
			t.Errorf("%s is in the trace %s", span.GetName(), got)
		}
	}
	if len(c.spans) != len(names) {
		t.Errorf("%d spans came, with %d names", len(c.spans), len(names))
	}
	for name, parent := range map[string]string{
		"elasti.request": "", "elasti.hold": "elasti.request", "elasti.wake": "elasti.hold",
		"elasti.probe": "elasti.hold", "elasti.forward": "elasti.request",
	} {
		span := names[name]
		if span == nil {
			t.Errorf("there is no span %s", name)
			continue
		}
		want := parentID
		if parent != "" {
			want = fmt.Sprintf("%x", names[parent].GetSpanId())
		}
		if got := fmt.Sprintf("%x", span.GetParentSpanId()); got != want {
			t.Errorf("the parent of %s is %s, want %s", name, got, want)
		}
	}
}

// sentResult is the body of a response, or why there is none.
type sentResult struct {
	body string
	err  error
}

// sendAside sends a request without waiting for its response.
func sendAside(request *http.Request) <-chan sentResult {
	responded := make(chan sentResult, 1)
	go func() {
		client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Do(request)
		if err != nil {
			responded <- sentResult{err: err}
			return
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		responded <- sentResult{string(body), err}
	}()
	return responded
}

// TestObservedColdStart checks one cold start through all that a resolver
// reports it: spans, metrics and access log.
func TestObservedColdStart(t *testing.T) {
	received := newCollector(t)
	provider, err := tracing.NewProvider(t.Context(), &tracingv1.TracingConfiguration{
		Endpoint: ptr.To(received.address), SamplingRatePerMillion: ptr.To[int32](0),
	}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var lines synchronized
	port := freePort(t)
	es := elastiService("cart", port)
	es.Spec.Proxy = &v1alpha1.ProxySpec{WaitingPage: true}
	c := newCluster(t, func(o *Options) {
		o.TracerProvider = provider
		o.AccessLog = accesslog.New(&lines)
	}, es)
	const traceID, parentID = "0123456789abcdef0123456789abcdef", "fedcba9876543210"
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/orders?key=%s", port, secretQuery), strings.NewReader(secretBody))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Traceparent", "00-"+traceID+"-"+parentID+"-01")
	request.Header.Set("Authorization", "Bearer "+secretToken)
	responded := sendAside(request)
	// The pod comes after the wake has succeeded, so that there is every step.
	c.eventually(func() bool { return c.metric("elasti_resolver_queued_count") == 1 && progress(t, port) == "pod" })
	c.apply(slice(es, true, pod(t)))
	if got := <-responded; got.err != nil || !strings.Contains(got.body, secretBody) {
		t.Fatalf("got %q, %v", got.body, got.err)
	}
	// A request that no client wants traced.
	if status, _, err := fetch(port, "/untraced"); err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	c.eventually(func() bool { return lines.line("/orders") != "" && lines.line("/untraced") != "" })
	flushing, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := provider.Shutdown(flushing); err != nil {
		t.Fatal(err)
	}

	received.check(t, traceID, parentID)
	text := c.metricsText()
	for _, secret := range []string{secretToken, secretQuery, secretBody} {
		if bytes.Contains(received.raw.Bytes(), []byte(secret)) || strings.Contains(lines.String(), secret) || strings.Contains(text, secret) {
			t.Errorf("%s is exposed", secret)
		}
	}
	for _, want := range []string{`"path":"/orders"`, `"held":true`, `"status":200`, `"outcome":"forwarded"`, traceID} {
		if line := lines.line("/orders"); !strings.Contains(line, want) {
			t.Errorf("the line of the access log is %s, without %s", line, want)
		}
	}
	if strings.Contains(text, "orders") || strings.Contains(text, "untraced") {
		t.Error("what clients send is in the metrics")
	}
}

// TestSeriesGoWithTheirService counts the series of all metrics as services come
// and go and clients send what they like.
func TestSeriesGoWithTheirService(t *testing.T) {
	c := newCluster(t, nil)
	without := strings.Count(c.metricsText(), "\n")
	port := freePort(t)
	es := elastiService("cart", port)
	if _, err := c.elasti.ElastiV1alpha1().ElastiServices("shop").Create(t.Context(), es, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.apply(slice(es, true, pod(t)))
	fetched := 0
	c.eventually(func() bool { fetched++; status, _, _ := fetch(port, "/"); return status == http.StatusOK })
	c.eventually(func() bool {
		return c.counter("elasti_resolver_requests_total", "service", "cart", "outcome", "forwarded") == float64(fetched)
	})
	with := strings.Count(c.metricsText(), "\n")
	if with <= without {
		t.Fatalf("there are %d lines of metrics with a service and %d without", with, without)
	}
	for i := range 50 {
		if status, _, err := fetch(port, fmt.Sprintf("/%d", i)); status != http.StatusOK {
			t.Fatalf("status %d, %v", status, err)
		}
	}
	if now := strings.Count(c.metricsText(), "\n"); now != with {
		t.Errorf("there are %d lines of metrics after requests to 50 paths, and were %d", now, with)
	}
	c.deleteSlice("cart")
	if err := c.elasti.ElastiV1alpha1().ElastiServices("shop").Delete(t.Context(), "cart", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually(func() bool { return strings.Count(c.metricsText(), "\n") == without })
}

// metricsText returns all series as lines.
func (c *cluster) metricsText() string {
	c.t.Helper()
	families, err := c.registry.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	var series []string
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			series = append(series, family.GetName()+" "+metric.String()+"\n")
		}
	}
	slices.Sort(series)
	return strings.Join(series, "")
}

// progress queries, as the waiting page does, how far a wake is.
func progress(t *testing.T, port int32) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodHead, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Elasti-Waiting", "1")
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return response.Header.Get("X-Elasti-Progress")
}

// synchronized is a buffer for several goroutines.
type synchronized struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

// Write implements io.Writer.
func (s *synchronized) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buffer.Write(p)
}

// String returns what was written.
func (s *synchronized) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buffer.String()
}

// line returns the line about a path.
func (s *synchronized) line(path string) string {
	for line := range strings.Lines(s.String()) {
		if strings.Contains(line, `"path":"`+path+`"`) {
			return line
		}
	}
	return ""
}
