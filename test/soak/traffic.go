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

package main

import (
	"net/http/httptest"
	"strings"
	"sync"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// trafficMetrics counts requests, as an ingress does. It is safe for concurrent use.
type trafficMetrics struct {
	registry *client.Registry
	server   *httptest.Server

	mu   sync.Mutex
	sent map[string]*cluster.Traffic
}

func newTrafficMetrics() *trafficMetrics {
	registry := client.NewRegistry()
	return &trafficMetrics{
		registry: registry,
		server:   httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{})),
		sent:     map[string]*cluster.Traffic{},
	}
}

func (m *trafficMetrics) address() string { return strings.TrimPrefix(m.server.URL, "http://") }
func (m *trafficMetrics) close()          { m.server.Close() }

// add counts the requests of a traffic from now on.
func (m *trafficMetrics) add(application string, sent *cluster.Traffic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent[application] = sent
	m.registry.MustRegister(client.NewCounterFunc(client.CounterOpts{
		Name: "soak_requests_total", Help: "Number of requests.", ConstLabels: client.Labels{"application": application},
	}, func() float64 {
		total, _, _ := sent.Result()
		return float64(total)
	}))
}

func (m *trafficMetrics) result(application string) (total, failed int, failures []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent[application].Result()
}
