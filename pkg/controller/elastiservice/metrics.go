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
	"strings"
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

// Values of the label "queue".
const (
	queueSync   = "sync"
	queueStatus = "status"
)

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
	ready      *prometheus.GaugeVec
	process    processMetrics
}

// processMetrics are those of the controller as a whole.
type processMetrics struct {
	leading         prometheus.Gauge
	waiting         prometheus.Gauge
	queued          *prometheus.GaugeVec
	statusWrites    *prometheus.CounterVec
	proxyPorts      prometheus.Gauge
	proxyPortsLimit prometheus.Gauge
}

// NewMetrics returns metrics that are registered with a registerer.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		reconciles: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "elasti_operator_reconcile",
			Help:    "Duration of syncs of ElastiServices in seconds, by class of error: " + errorClassesText() + ".",
			Buckets: []float64{.1, .5, 1, 2, 5, 10},
		}, []string{"crd_name", "namespace", "error"}),
		finalized: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "elasti_operator_CRD_finalizer_counter",
			Help: "Number of cleanups of deleted ElastiServices, by class of error: " + errorClassesText() + ".",
		}, []string{"crd_name", "namespace", "error"}),
		switches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "elasti_operator_CRD_update_counter",
			Help: "Number of switches to a mode, proxy or serve, by class of error: " + errorClassesText() + ".",
		}, []string{"crd_name", "namespace", "mode", "error"}),
		mode: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "elasti_operator_mode",
			Help: "Mode of an ElastiService: 1 for proxy, 0 for serve.",
		}, []string{"crd_name", "namespace"}),
		ready: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "elasti_operator_ready",
			Help: "Whether the condition Ready of an ElastiService is true: 1 if it is, 0 otherwise.",
		}, []string{"crd_name", "namespace"}),
		process: newProcessMetrics(registerer),
	}
	registerer.MustRegister(m.reconciles, m.finalized, m.switches, m.mode, m.ready)
	return m
}

func newProcessMetrics(registerer prometheus.Registerer) processMetrics {
	m := processMetrics{
		leading: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "elasti_operator_leading",
			Help: "Whether this replica runs the controller: 1 if it does, 0 otherwise. One of all replicas does.",
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "elasti_operator_waiting_for_wake",
			Help: "Number of ElastiServices whose targets wait to be woken under --wake-rate.",
		}),
		queued: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "elasti_operator_queue_depth",
			Help: "Number of ElastiServices that wait for a worker of the controller, by queue: sync, or status for those whose status is to be written.",
		}, []string{"queue"}),
		statusWrites: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "elasti_operator_status_writes_total",
			Help: "Number of attempts of the controller to write a status, by class of error: " + errorClassesText() + ".",
		}, []string{"error"}),
		proxyPorts: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "elasti_operator_proxy_ports",
			Help: "Number of proxy ports that ElastiServices have.",
		}),
		proxyPortsLimit: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "elasti_operator_proxy_ports_limit",
			Help: "Number of proxy ports that there are.",
		}),
	}
	for _, queue := range []string{queueSync, queueStatus} {
		m.queued.WithLabelValues(queue)
	}
	for _, class := range errorClasses {
		m.statusWrites.WithLabelValues(class)
	}
	registerer.MustRegister(m.leading, m.waiting, m.queued, m.statusWrites, m.proxyPorts, m.proxyPortsLimit)
	return m
}

// errorClassesText lists the values of the label "error".
func errorClassesText() string {
	return "none (empty), " + strings.Join(errorClasses[1:], ", ")
}

// started records that this replica runs the controller, and how many proxy ports there are.
func (m *Metrics) started(proxyPorts int) {
	m.process.leading.Set(1)
	m.process.proxyPortsLimit.Set(float64(proxyPorts))
}

// stopped records that this replica does not run the controller any more. What it observed
// last is that of another one now.
func (m *Metrics) stopped() {
	m.mode.Reset()
	m.ready.Reset()
	for _, queue := range []string{queueSync, queueStatus} {
		m.process.queued.WithLabelValues(queue).Set(0)
	}
	for _, gauge := range []prometheus.Gauge{m.process.leading, m.process.waiting, m.process.proxyPorts, m.process.proxyPortsLimit} {
		gauge.Set(0)
	}
}

// queueLength returns what sets how many ElastiServices wait in a queue.
func (m *Metrics) queueLength(queue string) func(waiting int) {
	gauge := m.process.queued.WithLabelValues(queue)
	return func(waiting int) { gauge.Set(float64(waiting)) }
}

func (m *Metrics) proxyPortsUsed(ports int32) { m.process.proxyPorts.Set(float64(ports)) }

func (m *Metrics) statusWritten(err error) {
	m.process.statusWrites.WithLabelValues(errorClass(err)).Inc()
}

func (m *Metrics) isReady(key types.NamespacedName, ready bool) {
	value := 0.0
	if ready {
		value = 1
	}
	m.ready.WithLabelValues(key.Name, key.Namespace).Set(value)
}

// waitForWake sets how many ElastiServices wait for their turn to be woken.
func (m *Metrics) waitForWake(waiting int) { m.process.waiting.Set(float64(waiting)) }

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
	m.ready.DeleteLabelValues(key.Name, key.Namespace)
}
