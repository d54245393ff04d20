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

	resourcemetrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// CPU evaluates triggers of the type cpu. It is safe for concurrent use.
type CPU struct {
	options MetricsAPIOptions
}

var _ Evaluator = &CPU{}

// NewCPU returns an evaluator of triggers of the type cpu.
func NewCPU(options MetricsAPIOptions) *CPU {
	options.complete()
	return &CPU{options: options}
}

// Evaluate reads what the target's pods use from metrics.k8s.io and adds it up.
// The sum counts only when every pod has a metric. Without pods the target is
// idle.
func (c *CPU) Evaluate(ctx context.Context, subject Subject) (Result, error) {
	trigger, errs := triggers.ParseCPU(subject.Trigger.Metadata, nil)
	if len(errs) > 0 {
		return unknown(v1alpha1.ReasonMetadataInvalid, "%v", errs.ToAggregate()), nil
	}
	target := scaling.TargetOf(subject.ElastiService.Namespace, subject.ElastiService.Spec.ScaleTargetRef)
	query := queries.Query{Namespace: target.Namespace, Server: resourcemetrics.GroupName, Text: target.String()}
	got, err := c.options.Limiter.Do(ctx, query, subject.MaxAge, func(ctx context.Context) (queries.Result, error) {
		cores, err := c.usage(ctx, target)
		return queries.Result{Value: cores}, err
	})
	if err != nil {
		return resultOf(err)
	}
	return compare(got, trigger.ThresholdCores), nil
}

// usage returns how many cores the pods of a target use together.
func (c *CPU) usage(ctx context.Context, target scaling.Target) (float64, error) {
	scale, err := c.options.Scales.Get(ctx, target)
	switch {
	case err != nil:
		return 0, failure(v1alpha1.ReasonDataIncomplete, "the scale of %s %q cannot be read", target.Kind, target.Name)
	case scale.Spec.Replicas == 0 && scale.Status.Replicas == 0:
		return 0, nil
	case scale.Status.Selector == "":
		return 0, failure(v1alpha1.ReasonNotSupported, "the scale of %s %q does not say which pods belong to it: use another type of trigger", target.Kind, target.Name)
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
		return 0, failure(v1alpha1.ReasonNotANumber, "the response for the pods of %s %q cannot be read", target.Kind, target.Name)
	}
	if len(pods.Items) < int(max(scale.Spec.Replicas, scale.Status.Replicas)) {
		return 0, failure(v1alpha1.ReasonDataIncomplete, "not every pod of %s %q has metrics yet", target.Kind, target.Name)
	}
	sum := 0.0
	for i := range pods.Items {
		pod := &pods.Items[i]
		if c.options.Clock.Since(pod.Timestamp.Time) > maxMetricAge {
			return 0, failure(v1alpha1.ReasonDataIncomplete, "the metrics of the pods of %s %q are older than %s", target.Kind, target.Name, maxMetricAge)
		}
		for j := range pod.Containers {
			sum += pod.Containers[j].Usage.Cpu().AsApproximateFloat64()
		}
	}
	return sum, nil
}
