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

// Queue is what the gauges of a service are read from.
type Queue interface {
	// Held and InFlight return how many there are now.
	Held() int
	InFlight() int
}

// Service is the metrics of one service. It is safe for concurrent use.
//
// A series begins when it first counts: a resolver has hundreds of services that
// see no traffic for days.
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

// Service returns the metrics of a service. Remove ends them.
func (m *Metrics) Service(namespace, name string, queue Queue) *Service {
	s := &Service{metrics: m, namespace: namespace, name: name, queue: queue}
	m.services.add(s)
	return s
}

// Remove ends the series of the service, unless there is another one of the same
// name. What is counted later is lost.
func (s *Service) Remove() {
	s.mu.Lock()
	s.removed = true
	s.mu.Unlock()
	s.metrics.services.remove(s, s.metrics.deleteSeries)
}

// deleteSeries deletes the series of services of a name.
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
	// The last: whoever sees it counted sees all the rest.
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
		{stepWake, record.Received, record.WakeAnswered},
		{stepPod, record.WakeAnswered, record.EndpointReady},
		{stepRelease, record.EndpointReady, record.Released},
	} {
		// A request that came in the middle of a cold start saw only the rest.
		if !step.begin.IsZero() && step.end.After(step.begin) {
			observerOf(s, &s.steps, s.metrics.coldStart, step.name, step.name).Observe(step.end.Sub(step.begin).Seconds())
		}
	}
}

// notReleased returns the outcome of something that was not given a pod.
func notReleased(record *accesslog.Record) localreply.HeldOutcome {
	if record.Outcome == accesslog.ClientGone {
		return localreply.HeldClientGone
	}
	return localreply.Reason(record.Reason).HeldOutcome()
}

// services collects the gauges of all services when they are asked for, so that
// nothing has to be counted while requests pass.
type services struct {
	held, inFlight *prometheus.Desc

	mu sync.Mutex
	// all has those of a name together: an ElastiService that is made anew while the
	// one before lingers, or a second one for the same Service, has the same series.
	all map[serviceKey][]*Service
}

// serviceKey is the labels of a service.
type serviceKey struct{ namespace, name string }

func newServices() *services {
	return &services{
		// The name and labels are those that dashboards of KubeElasti know.
		held:     prometheus.NewDesc(prefix+"queued_count", "Requests and connections that are held.", []string{"namespace", "source"}, nil),
		inFlight: prometheus.NewDesc(prefix+"in_flight", "Requests and connections that are with a pod.", []string{"namespace", "service"}, nil),
		all:      map[serviceKey][]*Service{},
	}
}

func (s *services) add(service *Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := serviceKey{service.namespace, service.name}
	s.all[key] = append(s.all[key], service)
}

// remove forgets a service. When it was the last of its name it calls last, before
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
