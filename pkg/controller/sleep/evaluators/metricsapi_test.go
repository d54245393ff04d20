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
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// metricsOptions returns options whose host has a response for each URL.
func metricsOptions(t *testing.T, responses map[string]string) MetricsAPIOptions {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		body, ok := responses[r.URL.String()]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			body = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
		}
		_, _ = w.Write([]byte(body))
	}))
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
	})
	client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: server.URL}, &http.Client{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return MetricsAPIOptions{Host: client.Discovery().RESTClient(), Clock: clocktesting.NewFakePassiveClock(testNow)}
}

func stamp(age time.Duration) string { return testNow.Add(-age).Format(time.RFC3339) }

func TestExternalMetricStates(t *testing.T) {
	const path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/queue_length?labelSelector=queue%3Dorders"
	series := func(values ...string) string {
		return `{"kind":"ExternalMetricValueList","apiVersion":"external.metrics.k8s.io/v1beta1","items":[` + strings.Join(values, ",") + `]}`
	}
	value := func(value string, age time.Duration) string {
		return fmt.Sprintf(`{"metricName":"queue_length","timestamp":%q,"value":%q}`, stamp(age), value)
	}
	for _, test := range []struct {
		name     string
		response string
		state    State
		reason   string
	}{
		{"below", series(value("200m", 0), value("200m", time.Minute)), Idle, v1alpha1.ReasonBelowThreshold},
		{"the sum reaches it", series(value("200m", 0), value("300m", 0)), Active, v1alpha1.ReasonThresholdReached},
		{"no series", series(), Unknown, v1alpha1.ReasonNoData},
		{"too old", series(value("0", time.Hour)), Unknown, v1alpha1.ReasonDataIncomplete},
		{"not known", "", Unknown, v1alpha1.ReasonNoData},
		{"no list", `[]`, Unknown, v1alpha1.ReasonNotANumber},
	} {
		t.Run(test.name, func(t *testing.T) {
			responses := map[string]string{}
			if test.response != "" {
				responses[path] = test.response
			}
			subject := subjectOf(triggers.TypeExternalMetric, `{"metricName":"queue_length","selector":"queue=orders","threshold":"500m"}`)
			subject.ElastiService.Namespace = "shop"
			result, err := NewExternalMetric(metricsOptions(t, responses)).Evaluate(t.Context(), subject)
			if err != nil || result.State != test.state || result.Reason != test.reason {
				t.Errorf("got %+v, %v, want %s because of %s", result, err, test.state, test.reason)
			}
		})
	}
}

// fakeScale is the scale of every target.
type fakeScale struct {
	desired, pods int32
	selector      string
	err           error
}

func (f fakeScale) Get(context.Context, scaling.Target) (*autoscalingv1.Scale, error) {
	return &autoscalingv1.Scale{
		Spec:   autoscalingv1.ScaleSpec{Replicas: f.desired},
		Status: autoscalingv1.ScaleStatus{Replicas: f.pods, Selector: f.selector},
	}, f.err
}

func TestCPUStates(t *testing.T) {
	const path = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods?labelSelector=app%3Dshop"
	pods := func(values ...string) string { return `{"items":[` + strings.Join(values, ",") + `]}` }
	pod := func(age time.Duration, usages ...string) string {
		containers := make([]string, 0, len(usages))
		for _, usage := range usages {
			containers = append(containers, fmt.Sprintf(`{"name":"c","usage":{"cpu":%q,"memory":"1Mi"}}`, usage))
		}
		return fmt.Sprintf(`{"timestamp":%q,"window":"30s","containers":[%s]}`, stamp(age), strings.Join(containers, ","))
	}
	two := fakeScale{desired: 2, pods: 2, selector: "app=shop"}
	for _, test := range []struct {
		name     string
		scale    fakeScale
		response string
		state    State
		reason   string
	}{
		{"below", two, pods(pod(0, "10m", "5m"), pod(time.Minute, "20m")), Idle, v1alpha1.ReasonBelowThreshold},
		{"the sum reaches it", two, pods(pod(0, "20m", "15m"), pod(0, "15m")), Active, v1alpha1.ReasonThresholdReached},
		{"a pod has none", two, pods(pod(0, "1m")), Unknown, v1alpha1.ReasonDataIncomplete},
		{"too old", two, pods(pod(0, "1m"), pod(time.Hour, "1m")), Unknown, v1alpha1.ReasonDataIncomplete},
		{"no metrics API", two, "", Unknown, v1alpha1.ReasonNoData},
		{"asleep", fakeScale{}, "", Idle, v1alpha1.ReasonBelowThreshold},
		{"starting", fakeScale{desired: 1, selector: "app=shop"}, pods(), Unknown, v1alpha1.ReasonDataIncomplete},
		{"a kind without a selector", fakeScale{desired: 1, pods: 1}, "", Unknown, v1alpha1.ReasonNotSupported},
		{"no scale", fakeScale{err: context.DeadlineExceeded}, "", Unknown, v1alpha1.ReasonDataIncomplete},
	} {
		t.Run(test.name, func(t *testing.T) {
			responses := map[string]string{}
			if test.response != "" {
				responses[path] = test.response
			}
			options := metricsOptions(t, responses)
			options.Scales = test.scale
			subject := subjectOf(triggers.TypeCPU, `{"threshold":"50m"}`)
			subject.ElastiService.Namespace = "shop"
			subject.ElastiService.Spec.ScaleTargetRef = v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "shop"}
			result, err := NewCPU(options).Evaluate(t.Context(), subject)
			if err != nil || result.State != test.state || result.Reason != test.reason {
				t.Errorf("got %+v, %v, want %s because of %s", result, err, test.state, test.reason)
			}
		})
	}
}
