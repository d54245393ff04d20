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

package elastiservice

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Values of the label "result" of wakes.
const (
	// wakeScaled: the target was scaled up.
	wakeScaled = "scaled"
	// wakeUnchanged: the target was awake.
	wakeUnchanged = "unchanged"
	// wakeRejected: the request was not valid or not allowed, or there is nothing to wake.
	wakeRejected = "rejected"
	// wakeCanceled: the client did not wait for the end.
	wakeCanceled = "canceled"
	// wakeError: the target could not be woken.
	wakeError = "error"
)

var wakeResults = []string{wakeScaled, wakeUnchanged, wakeRejected, wakeCanceled, wakeError}

// wakeBuckets are in seconds. A wake is a few calls of the Kubernetes API.
var wakeBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30}

// Metrics count what is requested of ElastiServices. They are safe for concurrent use.
type Metrics struct {
	wakes *prometheus.HistogramVec
}

// NewMetrics returns metrics that are registered with a registerer.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		wakes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "elasti_operator_wake_seconds",
			Help:    "Duration of requests to wake a target in seconds, by result: " + strings.Join(wakeResults, ", ") + ". Dry runs are not counted.",
			Buckets: wakeBuckets,
		}, []string{"result"}),
	}
	for _, result := range wakeResults {
		m.wakes.WithLabelValues(result)
	}
	registerer.MustRegister(m.wakes)
	return m
}

// woken counts a request to wake a target.
func (m *Metrics) woken(scaled bool, err error, took time.Duration) {
	m.wakes.WithLabelValues(wakeResult(scaled, err)).Observe(took.Seconds())
}

// wakeResult returns the value of the label "result" of a wake.
func wakeResult(scaled bool, err error) string {
	var status apierrors.APIStatus
	switch {
	case err == nil && scaled:
		return wakeScaled
	case err == nil:
		return wakeUnchanged
	case errors.Is(err, context.Canceled):
		return wakeCanceled
	case errors.As(err, &status) && status.Status().Code >= 400 && status.Status().Code < 500:
		return wakeRejected
	default:
		return wakeError
	}
}
