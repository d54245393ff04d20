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

	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
)

// Metrics count decisions and what they save. The series of an ElastiService are
// deleted with it. It is safe for concurrent use.
type Metrics struct {
	clock       clock.PassiveClock
	evaluations *prometheus.CounterVec
	decisions   *prometheus.CounterVec
	queued      prometheus.Gauge

	asleep        *prometheus.Desc
	secondsAsleep *prometheus.Desc
	replicasSaved *prometheus.Desc
	cpuSaved      *prometheus.Desc
	memorySaved   *prometheus.Desc

	mu      sync.Mutex
	savings map[types.NamespacedName]*saving
}

// saving is what the sleep of one target has saved.
type saving struct {
	// replicas is how many replicas the target last had while it was awake, or
	// has at least when it wakes.
	replicas int32
	// cpuCores and memoryBytes are what each of them requests.
	cpuCores, memoryBytes float64
	// since is until when the sums are complete. Zero while the target is awake.
	since time.Time
	// asleep and replicaTime are sums in seconds, cpuTime in core-seconds and
	// memoryTime in byte-seconds.
	asleep, replicaTime, cpuTime, memoryTime float64
}

// accrue completes the sums until a time.
func (s *saving) accrue(now time.Time) {
	if s.since.IsZero() {
		return
	}
	seconds := max(0, now.Sub(s.since).Seconds())
	replicaTime := float64(s.replicas) * seconds
	s.since = now
	s.asleep += seconds
	s.replicaTime += replicaTime
	s.cpuTime += s.cpuCores * replicaTime
	s.memoryTime += s.memoryBytes * replicaTime
}

// NewMetrics returns metrics that are registered with a registerer.
func NewMetrics(registerer prometheus.Registerer, clock clock.PassiveClock) *Metrics {
	perObject := []string{"crd_name", "namespace"}
	m := &Metrics{
		clock: clock,
		evaluations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "elasti_operator_trigger_evaluations_total",
			Help: "Number of evaluations of triggers, by type and by their result: idle, active or unknown.",
		}, []string{"type", "result"}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "elasti_operator_sleep_decisions_total",
			Help: "Number of decisions about ElastiServices, by what is done: none, sleep, keepAwake (a request for sleep is canceled) or wake. In a dry run it is not done.",
		}, []string{"action"}),
		queued: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "elasti_operator_sleep_queue_depth",
			Help: "Number of targets that wait for a decision about their sleep.",
		}),
		asleep: prometheus.NewDesc("elasti_operator_asleep",
			"Whether the target of an ElastiService sleeps: 1 if it does, 0 otherwise.", perObject, nil),
		secondsAsleep: prometheus.NewDesc("elasti_operator_asleep_seconds_total",
			"Seconds that the target of an ElastiService has slept.", perObject, nil),
		replicasSaved: prometheus.NewDesc("elasti_operator_replica_seconds_saved_total",
			"Seconds that the target of an ElastiService has slept, times the replicas that it had before.", perObject, nil),
		cpuSaved: prometheus.NewDesc("elasti_operator_cpu_core_seconds_saved_total",
			"CPU cores that the replicas which an ElastiService saved request, times the seconds that its target has slept.", perObject, nil),
		memorySaved: prometheus.NewDesc("elasti_operator_memory_byte_seconds_saved_total",
			"Bytes of memory that the replicas which an ElastiService saved request, times the seconds that its target has slept.", perObject, nil),
		savings: map[types.NamespacedName]*saving{},
	}
	for _, action := range actions {
		m.decisions.WithLabelValues(string(action))
	}
	registerer.MustRegister(m.evaluations, m.decisions, m.queued, m)
	return m
}

// Describe describes the metrics per ElastiService.
func (m *Metrics) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- m.asleep
	descriptions <- m.secondsAsleep
	descriptions <- m.replicasSaved
	descriptions <- m.cpuSaved
	descriptions <- m.memorySaved
}

// Collect collects the metrics per ElastiService.
func (m *Metrics) Collect(metrics chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	for key, saved := range m.savings {
		saved.accrue(now)
		asleep := 0.0
		if !saved.since.IsZero() {
			asleep = 1
		}
		metrics <- prometheus.MustNewConstMetric(m.asleep, prometheus.GaugeValue, asleep, key.Name, key.Namespace)
		for description, sum := range map[*prometheus.Desc]float64{
			m.secondsAsleep: saved.asleep,
			m.replicasSaved: saved.replicaTime,
			m.cpuSaved:      saved.cpuTime,
			m.memorySaved:   saved.memoryTime,
		} {
			metrics <- prometheus.MustNewConstMetric(description, prometheus.CounterValue, sum, key.Name, key.Namespace)
		}
	}
}

func (m *Metrics) evaluated(triggerType string, state evaluators.State) {
	m.evaluations.WithLabelValues(triggerType, string(state)).Inc()
}

// waiting sets how many targets wait for a decision.
func (m *Metrics) waiting(targets int) { m.queued.Set(float64(targets)) }

func (m *Metrics) decided(action Action) { m.decisions.WithLabelValues(string(action)).Inc() }

// observed records how many replicas a target has. Minimum is how many it has at
// least when it is awake.
func (m *Metrics) observed(key types.NamespacedName, replicas, minimum int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	saved, ok := m.savings[key]
	if !ok {
		saved = &saving{replicas: minimum}
		m.savings[key] = saved
	}
	now := m.clock.Now()
	switch {
	case replicas == 0 && saved.since.IsZero():
		saved.since = now
	case replicas > 0:
		saved.accrue(now)
		saved.since, saved.replicas = time.Time{}, replicas
	}
}

// requests records what one replica of a target requests.
func (m *Metrics) requests(key types.NamespacedName, cpuCores, memoryBytes float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if saved, ok := m.savings[key]; ok {
		saved.accrue(m.clock.Now())
		saved.cpuCores, saved.memoryBytes = cpuCores, memoryBytes
	}
}

// forget deletes the series of an ElastiService.
func (m *Metrics) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.savings, key)
}

// forgetAll deletes the series of all ElastiServices, and sets that none waits.
func (m *Metrics) forgetAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.savings)
	m.queued.Set(0)
}
