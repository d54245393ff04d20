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

package triggers_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

func metadata(text string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(text)} }

func TestParsePrometheus(t *testing.T) {
	for _, threshold := range []string{`0.5`, `"0.5"`, `5e-1`, `" 0.5 "`} {
		parsed, errs := triggers.ParsePrometheus(metadata(`{
			"query": "sum(rate(http_requests_total[1m]))", "threshold": `+threshold+`,
			"serverAddress": "https://prometheus.monitoring.svc:9090/prefix?tenant=a",
			"uptimeFilter": "container=\"prometheus\"", "headers": {"X-Scope-OrgID": "shop"}, "unknown": [1]}`), nil)
		if len(errs) > 0 {
			t.Fatalf("threshold %s: %v", threshold, errs)
		}
		if parsed.Threshold != 0.5 || parsed.Query == "" || parsed.ServerAddress == "" || parsed.UptimeFilter == "" || parsed.Headers["X-Scope-OrgID"] != "shop" {
			t.Errorf("threshold %s: got %+v", threshold, parsed)
		}
	}
}

func TestParseQuantities(t *testing.T) {
	cpu, errs := triggers.ParseCPU(metadata(`{"threshold": "50m"}`), nil)
	if len(errs) > 0 || cpu.ThresholdCores != 0.05 {
		t.Errorf("got %+v %v, want 0.05 cores", cpu, errs)
	}
	external, errs := triggers.ParseExternalMetric(metadata(`{"metricName": "queue_length", "selector": "queue in (orders, returns)", "threshold": 1}`), nil)
	if len(errs) > 0 || external.Threshold != 1 || external.MetricName != "queue_length" || external.Selector.Empty() {
		t.Errorf("got %+v %v, want queue_length below 1", external, errs)
	}
	external, errs = triggers.ParseExternalMetric(metadata(`{"metricName": "queue_length", "threshold": "1500m"}`), nil)
	if len(errs) > 0 || external.Threshold != 1.5 || !external.Selector.Empty() {
		t.Errorf("got %+v %v, want everything below 1.5", external, errs)
	}
}

func TestRejectedMetadata(t *testing.T) {
	for _, test := range []struct {
		name, triggerType, metadata string
		// errors are the fields and types of the errors, in order.
		errors []string
	}{
		{"nothing", "prometheus", ``, []string{"metadata.query: Required value", "metadata.threshold: Required value"}},
		{"null", "prometheus", `null`, []string{"metadata.query: Required value", "metadata.threshold: Required value"}},
		{"no object", "prometheus", `"query"`, []string{"metadata: Invalid value"}},
		{"an empty query", "prometheus", `{"query":" ","threshold":1}`, []string{"metadata.query: Required value"}},
		{"a query that is no string", "prometheus", `{"query":1,"threshold":1}`, []string{"metadata.query: Invalid value"}},
		{"a null query", "prometheus", `{"query":null,"threshold":1}`, []string{"metadata.query: Invalid value"}},
		{"a long query", "prometheus", `{"query":"` + strings.Repeat("x", 17000) + `","threshold":1}`, []string{"metadata.query: Too long"}},
		{"an empty threshold", "prometheus", `{"query":"up","threshold":""}`, []string{"metadata.threshold: Required value"}},
		{"a null threshold", "prometheus", `{"query":"up","threshold":null}`, []string{"metadata.threshold: Invalid value"}},
		{"a word as threshold", "prometheus", `{"query":"up","threshold":"low"}`, []string{"metadata.threshold: Invalid value"}},
		{"NaN as threshold", "prometheus", `{"query":"up","threshold":"NaN"}`, []string{"metadata.threshold: Invalid value"}},
		{"infinity as threshold", "prometheus", `{"query":"up","threshold":"Inf"}`, []string{"metadata.threshold: Invalid value"}},
		{"an object as threshold", "prometheus", `{"query":"up","threshold":{}}`, []string{"metadata.threshold: Invalid value"}},
		{"no scheme", "prometheus", `{"query":"up","threshold":1,"serverAddress":"prometheus:9090"}`, []string{"metadata.serverAddress: Invalid value"}},
		{"another scheme", "prometheus", `{"query":"up","threshold":1,"serverAddress":"ftp://prometheus"}`, []string{"metadata.serverAddress: Invalid value"}},
		{"no host", "prometheus", `{"query":"up","threshold":1,"serverAddress":"http://:9090"}`, []string{"metadata.serverAddress: Invalid value"}},
		{"no URL", "prometheus", `{"query":"up","threshold":1,"serverAddress":"http://a b"}`, []string{"metadata.serverAddress: Invalid value"}},
		{"a fragment", "prometheus", `{"query":"up","threshold":1,"serverAddress":"http://a/#b"}`, []string{"metadata.serverAddress: Invalid value"}},
		{"a header that is no string", "prometheus", `{"query":"up","threshold":1,"headers":{"X-Scope-OrgID":1}}`, []string{"metadata.headers: Invalid value"}},
		{"a header name with a space", "prometheus", `{"query":"up","threshold":1,"headers":{"a b":"c"}}`, []string{"metadata.headers: Invalid value"}},
		{"a header value with a line break", "prometheus", `{"query":"up","threshold":1,"headers":{"a":"b\nc"}}`, []string{"metadata.headers[a]: Invalid value"}},
		{"no object", "traffic", `[]`, []string{"metadata: Invalid value"}},
		{"nothing", "externalMetric", `{}`, []string{"metadata.metricName: Required value", "metadata.threshold: Required value"}},
		{"a path as the name", "externalMetric", `{"metricName":"../other/queue_length","threshold":1}`, []string{"metadata.metricName: Invalid value"}},
		{"no selector", "externalMetric", `{"metricName":"a","selector":"a=b=c","threshold":1}`, []string{"metadata.selector: Invalid value"}},
		{"a word as threshold", "externalMetric", `{"metricName":"a","threshold":"1x"}`, []string{"metadata.threshold: Invalid value"}},
		{"nothing", "cpu", `{}`, []string{"metadata.threshold: Required value"}},
		{"less than nothing", "cpu", `{"threshold":"-1m"}`, []string{"metadata.threshold: Invalid value"}},
		{"no threshold", "cpu", `{"threshold":0}`, []string{"metadata.threshold: Invalid value"}},
		{"too much", "cpu", `{"threshold":1,"notes":"` + strings.Repeat("x", 66000) + `"}`, []string{"metadata: Too long"}},
	} {
		t.Run(test.triggerType+"/"+test.name, func(t *testing.T) {
			errs := triggers.Validate(test.triggerType, metadata(test.metadata), field.NewPath("metadata"))
			if len(errs) != len(test.errors) {
				t.Fatalf("got %v, want %v", errs, test.errors)
			}
			for i, err := range errs {
				if !strings.HasPrefix(err.Error(), test.errors[i]) {
					t.Errorf("got %v, want %s", err, test.errors[i])
				}
			}
		})
	}
}

// What is configured may be a secret, and what is rejected ends up in logs.
func TestRejectionsKeepSecrets(t *testing.T) {
	const secret = "hunter2"
	for _, text := range []string{
		`{"query":"up","threshold":1,"headers":{"Authorization":"Bearer ` + secret + `\n"}}`,
		`{"query":"up","threshold":1,"serverAddress":"ftp://user:` + secret + `@prometheus"}`,
		`{"query":"up","threshold":1,"serverAddress":"http://user:` + secret + `@a b"}`,
	} {
		errs := triggers.Validate(triggers.TypePrometheus, metadata(text), field.NewPath("metadata"))
		if len(errs) == 0 || strings.Contains(errs.ToAggregate().Error(), secret) {
			t.Errorf("got %v, want an error without the secret", errs)
		}
	}
}

func TestUnknownKeys(t *testing.T) {
	got := triggers.UnknownKeys(triggers.TypePrometheus, metadata(`{"query":"up","treshold":1,"interval":"5s"}`))
	if want := []string{"interval", "treshold"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := triggers.UnknownKeys(triggers.TypeTraffic, nil); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
}
