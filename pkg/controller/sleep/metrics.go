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
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Metrics count what is decided and what it saves. The series of an
// ElastiService go with it. Safe for concurrent use.
type Metrics struct {
	clock       clock.PassiveClock
	evaluations *prometheus.CounterVec
	decisions   *prometheus.CounterVec

	secondsAsleep *prometheus.Desc
	replicasSaved *prometheus.Desc

	mu      sync.Mutex
	savings map[types.NamespacedName]*saving
}

// saving is what the sleep of one target has saved.
type saving struct {
	// wanted is how many replicas the target last had while it was awake, or
	// has at least when it wakes.
	wanted int32
	// since is when it went to sleep. Zero while it is awake.
	since time.Time
	// asleep and replicaTime are the sums of what has ended.
	asleep      time.Duration
	replicaTime time.Duration
}

// until returns the sums up to a time.
func (s *saving) until(now time.Time) (asleep, replicaTime time.Duration) {
	if s.since.IsZero() {
		return s.asleep, s.replicaTime
	}
	current := max(0, now.Sub(s.since))
	return s.asleep + current, s.replicaTime + time.Duration(s.wanted)*current
}

// NewMetrics returns metrics that are registered with a registerer.
func NewMetrics(registerer prometheus.Registerer, clock clock.PassiveClock) *Metrics {
	perObject := []string{"crd_name", "namespace"}
	m := &Metrics{
		clock: clock,
		evaluations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "elasti_operator_trigger_evaluations_total",
			Help: "Number of evaluations of triggers, by type and by what they say: idle, active or unknown.",
		}, []string{"type", "result"}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "elasti_operator_sleep_decisions_total",
			Help: "Number of looks at ElastiServices, by what is done: none, sleep or wake. In a dry run it is not done.",
		}, []string{"action"}),
		secondsAsleep: prometheus.NewDesc("elasti_operator_asleep_seconds_total",
			"Seconds that the target of an ElastiService has slept.", perObject, nil),
		replicasSaved: prometheus.NewDesc("elasti_operator_replica_seconds_saved_total",
			"Seconds that the target of an ElastiService has slept, times the replicas that it had before.", perObject, nil),
		savings: map[types.NamespacedName]*saving{},
	}
	for _, action := range []Action{ActionNone, ActionSleep, ActionWake} {
		m.decisions.WithLabelValues(string(action))
	}
	registerer.MustRegister(m.evaluations, m.decisions, m)
	return m
}

// Describe describes the metrics per ElastiService.
func (m *Metrics) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- m.secondsAsleep
	descriptions <- m.replicasSaved
}

// Collect collects the metrics per ElastiService.
func (m *Metrics) Collect(metrics chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	for key, saved := range m.savings {
		asleep, replicaTime := saved.until(now)
		metrics <- prometheus.MustNewConstMetric(m.secondsAsleep, prometheus.CounterValue, asleep.Seconds(), key.Name, key.Namespace)
		metrics <- prometheus.MustNewConstMetric(m.replicasSaved, prometheus.CounterValue, replicaTime.Seconds(), key.Name, key.Namespace)
	}
}

func (m *Metrics) evaluated(triggerType string, verdict Verdict) {
	m.evaluations.WithLabelValues(triggerType, string(verdict)).Inc()
}

func (m *Metrics) decided(action Action) { m.decisions.WithLabelValues(string(action)).Inc() }

// observed takes in how many replicas a target has. Minimum is how many it has
// at least when it is awake.
func (m *Metrics) observed(key types.NamespacedName, replicas, minimum int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	saved, ok := m.savings[key]
	if !ok {
		saved = &saving{wanted: minimum}
		m.savings[key] = saved
	}
	now := m.clock.Now()
	switch {
	case replicas == 0 && saved.since.IsZero():
		saved.since = now
	case replicas > 0:
		saved.asleep, saved.replicaTime = saved.until(now)
		saved.since, saved.wanted = time.Time{}, replicas
	}
}

// forget deletes the series of an ElastiService.
func (m *Metrics) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.savings, key)
}

// forgetAll deletes the series of all ElastiServices.
func (m *Metrics) forgetAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.savings)
}
