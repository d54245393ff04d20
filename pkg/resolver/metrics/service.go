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
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/answer"
)

// Queue is what the gauges of a service are read from.
type Queue interface {
	// Held and InFlight return how many there are now.
	Held() int
	InFlight() int
}

// Service is the metrics of one service. It is safe for concurrent use.
type Service struct {
	metrics *Metrics
	labels  prometheus.Labels
	queue   Queue

	held              map[string]prometheus.Counter
	hold              prometheus.Observer
	steps             map[string]prometheus.Observer
	ended             map[endedKey]prometheus.Counter
	bytesIn, bytesOut prometheus.Counter
	wakeCalls         map[bool]prometheus.Counter
	wake              prometheus.Observer
}

type endedKey struct {
	protocol accesslog.Protocol
	outcome  accesslog.Outcome
}

// Service returns the metrics of a service, all at zero. Remove ends them.
func (m *Metrics) Service(namespace, name string, queue Queue) *Service {
	s := &Service{
		metrics:   m,
		labels:    prometheus.Labels{"namespace": namespace, "service": name},
		queue:     queue,
		held:      map[string]prometheus.Counter{},
		hold:      m.hold.WithLabelValues(namespace, name),
		steps:     map[string]prometheus.Observer{},
		ended:     map[endedKey]prometheus.Counter{},
		bytesIn:   m.bytes.WithLabelValues(namespace, name, "in"),
		bytesOut:  m.bytes.WithLabelValues(namespace, name, "out"),
		wakeCalls: map[bool]prometheus.Counter{},
		wake:      m.wake.WithLabelValues(namespace, name),
	}
	for _, outcome := range []string{heldReleased, heldTimeout, heldTooManyPending, heldTooManyBytes, heldClientGone, heldServiceGone} {
		s.held[outcome] = m.held.WithLabelValues(namespace, name, outcome)
	}
	for _, step := range []string{stepWake, stepPod, stepRelease} {
		s.steps[step] = m.coldStart.WithLabelValues(namespace, name, step)
	}
	for _, protocol := range accesslog.Protocols() {
		for _, outcome := range accesslog.Outcomes() {
			s.ended[endedKey{protocol, outcome}] = m.ended.WithLabelValues(namespace, name, string(protocol), string(outcome))
		}
	}
	s.wakeCalls[true] = m.wakeCalls.WithLabelValues(namespace, name, resultSuccess)
	s.wakeCalls[false] = m.wakeCalls.WithLabelValues(namespace, name, resultError)
	m.services.add(s)
	return s
}

// Remove ends the series of the service.
func (s *Service) Remove() {
	s.metrics.services.remove(s)
	for _, vector := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{s.metrics.held, s.metrics.hold, s.metrics.coldStart, s.metrics.ended, s.metrics.bytes, s.metrics.wakeCalls, s.metrics.wake} {
		vector.DeletePartialMatch(s.labels)
	}
}

// WakeCalled counts a wake call.
func (s *Service) WakeCalled(took time.Duration, err error) {
	s.wakeCalls[err == nil].Inc()
	s.wake.Observe(took.Seconds())
}

// Ended counts a request or connection that has ended.
func (s *Service) Ended(record *accesslog.Record) {
	if counter := s.ended[endedKey{record.Protocol, record.Outcome}]; counter != nil {
		counter.Inc()
	}
	s.bytesIn.Add(float64(record.BytesIn))
	s.bytesOut.Add(float64(record.BytesOut))
	if record.Held {
		s.wasHeld(record)
	}
}

func (s *Service) wasHeld(record *accesslog.Record) {
	if record.Released.IsZero() {
		s.held[notReleased(record)].Inc()
		return
	}
	s.held[heldReleased].Inc()
	s.hold.Observe(record.Released.Sub(record.Received).Seconds())
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
			s.steps[step.name].Observe(step.end.Sub(step.begin).Seconds())
		}
	}
}

// notReleased returns the outcome of something that was not given a pod.
func notReleased(record *accesslog.Record) string {
	if record.Outcome == accesslog.ClientGone {
		return heldClientGone
	}
	switch answer.Reason(record.Reason) {
	case answer.ReasonHoldTimeout:
		return heldTimeout
	case answer.ReasonTooManyPending:
		return heldTooManyPending
	case answer.ReasonTooManyBytes:
		return heldTooManyBytes
	}
	return heldServiceGone
}

// services collects the gauges of all services when they are asked for, so that
// nothing has to be counted while requests pass.
type services struct {
	held, inFlight *prometheus.Desc

	mu  sync.Mutex
	all map[*Service]struct{}
}

func newServices() *services {
	return &services{
		// The name and labels are those that dashboards of KubeElasti know.
		held:     prometheus.NewDesc(prefix+"queued_count", "Requests and connections that are held.", []string{"namespace", "source"}, nil),
		inFlight: prometheus.NewDesc(prefix+"in_flight", "Requests and connections that are with a pod.", []string{"namespace", "service"}, nil),
		all:      map[*Service]struct{}{},
	}
}

func (s *services) add(service *Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[service] = struct{}{}
}

func (s *services) remove(service *Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, service)
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
	for service := range s.all {
		namespace, name := service.labels["namespace"], service.labels["service"]
		metrics <- prometheus.MustNewConstMetric(s.held, prometheus.GaugeValue, float64(service.queue.Held()), namespace, name)
		metrics <- prometheus.MustNewConstMetric(s.inFlight, prometheus.GaugeValue, float64(service.queue.InFlight()), namespace, name)
	}
}
