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
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
)

type process struct{}

func (process) Listeners() int   { return 3 }
func (process) Connections() int { return 4 }
func (process) HeldBytes() int64 { return 5 }

func (process) HeldBytesLimit() int64   { return 10 }
func (process) ConnectionLimit() int    { return 8 }
func (process) AccessLogDropped() int64 { return 9 }

type queue struct{}

func (queue) Held() int     { return 6 }
func (queue) InFlight() int { return 7 }

func scrape(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	recorder := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text, err := io.ReadAll(recorder.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestServiceMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := New(registry, process{})
	if err != nil {
		t.Fatal(err)
	}
	s := m.Service("shop", "cart", queue{})
	at := func(milliseconds int) time.Time { return time.UnixMilli(int64(milliseconds)) }
	s.Ended(&accesslog.Record{
		Protocol: accesslog.HTTP1, Outcome: accesslog.Forwarded, Held: true, BytesIn: 10, BytesOut: 20,
		Received: at(1000), WakeSucceeded: at(1004), EndpointReady: at(1600), Released: at(1601),
	})
	s.Ended(&accesslog.Record{Protocol: accesslog.HTTP2, Outcome: accesslog.LocalReply, Held: true, Reason: string(localreply.ReasonTooManyPending)})
	s.Ended(&accesslog.Record{Protocol: accesslog.Stream, Outcome: accesslog.ClientGone, Held: true})
	s.Ended(&accesslog.Record{Protocol: accesslog.HTTP1, Outcome: accesslog.Forwarded, Released: at(1)})
	s.WakeCalled(3*time.Millisecond, nil)
	s.WakeCalled(time.Second, errors.New("unavailable"))
	text := scrape(t, registry)
	for _, line := range []string{
		`elasti_resolver_listeners 3`,
		`elasti_resolver_connections 4`,
		`elasti_resolver_held_bytes 5`,
		`elasti_resolver_held_bytes_limit 10`,
		`elasti_resolver_connections_limit 8`,
		`elasti_resolver_access_log_dropped_total 9`,
		`elasti_resolver_connections_rejected_total{reason="service_limit"} 0`,
		`elasti_resolver_connections_refused_total{reason="service_limit"} 0`,
		`elasti_resolver_local_faults_total{kind="descriptors"} 0`,
		`elasti_resolver_queued_count{namespace="shop",source="cart"} 6`,
		`elasti_resolver_in_flight{namespace="shop",service="cart"} 7`,
		`elasti_resolver_held_total{namespace="shop",outcome="released",service="cart"} 1`,
		`elasti_resolver_held_total{namespace="shop",outcome="too_many_pending",service="cart"} 1`,
		`elasti_resolver_held_total{namespace="shop",outcome="client_gone",service="cart"} 1`,
		`elasti_resolver_hold_seconds_count{namespace="shop",service="cart"} 1`,
		`elasti_resolver_cold_start_seconds_count{namespace="shop",service="cart",step="wake"} 1`,
		`elasti_resolver_cold_start_seconds_count{namespace="shop",service="cart",step="pod"} 1`,
		`elasti_resolver_cold_start_seconds_sum{namespace="shop",service="cart",step="release"} 0.001`,
		`elasti_resolver_requests_total{namespace="shop",outcome="forwarded",protocol="http1",service="cart"} 2`,
		`elasti_resolver_bytes_total{direction="out",namespace="shop",service="cart"} 20`,
		`elasti_resolver_wake_calls_total{namespace="shop",result="error",service="cart"} 1`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("there is no line %s", line)
		}
	}
	s.Remove()
	// A request that ends later does not create the series again.
	s.Ended(&accesslog.Record{Protocol: accesslog.Stream, Outcome: accesslog.Failed, Held: true, Released: at(1), BytesIn: 1})
	if text := scrape(t, registry); strings.Contains(text, "cart") {
		t.Errorf("series are left of a removed service:\n%s", text)
	}
}

// A service whose first request and wake end after it was removed has no series: nothing
// would delete them.
func TestRemovedServiceGetsNoSeries(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := New(registry, process{})
	if err != nil {
		t.Fatal(err)
	}
	s := m.Service("shop", "cart", queue{})
	s.Remove()
	at := func(milliseconds int) time.Time { return time.UnixMilli(int64(milliseconds)) }
	s.Ended(&accesslog.Record{
		Protocol: accesslog.HTTP1, Outcome: accesslog.Forwarded, Held: true, BytesIn: 10, BytesOut: 20,
		Received: at(1000), WakeSucceeded: at(1004), EndpointReady: at(1600), Released: at(1601),
	})
	s.WakeCalled(time.Millisecond, nil)
	if text := scrape(t, registry); strings.Contains(text, "cart") {
		t.Errorf("a removed service has series:\n%s", text)
	}
}

// Services of the same name share their series: those of an ElastiService that is
// created again while the deleted one lingers, and of a second one for the same
// Service.
func TestServicesOfOneNameShareTheirSeries(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := New(registry, process{})
	if err != nil {
		t.Fatal(err)
	}
	older, newer := m.Service("shop", "cart", queue{}), m.Service("shop", "cart", queue{})
	other := m.Service("bank", "vault", queue{})
	defer other.Remove()
	ended := &accesslog.Record{Protocol: accesslog.HTTP1, Outcome: accesslog.Forwarded}
	older.Ended(ended)
	newer.Ended(ended)
	wants := func(lines ...string) {
		t.Helper()
		text := scrape(t, registry)
		for _, line := range lines {
			if !strings.Contains(text, line+"\n") {
				t.Errorf("there is no line %s in\n%s", line, text)
			}
		}
	}
	wants(`elasti_resolver_in_flight{namespace="shop",service="cart"} 14`,
		`elasti_resolver_queued_count{namespace="shop",source="cart"} 12`,
		`elasti_resolver_in_flight{namespace="bank",service="vault"} 7`,
		`elasti_resolver_requests_total{namespace="shop",outcome="forwarded",protocol="http1",service="cart"} 2`)
	older.Remove()
	newer.Ended(ended)
	wants(`elasti_resolver_in_flight{namespace="shop",service="cart"} 7`,
		`elasti_resolver_requests_total{namespace="shop",outcome="forwarded",protocol="http1",service="cart"} 3`)
	newer.Remove()
	if text := scrape(t, registry); strings.Contains(text, "cart") {
		t.Errorf("series are left of removed services:\n%s", text)
	}
}

// A service without traffic has few series, because a resolver may have hundreds.
func TestServiceWithoutTrafficHasFewSeries(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := New(registry, process{})
	if err != nil {
		t.Fatal(err)
	}
	s := m.Service("shop", "cart", queue{})
	defer s.Remove()
	series := func() int {
		return strings.Count(scrape(t, registry), `service="cart"`) + strings.Count(scrape(t, registry), `source="cart"`)
	}
	if n := series(); n != 2 {
		t.Errorf("%d series of a service without traffic, want its two gauges", n)
	}
	s.Ended(&accesslog.Record{Protocol: accesslog.HTTP1, Outcome: accesslog.Forwarded, BytesOut: 1})
	if n := series(); n != 4 {
		t.Errorf("%d series after a request, want four", n)
	}
}
