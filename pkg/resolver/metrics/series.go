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
	"maps"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// byLabel caches the series of one service in one vector, by the values of the
// other labels. A lookup in the vector is too expensive for each request.
type byLabel[K comparable, S any] struct {
	// known is replaced by a copy when a key is added.
	known atomic.Pointer[map[K]S]
}

func (b *byLabel[K, S]) load(key K) (S, bool) {
	if known := b.known.Load(); known != nil {
		series, ok := (*known)[key]
		return series, ok
	}
	var none S
	return none, false
}

// add adds a series. It must be called with mu of the service held.
func (b *byLabel[K, S]) add(key K, series S) {
	next := map[K]S{}
	if known := b.known.Load(); known != nil {
		maps.Copy(next, *known)
	}
	next[key] = series
	b.known.Store(&next)
}

// counterOf returns a counter of a service, and creates it when needed. Values are
// those of the labels other than namespace and service, and key identifies them.
func counterOf[K comparable](s *Service, known *byLabel[K, prometheus.Counter], vector *prometheus.CounterVec, key K, values ...string) prometheus.Counter {
	if counter, ok := known.load(key); ok {
		return counter
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed {
		// The series would never be deleted.
		return prometheus.NewCounter(prometheus.CounterOpts{})
	}
	counter := vector.WithLabelValues(append([]string{s.namespace, s.name}, values...)...)
	known.add(key, counter)
	return counter
}

// observerOf is counterOf for histograms.
func observerOf[K comparable](s *Service, known *byLabel[K, prometheus.Observer], vector *prometheus.HistogramVec, key K, values ...string) prometheus.Observer {
	if observer, ok := known.load(key); ok {
		return observer
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed {
		return prometheus.ObserverFunc(func(float64) {})
	}
	observer := vector.WithLabelValues(append([]string{s.namespace, s.name}, values...)...)
	known.add(key, observer)
	return observer
}
