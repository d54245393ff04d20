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

package sleep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	externalmetrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	resourcemetrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// maxMetricAge is how old a metric of a metrics API may be. Metrics are
// collected every 15 s to a minute.
const maxMetricAge = 5 * time.Minute

// ScaleReader reads the scales of targets. Safe for concurrent use.
type ScaleReader interface {
	Get(ctx context.Context, target scaling.Target) (*autoscalingv1.Scale, error)
}

// MetricsAPIOptions configure the evaluators that ask the metrics APIs of the
// cluster. Fields without a default are required.
type MetricsAPIOptions struct {
	// Host asks the cluster.
	Host rest.Interface
	// Scales reads the scales of targets, which name their pods. Only the
	// evaluator of the type cpu needs it.
	Scales ScaleReader
	// Timeout is how long an API may take to answer. Defaults to 10 s.
	Timeout time.Duration
	// Clock is the time. Defaults to the real clock.
	Clock clock.PassiveClock
}

func (o *MetricsAPIOptions) complete() {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
}

// ExternalMetrics evaluates triggers of the type externalMetric. Safe for
// concurrent use.
type ExternalMetrics struct {
	options   MetricsAPIOptions
	questions *questions
}

var _ Evaluator = &ExternalMetrics{}

// NewExternalMetrics returns an evaluator of triggers of the type externalMetric.
func NewExternalMetrics(options MetricsAPIOptions) *ExternalMetrics {
	options.complete()
	return &ExternalMetrics{options: options, questions: newQuestions(options.Clock, options.Timeout)}
}

// Evaluate asks external.metrics.k8s.io for the metric, in the namespace of the
// ElastiService, and adds up its series.
func (e *ExternalMetrics) Evaluate(ctx context.Context, subject Subject) (Result, error) {
	trigger, errs := triggers.ParseExternalMetric(subject.Trigger.Metadata, nil)
	if len(errs) > 0 {
		return unknownBecause(v1alpha1.ReasonMetadataInvalid, "%v", errs.ToAggregate()), nil
	}
	const api = "external.metrics.k8s.io"
	namespace, selector := subject.ElastiService.Namespace, trigger.Selector.String()
	asked := question{server: api, text: fmt.Sprintf("%s/%s?%s", namespace, trigger.MetricName, selector)}
	value, err := e.questions.ask(ctx, asked, subject.MaxAge, func(ctx context.Context) (float64, error) {
		body, err := e.options.Host.Get().
			AbsPath("/apis", api, externalmetrics.SchemeGroupVersion.Version, "namespaces", namespace, trigger.MetricName).
			Param("labelSelector", selector).
			DoRaw(ctx)
		if err != nil {
			return 0, explainMetricsError(api, err)
		}
		return e.sum(trigger.MetricName, body)
	})
	if err != nil {
		return resultOf(err)
	}
	return compare(value, trigger.Threshold), nil
}

func (e *ExternalMetrics) sum(metric string, body []byte) (float64, error) {
	var values externalmetrics.ExternalMetricValueList
	if err := json.Unmarshal(body, &values); err != nil {
		return 0, noAnswer(v1alpha1.ReasonNotANumber, "the answer for the external metric %q cannot be read", metric)
	}
	if len(values.Items) == 0 {
		return 0, noAnswer(v1alpha1.ReasonNoData, "the external metric %q has no series that the selector selects", metric)
	}
	sum := 0.0
	for i := range values.Items {
		item := &values.Items[i]
		if e.options.Clock.Since(item.Timestamp.Time) > maxMetricAge {
			return 0, noAnswer(v1alpha1.ReasonDataIncomplete, "the external metric %q is older than %s", metric, maxMetricAge)
		}
		sum += item.Value.AsApproximateFloat64()
	}
	return sum, nil
}

// CPU evaluates triggers of the type cpu. Safe for concurrent use.
type CPU struct {
	options   MetricsAPIOptions
	questions *questions
}

var _ Evaluator = &CPU{}

// NewCPU returns an evaluator of triggers of the type cpu.
func NewCPU(options MetricsAPIOptions) *CPU {
	options.complete()
	return &CPU{options: options, questions: newQuestions(options.Clock, options.Timeout)}
}

// Evaluate asks metrics.k8s.io for what the target's pods use and adds it up.
// It counts only when every pod has a metric. Without pods the target is idle.
func (c *CPU) Evaluate(ctx context.Context, subject Subject) (Result, error) {
	trigger, errs := triggers.ParseCPU(subject.Trigger.Metadata, nil)
	if len(errs) > 0 {
		return unknownBecause(v1alpha1.ReasonMetadataInvalid, "%v", errs.ToAggregate()), nil
	}
	target := targetOf(subject.ElastiService)
	asked := question{server: resourcemetrics.GroupName, text: target.String()}
	value, err := c.questions.ask(ctx, asked, subject.MaxAge, func(ctx context.Context) (float64, error) {
		return c.usage(ctx, target)
	})
	if err != nil {
		return resultOf(err)
	}
	return compare(value, trigger.ThresholdCores), nil
}

// usage returns how many cores the pods of a target use together.
func (c *CPU) usage(ctx context.Context, target scaling.Target) (float64, error) {
	scale, err := c.options.Scales.Get(ctx, target)
	switch {
	case err != nil:
		return 0, noAnswer(v1alpha1.ReasonDataIncomplete, "the scale of %s %q cannot be read", target.Kind, target.Name)
	case scale.Spec.Replicas == 0 && scale.Status.Replicas == 0:
		return 0, nil
	case scale.Status.Selector == "":
		return 0, noAnswer(v1alpha1.ReasonNotSupported, "the scale of %s %q does not say which pods belong to it: use another type of trigger", target.Kind, target.Name)
	}
	body, err := c.options.Host.Get().
		AbsPath("/apis", resourcemetrics.GroupName, resourcemetrics.SchemeGroupVersion.Version, "namespaces", target.Namespace, "pods").
		Param("labelSelector", scale.Status.Selector).
		DoRaw(ctx)
	if err != nil {
		return 0, explainMetricsError(resourcemetrics.GroupName, err)
	}
	var pods resourcemetrics.PodMetricsList
	if err := json.Unmarshal(body, &pods); err != nil {
		return 0, noAnswer(v1alpha1.ReasonNotANumber, "the answer for the pods of %s %q cannot be read", target.Kind, target.Name)
	}
	if len(pods.Items) < int(max(scale.Spec.Replicas, scale.Status.Replicas)) {
		return 0, noAnswer(v1alpha1.ReasonDataIncomplete, "not every pod of %s %q has metrics yet", target.Kind, target.Name)
	}
	sum := 0.0
	for i := range pods.Items {
		pod := &pods.Items[i]
		if c.options.Clock.Since(pod.Timestamp.Time) > maxMetricAge {
			return 0, noAnswer(v1alpha1.ReasonDataIncomplete, "the metrics of the pods of %s %q are older than %s", target.Kind, target.Name, maxMetricAge)
		}
		for j := range pod.Containers {
			sum += pod.Containers[j].Usage.Cpu().AsApproximateFloat64()
		}
	}
	return sum, nil
}

// explainMetricsError says what kept a metrics API from answering.
func explainMetricsError(api string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return noAnswer(v1alpha1.ReasonNoData, "%s does not know the metric, or is not installed in the cluster", api)
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return noAnswer(v1alpha1.ReasonServerRefused, "the elasti-apiserver may not read %s: grant it get and list there", api)
	case errors.Is(err, context.DeadlineExceeded):
		return serverFault("%s did not answer in time", api)
	default:
		return serverFault("%s cannot be asked (%s)", api, apierrors.ReasonForError(err))
	}
}

func targetOf(elastiService *v1alpha1.ElastiService) scaling.Target {
	ref := elastiService.Spec.ScaleTargetRef
	return scaling.Target{Namespace: elastiService.Namespace, APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name}
}
