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

package informers

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label "action" of elasti_operator_informer_counter.
const (
	actionStart   = "start"
	actionStop    = "stop"
	actionRestart = "restart"
)

// Values of the label "event" of elasti_operator_informer_handler_counter.
const (
	eventAdded   = "added"
	eventUpdated = "updated"
	eventDeleted = "deleted"
)

// Metrics count what watches do. The label informer_name is the resource, such
// as deployments.apps.
type Metrics struct {
	running *prometheus.GaugeVec
	actions *prometheus.CounterVec
	events  *prometheus.CounterVec
}

// NewMetrics returns metrics that are registered with a registerer.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "elasti_operator_informer_count",
			Help: "Number of watches that are running, by resource.",
		}, []string{"informer_name"}),
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "elasti_operator_informer_counter",
			Help: "Number of watches that were started, stopped, and restarted because they did not work, by resource and action: start, stop, restart.",
		}, []string{"informer_name", "action"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "elasti_operator_informer_handler_counter",
			Help: "Number of changes that watches reported, by resource and kind of change: added, updated, deleted.",
		}, []string{"informer_name", "event"}),
	}
	registerer.MustRegister(m.running, m.actions, m.events)
	return m
}

func (m *Metrics) started(resource string) {
	m.running.WithLabelValues(resource).Inc()
	m.actions.WithLabelValues(resource, actionStart).Inc()
	m.actions.WithLabelValues(resource, actionStop).Add(0)
	m.actions.WithLabelValues(resource, actionRestart).Add(0)
}

func (m *Metrics) stopped(resource string) {
	m.running.WithLabelValues(resource).Dec()
	m.actions.WithLabelValues(resource, actionStop).Inc()
}

func (m *Metrics) restarted(resource string) {
	m.actions.WithLabelValues(resource, actionRestart).Inc()
}

func (m *Metrics) handled(resource string, before, after any) {
	event := eventUpdated
	switch {
	case before == nil:
		event = eventAdded
	case after == nil:
		event = eventDeleted
	}
	m.events.WithLabelValues(resource, event).Inc()
}
