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

package evaluators

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/egress"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// fakePrometheus responds to queries as configured.
type fakePrometheus struct {
	*httptest.Server

	mu sync.Mutex
	// status and body are the response to all queries but those for the uptime.
	status int
	body   string
	// up is the result of queries for the uptime.
	up string
	// queries are those that were received, headers those of the last request.
	queries []string
	headers http.Header
}

func newFakePrometheus(t *testing.T) *fakePrometheus {
	t.Helper()
	fake := &fakePrometheus{up: "1"}
	fake.Server = httptest.NewServer(fake)
	t.Cleanup(fake.Close)
	return fake
}

func (f *fakePrometheus) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	query := r.FormValue("query")
	f.queries = append(f.queries, query)
	f.headers = r.Header
	w.Header().Set("Content-Type", "application/json")
	if strings.HasPrefix(query, "min_over_time((max(up{") {
		_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,%q]}]}}`, f.up)
		return
	}
	w.WriteHeader(cmp.Or(f.status, http.StatusOK))
	_, _ = w.Write([]byte(f.body))
}

func (f *fakePrometheus) respond(status int, body string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status, f.body = status, body
}

func vector(values ...string) string {
	elements := make([]string, 0, len(values))
	for i, value := range values {
		elements = append(elements, fmt.Sprintf(`{"metric":{"i":"%d"},"value":[1,%q]}`, i, value))
	}
	return `{"status":"success","data":{"resultType":"vector","result":[` + strings.Join(elements, ",") + `]}}`
}

func subjectOf(triggerType, metadata string) Subject {
	return Subject{
		ElastiService: &v1alpha1.ElastiService{},
		Trigger:       &v1alpha1.ScaleTrigger{Type: triggerType, Metadata: &runtime.RawExtension{Raw: []byte(metadata)}},
	}
}

// loopback allows triggers to name the servers of tests.
func loopback(t *testing.T) *egress.Guard {
	t.Helper()
	allowed, err := egress.Parse([]string{"127.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	return egress.NewGuard(egress.Options{Allowed: allowed})
}

func newTestPrometheus(t *testing.T, options PrometheusOptions) *Prometheus {
	t.Helper()
	prometheus := NewPrometheus(options)
	t.Cleanup(prometheus.CloseIdleConnections)
	return prometheus
}

// prometheusTests are responses of Prometheus, and what follows from them.
var prometheusTests = []struct {
	name     string
	status   int
	body     string
	up       string
	metadata string
	state    State
	reason   string
}{
	{name: "below", body: vector("4.9"), state: Idle, reason: v1alpha1.ReasonBelowThreshold},
	{name: "equal", body: vector("5"), state: Active, reason: v1alpha1.ReasonThresholdReached},
	{name: "above", body: vector("5.1"), state: Active, reason: v1alpha1.ReasonThresholdReached},
	{name: "scalar", body: `{"status":"success","data":{"resultType":"scalar","result":[1,"0"]}}`, state: Idle, reason: v1alpha1.ReasonBelowThreshold},
	{name: "empty", body: vector(), state: Unknown, reason: v1alpha1.ReasonNoData},
	{name: "two elements", body: vector("0", "0"), state: Unknown, reason: v1alpha1.ReasonSeveralElements},
	{name: "NaN", body: vector("NaN"), state: Unknown, reason: v1alpha1.ReasonNotANumber},
	{name: "minus infinity", body: vector("-Inf"), state: Unknown, reason: v1alpha1.ReasonNotANumber},
	{name: "infinity", body: vector("+Inf"), state: Unknown, reason: v1alpha1.ReasonNotANumber},
	{name: "string", body: `{"status":"success","data":{"resultType":"string","result":[1,"0"]}}`, state: Unknown, reason: v1alpha1.ReasonNotANumber},
	{name: "range", body: `{"status":"success","data":{"resultType":"matrix","result":[]}}`, state: Unknown, reason: v1alpha1.ReasonNotANumber},
	{
		name:  "histogram",
		body:  `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1,{"count":"1","sum":"1","buckets":[]}]}]}}`,
		state: Unknown, reason: v1alpha1.ReasonNotANumber,
	},
	{
		name:  "with a remark, as before Prometheus 3.0",
		body:  `{"status":"success","warnings":["PromQL info: metric might not be a counter, name does not end in _total/_sum/_count/_bucket: \"a\" (1:6)"],"data":{"resultType":"vector","result":[{"metric":{},"value":[1,"0"]}]}}`,
		state: Idle, reason: v1alpha1.ReasonBelowThreshold,
	},
	{
		name:  "with a remark and a warning",
		body:  `{"status":"success","warnings":["PromQL info: metric might not be a counter","a store did not respond"],"data":{"resultType":"scalar","result":[1,"0"]}}`,
		state: Unknown, reason: v1alpha1.ReasonDataIncomplete,
	},
	{
		name:  "with warnings",
		body:  `{"status":"success","warnings":["a store did not respond"],"data":{"resultType":"scalar","result":[1,"0"]}}`,
		state: Unknown, reason: v1alpha1.ReasonDataIncomplete,
	},
	{name: "not scraped", up: "0", body: vector("0"), state: Unknown, reason: v1alpha1.ReasonNotScraped},
	{name: "not scraped, above", up: "0", body: vector("9"), state: Unknown, reason: v1alpha1.ReasonNotScraped},
	{name: "bad query", status: 400, body: `{"status":"error","errorType":"bad_data","error":"parse error"}`, state: Unknown, reason: v1alpha1.ReasonQueryRejected},
	{name: "no credential", status: 401, body: `go away`, state: Unknown, reason: v1alpha1.ReasonServerRefused},
	{name: "overloaded", status: 503, body: `{"status":"error","errorType":"timeout","error":"too many queries"}`, state: Unknown, reason: v1alpha1.ReasonServerFailed},
	{name: "fails", status: 500, body: `oh no`, state: Unknown, reason: v1alpha1.ReasonServerFailed},
	{name: "a web page", body: `<html>welcome</html>`, state: Unknown, reason: v1alpha1.ReasonServerFailed},
	{name: "sends elsewhere", status: 307, state: Unknown, reason: v1alpha1.ReasonServerFailed},
	{name: "endless", body: `{"status":"success","data":"` + strings.Repeat("x", 2*maxResponseBytes), state: Unknown, reason: v1alpha1.ReasonServerFailed},
	{name: "bad metadata", metadata: `{"threshold":1}`, state: Unknown, reason: v1alpha1.ReasonMetadataInvalid},
}

func TestPrometheusStates(t *testing.T) {
	for _, test := range prometheusTests {
		t.Run(test.name, func(t *testing.T) {
			server := newFakePrometheus(t)
			server.up = cmp.Or(test.up, server.up)
			server.respond(test.status, test.body)
			prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: server.URL})
			result, err := prometheus.Evaluate(t.Context(), subjectOf(triggers.TypePrometheus, cmp.Or(test.metadata, `{"query":"requests","threshold":"5"}`)))
			if err != nil {
				t.Fatal(err)
			}
			if result.State != test.state || result.Reason != test.reason {
				t.Errorf("got %s because of %s (%s), want %s because of %s", result.State, result.Reason, result.Message, test.state, test.reason)
			}
		})
	}
}

func TestPrometheusThatCannotBeQueried(t *testing.T) {
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		// The server notices that the client disconnects only after it has read the body.
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer hanging.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	for name, test := range map[string]struct{ address, reason string }{
		"hangs":         {hanging.URL, v1alpha1.ReasonServerFailed},
		"is closed":     {closed.URL, v1alpha1.ReasonServerFailed},
		"is not known":  {"", v1alpha1.ReasonNoServer},
		"is not a host": {"http://prometheus.invalid.:9090", v1alpha1.ReasonServerFailed},
	} {
		t.Run(name, func(t *testing.T) {
			prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: test.address, Limiter: queries.NewLimiter(queries.Options{Timeout: 100 * time.Millisecond})})
			result, err := prometheus.Evaluate(t.Context(), subjectOf(triggers.TypePrometheus, `{"query":"requests","threshold":5}`))
			if err != nil || result.State != Unknown || result.Reason != test.reason {
				t.Errorf("got %+v, %v, want unknown because of %s", result, err, test.reason)
			}
		})
	}
}

// The configured credential is for the configured server. A user who may write
// ElastiServices must not get it sent to another server.
func TestPrometheusCredential(t *testing.T) {
	file := filepath.Join(t.TempDir(), "authorization")
	if err := os.WriteFile(file, []byte("Bearer configured\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	configured, other := newFakePrometheus(t), newFakePrometheus(t)
	configured.respond(0, vector("0"))
	other.respond(0, vector("0"))
	prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: configured.URL + "/", AuthorizationHeaderFile: file, AuthorizedNamespaces: []string{AllNamespaces}, Servers: loopback(t)})
	for _, test := range []struct {
		name, metadata string
		server         *fakePrometheus
		want           string
	}{
		{"the configured server", `{"query":"q","threshold":1}`, configured, "Bearer configured"},
		{"the configured server, named", `{"query":"q","threshold":1,"serverAddress":"` + configured.URL + `"}`, configured, "Bearer configured"},
		{"a header of the trigger", `{"query":"q","threshold":1,"headers":{"authorization":"Bearer own"}}`, configured, "Bearer own"},
		{"another server", `{"query":"q","threshold":1,"serverAddress":"` + other.URL + `"}`, other, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if result, err := prometheus.Evaluate(t.Context(), subjectOf(triggers.TypePrometheus, test.metadata)); err != nil || result.State != Idle {
				t.Fatalf("got %+v, %v", result, err)
			}
			if got := test.server.headers.Get("Authorization"); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Headers are not sent to where a server redirects.
func TestPrometheusHeadersDoNotFollowRedirects(t *testing.T) {
	elsewhere := newFakePrometheus(t)
	elsewhere.respond(0, vector("0"))
	redirecting := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer redirecting.Close()
	prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: redirecting.URL})
	result, err := prometheus.Evaluate(t.Context(), subjectOf(triggers.TypePrometheus, `{"query":"q","threshold":1,"headers":{"X-Token":"secret"}}`))
	if err != nil || result.State != Unknown {
		t.Errorf("got %+v, %v, want unknown", result, err)
	}
	if elsewhere.headers != nil {
		t.Errorf("the other server was queried with %v", elsewhere.headers)
	}
}

func TestPrometheusMessagesKeepSecrets(t *testing.T) {
	const secret = "hunter2"
	closed := httptest.NewServer(nil)
	closed.Close()
	prometheus := newTestPrometheus(t, PrometheusOptions{Servers: loopback(t)})
	address := strings.Replace(closed.URL, "http://", "http://user:"+secret+"@", 1)
	for _, metadata := range []string{
		`{"query":"q","threshold":1,"serverAddress":"` + address + `","headers":{"X-Token":"` + secret + `"}}`,
		`{"query":"q","threshold":1,"serverAddress":"` + address + `%zz"}`,
	} {
		result, err := prometheus.Evaluate(t.Context(), subjectOf(triggers.TypePrometheus, metadata))
		if err != nil || result.State != Unknown || strings.Contains(result.Message, secret) {
			t.Errorf("got %+v, %v, want unknown without the secret", result, err)
		}
	}
}

func TestPrometheusIsQueriedOnceInAnInterval(t *testing.T) {
	server := newFakePrometheus(t)
	server.respond(0, vector("0"))
	fakeClock := clocktesting.NewFakePassiveClock(testNow)
	prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: server.URL, Clock: fakeClock})
	evaluate := func(query string) {
		t.Helper()
		subject := subjectOf(triggers.TypePrometheus, `{"query":`+strconv.Quote(query)+`,"threshold":1,"uptimeFilter":"job=\"shop\""}`)
		subject.MaxAge = testInterval
		if result, err := prometheus.Evaluate(t.Context(), subject); err != nil || result.State != Idle {
			t.Fatalf("got %+v, %v", result, err)
		}
	}
	const uptime = `min_over_time((max(up{job="shop"}) or vector(0))[60000ms:5000ms])`
	wantQueries := func(want ...string) {
		t.Helper()
		if got := strings.Join(server.queries, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("queried\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
	}
	for range 5 {
		evaluate("a")
	}
	evaluate("b")
	wantQueries(uptime, "a", "b")
	fakeClock.SetTime(testNow.Add(testInterval))
	evaluate("a")
	wantQueries(uptime, "a", "b", uptime, "a")
}

// A canceled evaluation does not count as a failure of the server.
func TestPrometheusEvaluationCanceled(t *testing.T) {
	server := newFakePrometheus(t)
	server.respond(0, vector("0"))
	prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: server.URL})
	subject := subjectOf(triggers.TypePrometheus, `{"query":"q","threshold":1}`)
	subject.MaxAge = testInterval
	for range 2 * queries.MaxFailures {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if result, err := prometheus.Evaluate(ctx, subject); err != nil || result.State != Unknown {
			t.Errorf("got %+v, %v, want unknown", result, err)
		}
	}
	if result, err := prometheus.Evaluate(t.Context(), subject); err != nil || result.State != Idle {
		t.Errorf("got %+v, %v, want idle", result, err)
	}
}
