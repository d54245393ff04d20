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

// Package metrics has the metrics of a resolver. Their labels are bounded: the
// namespace and name of a public Service, and the values listed here. What
// clients send never becomes a label.
//
// It measures nothing itself, and does not know what does. Begin with Metrics.
package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localfault"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
)

const prefix = "elasti_resolver_"

// The values of the step label of cold_start_seconds.
const (
	stepWake    = "wake"
	stepPod     = "pod"
	stepRelease = "release"
)

// The values of the result label of wake_calls_total.
const (
	resultSuccess = "success"
	resultError   = "error"
)

var (
	// The latency of a resolver is below a second, the start of a pod takes longer.
	holdBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2, 5, 10, 30, 60, 120, 300, 600}
	stepBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	wakeBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 10}
)

// Process has the values of the metrics of the whole process.
type Process interface {
	// Listeners, Connections and HeldBytes return the current numbers.
	Listeners() int
	Connections() int
	HeldBytes() int64
	// HeldBytesLimit returns the limit on HeldBytes.
	HeldBytesLimit() int64
	// ConnectionLimit returns the current limit on connections of clients.
	ConnectionLimit() int
	// AccessLogDropped returns how many lines of the access log were dropped.
	AccessLogDropped() int64
}

// RejectionReason is the reason for which a connection of a client was rejected. It is
// a label.
type RejectionReason string

const (
	// RejectedProcess: the process has reached its limit on connections.
	RejectedProcess RejectionReason = "process_limit"
	// RejectedService: the service has reached its limit on connections.
	RejectedService RejectionReason = "service_limit"
	// RejectedClient: the client's address has reached its limit on connections.
	RejectedClient RejectionReason = "client_limit"
	// RejectedMemory: the memory of a connection exceeds a limit.
	RejectedMemory RejectionReason = "memory_limit"
	// RejectedAddress: spec.proxy.allowedClients does not include the client's address.
	RejectedAddress RejectionReason = "address_not_allowed"
	// RejectedServing: the target is awake, and resolvers are not in the path of the
	// Service.
	RejectedServing RejectionReason = "serve_mode"
)

// RejectionReasons returns every RejectionReason.
func RejectionReasons() []RejectionReason {
	return []RejectionReason{RejectedProcess, RejectedService, RejectedClient, RejectedMemory, RejectedAddress, RejectedServing}
}

// Metrics are the metrics of a resolver. They are safe for concurrent use.
type Metrics struct {
	held      *prometheus.CounterVec
	hold      *prometheus.HistogramVec
	coldStart *prometheus.HistogramVec
	ended     *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	wakeCalls *prometheus.CounterVec
	wake      *prometheus.HistogramVec
	services  *services

	panics      prometheus.Counter
	localFaults *prometheus.CounterVec
	rejected    *prometheus.CounterVec
	// refused has the values of rejected under its previous name, until 0.2.0.
	refused   *prometheus.CounterVec
	conflicts prometheus.Gauge
}

// New creates metrics and registers them.
func New(registerer prometheus.Registerer, process Process) (*Metrics, error) {
	service := []string{"namespace", "service"}
	with := func(label string) []string { return []string{"namespace", "service", label} }
	counter := func(name, help string, labels []string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels []string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets}, labels)
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + name, Help: help}, value)
	}
	m := &Metrics{
		held:      counter("held_total", "Requests and connections that were held, or would have been, by outcome: "+list(localreply.HeldOutcomes())+".", with("outcome")),
		hold:      histogram("hold_seconds", "Time for which requests and connections were held until they got a pod.", holdBuckets, service),
		coldStart: histogram("cold_start_seconds", "Time of the steps of a cold start of held requests: until the wake call returned (wake), until a pod was ready (pod), until the request got a pod (release).", stepBuckets, with("step")),
		ended:     counter("requests_total", "Requests and connections that ended, by protocol ("+list(accesslog.Protocols())+") and outcome ("+list(accesslog.Outcomes())+").", []string{"namespace", "service", "protocol", "outcome"}),
		bytes:     counter("bytes_total", "Bytes received from clients (in) and sent to clients (out).", with("direction")),
		wakeCalls: counter("wake_calls_total", "Wake calls, by result: success or error.", with("result")),
		wake:      histogram("wake_seconds", "Duration of wake calls.", wakeBuckets, service),
		services:  newServices(),

		panics:      prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "panics_total", Help: "Panics while a connection was served. Each ended one connection."}),
		localFaults: counter("local_faults_total", "Connections that could not be accepted or made for lack of a resource of the resolver, by resource: "+list(localfault.Kinds())+".", []string{"kind"}),
		rejected:    counter("connections_rejected_total", "Connections of clients that were reset, and requests on the shared port that were rejected, because of a limit or because the client may not reach the service now, by reason: "+list(RejectionReasons())+".", []string{"reason"}),
		refused:     counter("connections_refused_total", "Deprecated: the previous name of elasti_resolver_connections_rejected_total.", []string{"reason"}),
		conflicts:   prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "proxy_port_conflicts", Help: "Claims of ElastiServices on proxy ports that another one has claimed earlier. A value other than 0 is a fault of the server, or an attack."}),
	}
	for _, kind := range localfault.Kinds() {
		m.localFaults.WithLabelValues(string(kind))
	}
	for _, reason := range RejectionReasons() {
		m.rejected.WithLabelValues(string(reason))
		m.refused.WithLabelValues(string(reason))
	}
	for _, collector := range []prometheus.Collector{
		m.held, m.hold, m.coldStart, m.ended, m.bytes, m.wakeCalls, m.wake, m.services, m.panics, m.localFaults, m.rejected, m.refused, m.conflicts,
		gauge("listeners", "Proxy ports that are open.", func() float64 { return float64(process.Listeners()) }),
		gauge("connections", "Connections of clients that are open.", func() float64 { return float64(process.Connections()) }),
		gauge("connections_limit", "Connections of clients that may be open now.", func() float64 { return float64(process.ConnectionLimit()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: prefix + "access_log_dropped_total", Help: "Lines of the access log that were dropped because standard output was not read or failed."},
			func() float64 { return float64(process.AccessLogDropped()) }),
		gauge("held_bytes", "Bytes of memory that requests and connections use.", func() float64 { return float64(process.HeldBytes()) }),
		gauge("held_bytes_limit", "Bytes of memory that requests and connections may use.", func() float64 { return float64(process.HeldBytesLimit()) }),
	} {
		if err := registerer.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// list lists values of a label.
func list[T ~string](values []T) string {
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = string(value)
	}
	return strings.Join(texts, ", ")
}

// Panicked counts a panic while a connection was served.
func (m *Metrics) Panicked() { m.panics.Inc() }

// LocalFault counts a fault of the resolver's own machine.
func (m *Metrics) LocalFault(fault *localfault.Error) {
	m.localFaults.WithLabelValues(string(fault.Kind)).Inc()
}

// ConnectionRejected counts a connection that was rejected.
func (m *Metrics) ConnectionRejected(reason RejectionReason) {
	m.rejected.WithLabelValues(string(reason)).Inc()
	m.refused.WithLabelValues(string(reason)).Inc()
}

// PortConflicts sets the number of claims on proxy ports that another ElastiService
// has claimed earlier.
func (m *Metrics) PortConflicts(count int) { m.conflicts.Set(float64(count)) }
