//go:build cycles

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

package e2e

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// scrapeInterval is the interval of the scraper.
const scrapeInterval = time.Second

// TestScraperNeitherWakesATargetNorKeepsItAwake scrapes an application as
// Prometheus does, through sleep, wake and sleep again.
func TestScraperNeitherWakesATargetNorKeepsItAwake(t *testing.T) {
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{Spec: sleepsByTraffic})
	observer := s.observe()
	s.checkStaysAsleep(app, observer, func() {
		for range 10 {
			if response := s.scrapeAsPrometheus(app); response.Status != http.StatusServiceUnavailable || response.Header.Get(cluster.ResponseHeader) != "Asleep" {
				t.Fatalf("a scrape gets %d %q %v", response.Status, response.Body, response.Header)
			}
			s.rest(scrapeInterval)
		}
	})
	s.get(app, "/")
	// The scrapes continue without other traffic, through resolvers and directly.
	s.background(func(ctx context.Context) {
		ticks := time.NewTicker(scrapeInterval)
		defer ticks.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
				// While the target falls asleep, any response is valid.
				_, _ = s.tryScrape(ctx, app)
			}
		}
	})
	s.awaitReplicas(app, 0)
	s.check(app.AwaitAsleep(s.ctx))
	s.checkStaysAsleep(app, observer, func() { s.rest(10 * scrapeInterval) })
}

// scrapeAsPrometheus sends a request as Prometheus does.
func (s *scene) scrapeAsPrometheus(app *cluster.Application) *cluster.Response {
	s.Helper()
	response, err := s.tryScrape(s.ctx, app)
	s.check(err)
	return response
}

func (s *scene) tryScrape(ctx context.Context, app *cluster.Application) (*cluster.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, app.URL("/metrics"), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", "Prometheus/3.5.0")
	return cluster.Do(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, request)
}
