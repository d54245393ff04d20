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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Values of the label "error": empty, or the class of the error. The texts of
// errors are in the log.
const (
	errorNone      = ""
	errorConflict  = "conflict"
	errorForbidden = "forbidden"
	errorNotFound  = "notFound"
	errorOther     = "other"
)

var errorClasses = []string{errorNone, errorConflict, errorForbidden, errorNotFound, errorOther}

// errorClass is the one place where errors become values of a label.
func errorClass(err error) string {
	switch {
	case err == nil:
		return errorNone
	case apierrors.IsConflict(err):
		return errorConflict
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return errorForbidden
	case apierrors.IsNotFound(err):
		return errorNotFound
	default:
		return errorOther
	}
}

// Metrics count what the controller does. The label crd_name is the name of
// the ElastiService; namespace distinguishes those of one name. The series of an
// ElastiService are deleted with it.
type Metrics struct {
	reconciles *prometheus.HistogramVec
	finalized  *prometheus.CounterVec
	switches   *prometheus.CounterVec
	mode       *prometheus.GaugeVec
	waiting    prometheus.Gauge
}

// NewMetrics returns metrics that are registered with a registerer.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		reconciles: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "elasti_operator_reconcile",
			Help:    "Duration of syncs of ElastiServices in seconds, by class of error.",
			Buckets: []float64{.1, .5, 1, 2, 5, 10},
		}, []string{"crd_name", "namespace", "error"}),
		finalized: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "elasti_operator_CRD_finalizer_counter",
			Help: "Number of cleanups of deleted ElastiServices, by class of error.",
		}, []string{"crd_name", "namespace", "error"}),
		switches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "elasti_operator_CRD_update_counter",
			Help: "Number of switches to a mode, by class of error.",
		}, []string{"crd_name", "namespace", "mode", "error"}),
		mode: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "elasti_operator_mode",
			Help: "Mode of an ElastiService: 1 for proxy, 0 for serve.",
		}, []string{"crd_name", "namespace"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "elasti_operator_waiting_for_wake",
			Help: "Number of ElastiServices whose targets wait to be woken under --wake-rate.",
		}),
	}
	registerer.MustRegister(m.reconciles, m.finalized, m.switches, m.mode, m.waiting)
	return m
}

// waitForWake sets how many ElastiServices wait for their turn to be woken.
func (m *Metrics) waitForWake(waiting int) { m.waiting.Set(float64(waiting)) }

func (m *Metrics) reconciled(key types.NamespacedName, class string, took time.Duration) {
	m.reconciles.WithLabelValues(key.Name, key.Namespace, class).Observe(took.Seconds())
}

func (m *Metrics) finalizing(key types.NamespacedName, err error) {
	m.finalized.WithLabelValues(key.Name, key.Namespace, errorClass(err)).Inc()
}

func (m *Metrics) switched(key types.NamespacedName, mode v1alpha1.Mode, err error) {
	m.switches.WithLabelValues(key.Name, key.Namespace, string(mode), errorClass(err)).Inc()
}

func (m *Metrics) inMode(key types.NamespacedName, mode v1alpha1.Mode) {
	value := 0.0
	if mode == v1alpha1.ModeProxy {
		value = 1
	}
	m.mode.WithLabelValues(key.Name, key.Namespace).Set(value)
}

// forget deletes the series of an ElastiService.
func (m *Metrics) forget(key types.NamespacedName) {
	for _, class := range errorClasses {
		m.reconciles.DeleteLabelValues(key.Name, key.Namespace, class)
		m.finalized.DeleteLabelValues(key.Name, key.Namespace, class)
		for _, mode := range []v1alpha1.Mode{v1alpha1.ModeProxy, v1alpha1.ModeServe} {
			m.switches.DeleteLabelValues(key.Name, key.Namespace, string(mode), class)
		}
	}
	m.mode.DeleteLabelValues(key.Name, key.Namespace)
}
