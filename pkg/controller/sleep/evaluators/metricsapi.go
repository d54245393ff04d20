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
	"errors"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// maxMetricAge is how old a metric of a metrics API may be. Metrics are
// collected every 15 s to a minute.
const maxMetricAge = 5 * time.Minute

// ScaleReader reads the scales of targets. It is safe for concurrent use.
type ScaleReader interface {
	Get(ctx context.Context, target scaling.Target) (*autoscalingv1.Scale, error)
}

// MetricsAPIOptions configure the evaluators that read the metrics APIs of the
// cluster. Fields without a default are required.
type MetricsAPIOptions struct {
	// Host sends requests to the cluster.
	Host rest.Interface
	// Scales reads the scales of targets, which name their pods. Only the
	// evaluator of the type cpu needs it.
	Scales ScaleReader
	// Limiter sends the queries. Defaults to one of its own.
	Limiter *queries.Limiter
	// Clock is the time. Defaults to the real clock.
	Clock clock.PassiveClock
}

func (o *MetricsAPIOptions) complete() {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Limiter == nil {
		o.Limiter = queries.NewLimiter(queries.Options{Clock: o.Clock})
	}
}

// explainMetricsError returns the error for a request to a metrics API that
// failed.
func explainMetricsError(api string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return failure(v1alpha1.ReasonNoData, "%s does not know the metric, or is not installed in the cluster", api)
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return failure(v1alpha1.ReasonServerRefused, "the elasti-apiserver may not read %s: grant it get and list there", api)
	case errors.Is(err, context.DeadlineExceeded):
		return serverFault("%s did not respond in time", api)
	default:
		return serverFault("%s cannot be queried (%s)", api, apierrors.ReasonForError(err))
	}
}
