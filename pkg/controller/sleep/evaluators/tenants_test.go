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
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/egress"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// Messages contain neither the response of an address that a tenant chose nor the
// error of a connection to it.
func TestMessagesHoldNothingOfWhatServersSend(t *testing.T) {
	const secret = "root:x:0:0"
	for name, test := range map[string]struct {
		status      int
		body        string
		reason, has string
	}{
		"not Prometheus":    {http.StatusOK, secret, v1alpha1.ReasonServerFailed, "does not respond as Prometheus does"},
		"no response":       {http.StatusOK, `{"status":"` + secret + `"}`, v1alpha1.ReasonServerFailed, "does not respond as Prometheus does"},
		"rejected":          {http.StatusBadRequest, `{"status":"error","errorType":"bad_data","error":"` + secret + `"}`, v1alpha1.ReasonQueryRejected, "HTTP status 400"},
		"other error":       {http.StatusInternalServerError, `{"status":"error","errorType":"` + secret + `","error":"` + secret + `"}`, v1alpha1.ReasonServerFailed, "HTTP status 500"},
		"forbidden":         {http.StatusForbidden, secret, v1alpha1.ReasonServerRefused, "HTTP status 403"},
		"gives up":          {http.StatusServiceUnavailable, `{"status":"error","errorType":"timeout","error":"` + secret + `"}`, v1alpha1.ReasonServerFailed, "aborted"},
		"warning":           {http.StatusOK, `{"status":"success","warnings":["` + secret + `"],"data":{"resultType":"scalar","result":[1,"0"]}}`, v1alpha1.ReasonDataIncomplete, "warnings"},
		"remark":            {http.StatusOK, `{"status":"success","warnings":["PromQL info: ` + secret + `"],"data":{"resultType":"scalar","result":[1,"0"]}}`, v1alpha1.ReasonBelowThreshold, ""},
		"type of result":    {http.StatusOK, `{"status":"success","data":{"resultType":"` + secret + `","result":[1,"0"]}}`, v1alpha1.ReasonNotANumber, ""},
		"value":             {http.StatusOK, `{"status":"success","data":{"resultType":"scalar","result":[1,"` + secret + `"]}}`, v1alpha1.ReasonNotANumber, ""},
		"too large":         {http.StatusOK, secret + strings.Repeat(" ", maxResponseBytes), v1alpha1.ReasonServerFailed, "larger than"},
		"redirects":         {http.StatusFound, secret, v1alpha1.ReasonServerFailed, "HTTP status 302"},
		"status unheard of": {http.StatusTeapot, secret, v1alpha1.ReasonServerRefused, "HTTP status 418"},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakePrometheus(t)
			server.respond(test.status, test.body)
			prometheus := newTestPrometheus(t, PrometheusOptions{Servers: loopback(t)})
			result := evaluate(t, prometheus, inNamespace("shop", fmt.Sprintf(`{"query":"requests","threshold":5,"serverAddress":%q}`, server.URL)))
			if result.Reason != test.reason || !strings.Contains(result.Message, test.has) {
				t.Errorf("got %+v, want %s with %q", result, test.reason, test.has)
			}
			if strings.Contains(result.Message+result.Note, secret) {
				t.Errorf("the text of the server is shown: %+v", result)
			}
		})
	}
}

func TestMessagesNameTheKindOfFailure(t *testing.T) {
	closed := httptest.NewServer(nil)
	closed.Close()
	secure := httptest.NewTLSServer(newFakePrometheus(t).Config.Handler)
	defer secure.Close()
	plain := newFakePrometheus(t)
	for address, want := range map[string]string{
		closed.URL:                        "connection refused",
		"http://prometheus.invalid.:9090": "cannot be resolved",
		secure.URL:                        "not trusted",
		strings.Replace(plain.URL, "http:", "https:", 1): "the connection failed",
		greets(t, "SSH-2.0-OpenSSH_9.9\r\n"):             "the connection failed",
		"http://169.254.1.1/":                            "--trigger-allowed-servers",
	} {
		prometheus := newTestPrometheus(t, PrometheusOptions{Servers: loopbackAndNames(t)})
		result := evaluate(t, prometheus, inNamespace("shop", fmt.Sprintf(`{"query":"requests","threshold":5,"serverAddress":%q}`, address)))
		parsed, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(result.Message, want) || !strings.HasPrefix(result.Message, parsed.Host) {
			t.Errorf("%s: got %+v, want %q", address, result, want)
		}
		for _, word := range []string{"dial", "tcp", "lookup", "x509", "read ", "127.0.0.1:53", "Post ", "SSH-2.0"} {
			if strings.Contains(result.Message, word) {
				t.Errorf("%s: the message repeats what the connection failed with: %s", address, result.Message)
			}
		}
	}
}

// greets returns the URL of a server that does not wait for a request before it sends
// something that is no HTTP.
func greets(t *testing.T, greeting string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(greeting))
			serving.Go(func() {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return "http://" + listener.Addr().String()
}

func loopbackAndNames(t *testing.T) *egress.Guard {
	t.Helper()
	allowed, err := egress.Parse([]string{"*", "127.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	return egress.NewGuard(egress.Options{Allowed: allowed})
}

// A user who writes a trigger does not get access to what only this process can reach.
func TestTriggersReachOnlyAllowedServers(t *testing.T) {
	server := newFakePrometheus(t)
	server.respond(http.StatusOK, vector("0"))
	metadata := fmt.Sprintf(`{"query":"requests","threshold":5,"serverAddress":%q}`, server.URL)
	prometheus := newTestPrometheus(t, PrometheusOptions{})
	if result := evaluate(t, prometheus, inNamespace("shop", metadata)); result.Reason != v1alpha1.ReasonServerNotAllowed {
		t.Errorf("loopback: got %+v", result)
	}
	named, err := egress.Parse([]string{"127.0.0.1", "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	prometheus = newTestPrometheus(t, PrometheusOptions{Servers: egress.NewGuard(egress.Options{Allowed: named})})
	other := strings.Replace(strings.TrimSuffix(metadata, "}"), "127.0.0.1", "localhost", 1) + `,"headers":{"Host":"vault.example.com"}}`
	if result := evaluate(t, prometheus, inNamespace("shop", other)); result.Reason != v1alpha1.ReasonServerNotAllowed {
		t.Errorf("another server behind the same address: got %+v", result)
	}
	if len(server.queries) > 0 {
		t.Errorf("the server was queried with %q", server.queries)
	}
	if result := evaluate(t, prometheus, inNamespace("shop", metadata)); result.State != Idle {
		t.Errorf("an address that is listed: got %+v", result)
	}
}

// Queries of the installation's server see the series of their own namespace.
func TestQueriesOfTheInstallationAreRestrictedToTheirNamespace(t *testing.T) {
	server := newFakePrometheus(t)
	server.respond(http.StatusOK, vector("0"))
	allowed, err := egress.Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	prometheus := newTestPrometheus(t, PrometheusOptions{
		ServerAddress: server.URL, NamespaceLabel: "namespace", UptimeWindow: time.Minute, Servers: egress.NewGuard(egress.Options{Allowed: allowed}),
	})
	if result := evaluate(t, prometheus, inNamespace("shop", `{"query":"sum(rate(requests[1m])) or vector(0)","threshold":5}`)); result.State != Idle {
		t.Errorf("got %+v", result)
	}
	evaluate(t, prometheus, inNamespace("shop", `{"query":"1","threshold":5,"uptimeFilter":"job=\"a\"} or on () secret{"}`))
	want := []string{
		`min_over_time((max(up{container="prometheus"}) or vector(0))[60000ms:5000ms])`,
		`sum(rate(requests{namespace="shop"}[1m])) or vector(0)`,
		`min_over_time((max(up{job="a",namespace="shop"} or on () secret{namespace="shop"}) or vector(0))[1m:5s])`,
		`1`,
	}
	if got := strings.Join(server.queries, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("queried\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	for metadata, reason := range map[string]string{
		`{"query":"requests{namespace=\"other\"} or vector(0)","threshold":5}`: v1alpha1.ReasonQueryRejected,
		`{"query":"sum(","threshold":5}`:                                       v1alpha1.ReasonQueryRejected,
		`{"query":"1","threshold":5,"uptimeFilter":"}"}`:                       v1alpha1.ReasonQueryRejected,
		// Ways to connect that are the tenant's own are not the installation's.
		`{"query":"requests","threshold":5,"headers":{"X-Scope-OrgID":"other"}}`:             v1alpha1.ReasonServerNotAllowed,
		`{"query":"requests","threshold":5,"serverAddress":"` + server.URL + `/prometheus"}`: v1alpha1.ReasonServerNotAllowed,
	} {
		if result := evaluate(t, prometheus, inNamespace("shop", metadata)); result.Reason != reason {
			t.Errorf("%s: got %+v, want %s", metadata, result, reason)
		}
	}
	if len(server.queries) != len(want) {
		t.Errorf("queried with %q", server.queries[len(want):])
	}
}

func TestNamespacesThatMayQueryTheInstallation(t *testing.T) {
	file := filepath.Join(t.TempDir(), "authorization")
	if err := os.WriteFile(file, []byte("Bearer of-the-installation"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := egress.NewGuard(egress.Options{})
	for name, test := range map[string]struct {
		options PrometheusOptions
		allowed bool
	}{
		"nothing protects it":              {PrometheusOptions{Servers: open}, true},
		"a credential":                     {PrometheusOptions{Servers: open, AuthorizationHeaderFile: file}, false},
		"a list of other servers":          {PrometheusOptions{Servers: loopback(t)}, false},
		"a credential, restricted queries": {PrometheusOptions{Servers: open, AuthorizationHeaderFile: file, NamespaceLabel: "namespace"}, true},
		"a credential, authorized":         {PrometheusOptions{Servers: open, AuthorizationHeaderFile: file, AuthorizedNamespaces: []string{"blog", "shop"}}, true},
		"a credential, all authorized":     {PrometheusOptions{Servers: open, AuthorizationHeaderFile: file, AuthorizedNamespaces: []string{AllNamespaces}}, true},
		"others authorized":                {PrometheusOptions{Servers: open, AuthorizedNamespaces: []string{"blog"}}, false},
		"others, restricted queries":       {PrometheusOptions{Servers: open, AuthorizedNamespaces: []string{"blog"}, NamespaceLabel: "namespace"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakePrometheus(t)
			server.respond(http.StatusOK, vector("0"))
			test.options.ServerAddress = server.URL
			result := evaluate(t, newTestPrometheus(t, test.options), inNamespace("shop", `{"query":"requests","threshold":5}`))
			if want := map[bool]string{true: v1alpha1.ReasonBelowThreshold, false: v1alpha1.ReasonServerNotAllowed}[test.allowed]; result.Reason != want {
				t.Errorf("got %+v, want %s", result, want)
			}
			if test.allowed == (server.lastHeaders() == nil) {
				t.Errorf("queried with %q", server.queries)
			}
		})
	}
}

// A credential that elasti-apiserver may not read any more is not used a minute
// later, though the server would still accept it.
func TestRevokedCredentialIsNotUsedForLong(t *testing.T) {
	const polling = 30 * time.Second
	server := newFakePrometheus(t)
	server.respond(http.StatusOK, vector("0"))
	keys, clock := &fakeKeys{}, clocktesting.NewFakePassiveClock(time.Now())
	keys.set("shop", "monitoring", "token", "s3cr3t")
	prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: server.URL, Servers: loopback(t), Keys: keys, Clock: clock})
	subject := inNamespace("shop", `{"query":"requests","threshold":5,"authorization":{"credentials":{"name":"monitoring","key":"token"}}}`)
	subject.MaxAge = polling
	if result := evaluate(t, prometheus, subject); result.State != Idle {
		t.Fatalf("got %+v", result)
	}
	keys.mu.Lock()
	keys.failing = apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "monitoring", nil)
	keys.mu.Unlock()
	clock.SetTime(clock.Now().Add(polling))
	before := len(server.queries)
	if result := evaluate(t, prometheus, subject); result.Reason != v1alpha1.ReasonCredentialsUnavailable {
		t.Errorf("got %+v", result)
	}
	if len(server.queries) != before {
		t.Errorf("the revoked credential was sent: %q", server.queries[before:])
	}
}

// An external metric is one of the ElastiService's own namespace.
func TestExternalMetricStaysInItsNamespace(t *testing.T) {
	const other = "/apis/external.metrics.k8s.io/v1beta1/namespaces/other/queue_length?labelSelector="
	options := metricsOptions(t, map[string]string{other: `{"items":[{"metricName":"queue_length","timestamp":"` + stamp(0) + `","value":"0"}]}`})
	for _, name := range []string{"../other/queue_length", "../../../../../../api/v1/secrets", "..", "a%2f..", "a/b"} {
		subject := subjectOf(triggers.TypeExternalMetric, fmt.Sprintf(`{"metricName":%q,"threshold":1}`, name))
		subject.ElastiService.Namespace = "shop"
		result, err := NewExternalMetric(options).Evaluate(t.Context(), subject)
		if err != nil || result.Reason != v1alpha1.ReasonMetadataInvalid {
			t.Errorf("%s: got %+v, %v", name, result, err)
		}
	}
}

// A remark of the server on the query is shown, and the result counts.
func TestRemarksOfServersAreShown(t *testing.T) {
	server := newFakePrometheus(t)
	prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: server.URL})
	for body, want := range map[string]string{
		`"warnings":["PromQL info: metric might not be a counter, name does not end in _total: \"a\""]`: "PromQL info: a metric might not be a counter",
		`"infos":["PromQL info: input to histogram_quantile needed to be fixed for monotonicity"]`:      "PromQL info: the buckets of a histogram are not monotonic",
		`"warnings":[]`: "",
	} {
		server.respond(http.StatusOK, `{"status":"success",`+body+`,"data":{"resultType":"scalar","result":[1,"0"]}}`)
		result := evaluate(t, prometheus, subjectOf(triggers.TypePrometheus, `{"query":"requests","threshold":1}`))
		if result.State != Idle || result.Note != want {
			t.Errorf("%s: got %+v, want the note %q", body, result, want)
		}
	}
}

func FuzzReadResponse(f *testing.F) {
	for _, seed := range []string{
		vector("1"), vector(), vector("NaN", "1"), `{"status":"success","data":{"resultType":"scalar","result":[1,"1e999"]}}`, `{"status":"error","errorType":"bad_data"}`,
		`{"status":"success","warnings":["PromQL info: x"],"infos":["y"],"data":{"resultType":"vector","result":[{"histogram":[1,{}]}]}}`, `[]`, `null`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := readResponse("prometheus", body)
		_ = errorTypeOf(body)
		if err != nil {
			if result, _ := resultOf(err); result.State != Unknown || result.Reason == "" || result.Message == "" {
				t.Errorf("got %+v", result)
			}
			return
		}
		if math.IsNaN(got.Value) || math.IsInf(got.Value, 0) {
			t.Errorf("got %v", got.Value)
		}
	})
}
