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

package metrics

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
)

// Queue has the values of the gauges of a service.
type Queue interface {
	// Held and InFlight return the current numbers.
	Held() int
	InFlight() int
}

// Service has the metrics of one service. It is safe for concurrent use.
//
// A series is created when it first counts, because a resolver may have hundreds of
// services without traffic.
type Service struct {
	// Immutable.
	metrics         *Metrics
	namespace, name string
	queue           Queue

	mu      sync.Mutex
	removed bool

	held              byLabel[localreply.HeldOutcome, prometheus.Counter]
	hold              byLabel[struct{}, prometheus.Observer]
	steps             byLabel[string, prometheus.Observer]
	ended             byLabel[endedKey, prometheus.Counter]
	bytesIn, bytesOut byLabel[struct{}, prometheus.Counter]
	wakeCalls         byLabel[string, prometheus.Counter]
	wake              byLabel[struct{}, prometheus.Observer]
}

type endedKey struct {
	protocol accesslog.Protocol
	outcome  accesslog.Outcome
}

// Service returns the metrics of a service. Remove must be called in the end.
func (m *Metrics) Service(namespace, name string, queue Queue) *Service {
	s := &Service{metrics: m, namespace: namespace, name: name, queue: queue}
	m.services.add(s)
	return s
}

// Remove deletes the series of the service, unless there is another service of the
// same name. What is counted later is lost.
func (s *Service) Remove() {
	s.mu.Lock()
	s.removed = true
	s.mu.Unlock()
	s.metrics.services.remove(s, s.metrics.deleteSeries)
}

// deleteSeries deletes the series of the services of one name.
func (m *Metrics) deleteSeries(of serviceKey) {
	labels := prometheus.Labels{"namespace": of.namespace, "service": of.name}
	for _, vector := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.held, m.hold, m.coldStart, m.ended, m.bytes, m.wakeCalls, m.wake} {
		vector.DeletePartialMatch(labels)
	}
}

// WakeCalled counts a wake call.
func (s *Service) WakeCalled(took time.Duration, err error) {
	result := resultSuccess
	if err != nil {
		result = resultError
	}
	counterOf(s, &s.wakeCalls, s.metrics.wakeCalls, result, result).Inc()
	observerOf(s, &s.wake, s.metrics.wake, struct{}{}).Observe(took.Seconds())
}

// Ended counts a request or connection that has ended.
func (s *Service) Ended(record *accesslog.Record) {
	if record.BytesIn > 0 {
		counterOf(s, &s.bytesIn, s.metrics.bytes, struct{}{}, "in").Add(float64(record.BytesIn))
	}
	if record.BytesOut > 0 {
		counterOf(s, &s.bytesOut, s.metrics.bytes, struct{}{}, "out").Add(float64(record.BytesOut))
	}
	if record.Held {
		s.wasHeld(record)
	}
	// This counter comes last: once it has counted, all others have.
	key := endedKey{record.Protocol, record.Outcome}
	counterOf(s, &s.ended, s.metrics.ended, key, string(key.protocol), string(key.outcome)).Inc()
}

func (s *Service) countHeld(outcome localreply.HeldOutcome) {
	counterOf(s, &s.held, s.metrics.held, outcome, string(outcome)).Inc()
}

func (s *Service) wasHeld(record *accesslog.Record) {
	if record.Released.IsZero() {
		s.countHeld(notReleased(record))
		return
	}
	s.countHeld(localreply.HeldReleased)
	observerOf(s, &s.hold, s.metrics.hold, struct{}{}).Observe(record.Released.Sub(record.Received).Seconds())
	for _, step := range []struct {
		name       string
		begin, end time.Time
	}{
		{stepWake, record.Received, record.WakeSucceeded},
		{stepPod, record.WakeSucceeded, record.EndpointReady},
		{stepRelease, record.EndpointReady, record.Released},
	} {
		// A request that came during a cold start has only the remaining steps.
		if !step.begin.IsZero() && step.end.After(step.begin) {
			observerOf(s, &s.steps, s.metrics.coldStart, step.name, step.name).Observe(step.end.Sub(step.begin).Seconds())
		}
	}
}

// notReleased returns the outcome of a request or connection that got no pod.
func notReleased(record *accesslog.Record) localreply.HeldOutcome {
	if record.Outcome == accesslog.ClientGone {
		return localreply.HeldClientGone
	}
	return localreply.Reason(record.Reason).HeldOutcome()
}

// services collects the gauges of all services at the time of a scrape, so that
// requests need not update them.
type services struct {
	held, inFlight *prometheus.Desc

	mu sync.Mutex
	// all groups the services by name, because services of the same name have the
	// same series: those of an ElastiService that is created again while the deleted
	// one lingers, and of a second one for the same Service.
	all map[serviceKey][]*Service
}

// serviceKey has the labels of a service.
type serviceKey struct{ namespace, name string }

func newServices() *services {
	return &services{
		// The name and labels are those in the dashboards of KubeElasti.
		held:     prometheus.NewDesc(prefix+"queued_count", "Requests and connections that are held.", []string{"namespace", "source"}, nil),
		inFlight: prometheus.NewDesc(prefix+"in_flight", "Requests and connections that are forwarded to a pod.", []string{"namespace", "service"}, nil),
		all:      map[serviceKey][]*Service{},
	}
}

func (s *services) add(service *Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := serviceKey{service.namespace, service.name}
	s.all[key] = append(s.all[key], service)
}

// remove removes a service. After the last one of a name it calls last, before
// another one can be added.
func (s *services) remove(service *Service, last func(serviceKey)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := serviceKey{service.namespace, service.name}
	others := slices.DeleteFunc(s.all[key], func(other *Service) bool { return other == service })
	if len(others) > 0 {
		s.all[key] = others
		return
	}
	delete(s.all, key)
	last(key)
}

// Describe implements prometheus.Collector.
func (s *services) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- s.held
	descriptions <- s.inFlight
}

// Collect implements prometheus.Collector.
func (s *services) Collect(metrics chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, named := range s.all {
		held, inFlight := 0, 0
		for _, service := range named {
			held += service.queue.Held()
			inFlight += service.queue.InFlight()
		}
		metrics <- prometheus.MustNewConstMetric(s.held, prometheus.GaugeValue, float64(held), key.namespace, key.name)
		metrics <- prometheus.MustNewConstMetric(s.inFlight, prometheus.GaugeValue, float64(inFlight), key.namespace, key.name)
	}
}
