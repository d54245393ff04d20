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
	"encoding/json"
	"fmt"

	externalmetrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// ExternalMetric evaluates triggers of the type externalMetric. It is safe for
// concurrent use.
type ExternalMetric struct {
	options MetricsAPIOptions
}

var _ Evaluator = &ExternalMetric{}

// NewExternalMetric returns an evaluator of triggers of the type externalMetric.
func NewExternalMetric(options MetricsAPIOptions) *ExternalMetric {
	options.complete()
	return &ExternalMetric{options: options}
}

// Evaluate reads the metric from external.metrics.k8s.io, in the namespace of
// the ElastiService, and adds up its series.
func (e *ExternalMetric) Evaluate(ctx context.Context, subject Subject) (Result, error) {
	trigger, errs := triggers.ParseExternalMetric(subject.Trigger.Metadata, nil)
	if len(errs) > 0 {
		return unknown(v1alpha1.ReasonMetadataInvalid, "%v", errs.ToAggregate()), nil
	}
	const api = "external.metrics.k8s.io"
	namespace, selector := subject.ElastiService.Namespace, trigger.Selector.String()
	query := queries.Query{Namespace: namespace, Server: api, Text: fmt.Sprintf("%s?%s", trigger.MetricName, selector)}
	got, err := e.options.Limiter.Do(ctx, query, subject.MaxAge, func(ctx context.Context) (queries.Result, error) {
		body, err := e.options.Host.Get().
			AbsPath("/apis", api, externalmetrics.SchemeGroupVersion.Version, "namespaces", namespace, trigger.MetricName).
			Param("labelSelector", selector).
			DoRaw(ctx)
		if err != nil {
			return queries.Result{}, explainMetricsError(api, err)
		}
		sum, err := e.sum(trigger.MetricName, body)
		return queries.Result{Value: sum}, err
	})
	if err != nil {
		return resultOf(err)
	}
	return compare(got, trigger.Threshold), nil
}

func (e *ExternalMetric) sum(metric string, body []byte) (float64, error) {
	var values externalmetrics.ExternalMetricValueList
	if err := json.Unmarshal(body, &values); err != nil {
		return 0, failure(v1alpha1.ReasonNotANumber, "the response for the external metric %q cannot be read", metric)
	}
	if len(values.Items) == 0 {
		return 0, failure(v1alpha1.ReasonNoData, "the external metric %q has no series that the selector selects", metric)
	}
	sum := 0.0
	for i := range values.Items {
		item := &values.Items[i]
		if e.options.Clock.Since(item.Timestamp.Time) > maxMetricAge {
			return 0, failure(v1alpha1.ReasonDataIncomplete, "the external metric %q is older than %s", metric, maxMetricAge)
		}
		sum += item.Value.AsApproximateFloat64()
	}
	return sum, nil
}
