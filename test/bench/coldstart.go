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
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// coldStarts is how often each kind of cold start is measured.
	coldStarts = 10
	// manyClients is how many requests the second kind sends at once.
	manyClients = 50
	// coldStartTimeout bounds one cold start and the scale-down before it.
	coldStartTimeout = 3 * time.Minute
)

// coldStart measures cold starts of an application that starts at once, with a
// readiness probe period of 1 s, of 10 s, and without the resolver's own
// probing.
//
// All times are of the clock of this machine. Clients record when they send and when
// they have the response. The response has the times at which the application began to
// accept connections and received the request. The times at which a Deployment was
// scaled and an endpoint became ready are those of the watch events, which are slightly
// later.
func coldStart(ctx context.Context, b *bench) error {
	stage, leave, err := b.newStage(ctx)
	if err != nil {
		return err
	}
	defer leave()
	endpoints := func(spec *v1alpha1.ElastiServiceSpec) {
		spec.Proxy = &v1alpha1.ProxySpec{Readiness: v1alpha1.ReadinessEndpoints}
	}
	one, err := stage.coldStarts(ctx, cluster.ApplicationOptions{Name: "one"}, 1)
	if err != nil {
		return err
	}
	many, err := stage.coldStarts(ctx, cluster.ApplicationOptions{Name: "many"}, manyClients)
	if err != nil {
		return err
	}
	rarely, err := stage.coldStarts(ctx, cluster.ApplicationOptions{Name: "rarely", ReadinessPeriod: 10 * time.Second}, 1)
	if err != nil {
		return err
	}
	waiting, err := stage.coldStarts(ctx, cluster.ApplicationOptions{Name: "waiting", Spec: endpoints}, 1)
	if err != nil {
		return err
	}

	slow, err := stage.coldStarts(ctx, cluster.ApplicationOptions{Name: "slow", Arguments: []string{"-start-delay=2s"}}, 1)
	if err != nil {
		return err
	}

	patches, err := stage.patches(ctx, cluster.ApplicationOptions{Name: "patched"})
	if err != nil {
		return err
	}

	reportColdStarts(b, one, many, rarely, waiting, slow, patches)
	return nil
}

// reportColdStarts prints where the times of the cold starts went.
func reportColdStarts(b *bench, one, many, rarely, waiting, slow []coldStartTimes, patches []time.Duration) {
	wakes := pick(append(append(one, rarely...), waiting...), func(c coldStartTimes) time.Duration { return c.scaled.Sub(c.sent) })
	releases := pick(waiting, func(c coldStartTimes) time.Duration { return c.received.Sub(c.privateReady) })
	probed := pick(rarely, func(c coldStartTimes) time.Duration { return c.received.Sub(c.accepting) })
	oneAdded, manyAdded := pick(one, coldStartTimes.added), pick(many, coldStartTimes.addedToLast)

	b.durations("request sent → target scaled", wakes)
	b.durations("  for comparison, one call by a client of the API: scale patched → target scaled", patches)
	b.durations("target scaled → application accepts connections", pick(one, func(c coldStartTimes) time.Duration { return c.accepting.Sub(c.scaled) }))
	b.durations("one request: sent → response", pick(one, func(c coldStartTimes) time.Duration { return c.lastCompleted.Sub(c.sent) }))
	b.durations("one request: added to the pod's own start", oneAdded)
	b.durations("  of it, until the target was scaled", pick(one, func(c coldStartTimes) time.Duration { return c.scaled.Sub(c.sent) }))
	b.durations("  of it, Kubernetes' part: application accepts connections → its address is listed", pick(one, coldStartTimes.unlisted))
	b.durations("  of it, the resolver's part: address listed and connections accepted → request forwarded", pick(one, coldStartTimes.own))
	b.durations("  of it, until the client has the response", pick(one, func(c coldStartTimes) time.Duration { return c.lastCompleted.Sub(c.received) }))
	b.durations("50 at once: sent → last response", pick(many, func(c coldStartTimes) time.Duration { return c.lastCompleted.Sub(c.sent) }))
	b.durations("50 at once: application accepts connections → last response", manyAdded)
	b.durations("  of it, Kubernetes' part: application accepts connections → its address is listed", pick(many, coldStartTimes.unlisted))
	b.durations("  of it, the resolver's part: address listed and connections accepted → first request forwarded", pick(many, coldStartTimes.own))
	b.durations("  of it, until the last client has its response", pick(many, func(c coldStartTimes) time.Duration { return c.lastCompleted.Sub(c.received) }))
	b.durations("application that needs 2 s: added to the pod's own start", pick(slow, coldStartTimes.added))
	b.durations("  of it, the resolver's part: address listed and connections accepted → request forwarded", pick(slow, coldStartTimes.own))
	b.durations("readiness Probe, period 10 s: accepts connections → request forwarded", probed)
	b.durations("readiness Endpoints: endpoint ready → request forwarded", releases)
	b.durations("endpoint of the Service ready → resolver slice removed", pick(one, func(c coldStartTimes) time.Duration { return c.resolversRemoved.Sub(c.publicReady) }))

	b.set("wake_p50_ms", durationQuantile(wakes, 0.5))
	b.set("wake_p99_ms", durationQuantile(wakes, 0.99))
	b.set("release_p50_ms", durationQuantile(releases, 0.5))
	b.set("release_p99_ms", durationQuantile(releases, 0.99))
	b.set("release_probe_p99_ms", durationQuantile(probed, 0.99))
	b.set("coldstart_1_added_p50_ms", durationQuantile(oneAdded, 0.5))
	b.set("coldstart_1_own_p50_ms", durationQuantile(pick(one, coldStartTimes.own), 0.5))
	b.set("coldstart_slow_added_p50_ms", durationQuantile(pick(slow, coldStartTimes.added), 0.5))
	b.set("coldstart_1_failed", float64(failed(one)))
	b.set("coldstart_50_last_added_p50_ms", durationQuantile(manyAdded, 0.5))
	b.set("coldstart_50_failed", float64(failed(many)))
}

// coldStartThousand measures cold starts with 1,000 requests at once.
func coldStartThousand(ctx context.Context, b *bench) error {
	stage, leave, err := b.newStage(ctx)
	if err != nil {
		return err
	}
	defer leave()
	times, err := stage.coldStarts(ctx, cluster.ApplicationOptions{Name: "thousand"}, 1000)
	if err != nil {
		return err
	}
	added := pick(times, coldStartTimes.addedToLast)
	b.durations("1,000 at once: sent → last response", pick(times, func(c coldStartTimes) time.Duration { return c.lastCompleted.Sub(c.sent) }))
	b.durations("1,000 at once: application accepts connections → last response", added)
	b.set("coldstart_1000_last_added_p50_ms", durationQuantile(added, 0.5))
	b.set("coldstart_1000_failed", float64(failed(times)))
	return nil
}

// coldStartTimes are the times of one cold start.
type coldStartTimes struct {
	// sent is when the first client started, scaled when spec.replicas of the
	// Deployment was set, accepting when the application accepted connections.
	sent, scaled, accepting time.Time
	// listed is when the Service's private EndpointSlices had the pod's address.
	listed time.Time
	// privateReady and publicReady are when the Service's private and its own
	// EndpointSlices had a ready endpoint, resolversRemoved when the Service
	// had no resolver slice any more.
	privateReady, publicReady, resolversRemoved time.Time
	// received is when the application got the first request, lastCompleted when the
	// last client had its response.
	received, lastCompleted time.Time
	// failed is how many requests did not get the status 200 from the application.
	failed int
}

// added is the time of the cold start beyond the start of the pod.
func (c coldStartTimes) added() time.Duration {
	return c.lastCompleted.Sub(c.sent) - c.accepting.Sub(c.scaled)
}

// unlisted is how long the application accepted connections before its address
// was listed.
func (c coldStartTimes) unlisted() time.Duration { return max(0, c.listed.Sub(c.accepting)) }

// own is the time until a request was forwarded once that was possible: when the
// application accepted connections and its address was listed. A resolver may observe
// the address before the observer does.
func (c coldStartTimes) own() time.Duration {
	possible := c.accepting
	if c.listed.After(possible) {
		possible = c.listed
	}
	return max(0, c.received.Sub(possible))
}

// addedToLast is the time from when the application accepted connections until the last
// response.
func (c coldStartTimes) addedToLast() time.Duration { return c.lastCompleted.Sub(c.accepting) }

func pick(times []coldStartTimes, of func(coldStartTimes) time.Duration) []time.Duration {
	var durations []time.Duration
	for _, t := range times {
		durations = append(durations, of(t))
	}
	return durations
}

func failed(times []coldStartTimes) int {
	sum := 0
	for _, t := range times {
		sum += t.failed
	}
	return sum
}

// coldStarts creates an application and measures cold starts of it.
func (s *stage) coldStarts(ctx context.Context, options cluster.ApplicationOptions, clients int) ([]coldStartTimes, error) {
	app := s.NewApplication(s.namespace, options)
	if err := app.Create(ctx); err != nil {
		return nil, err
	}
	var all []coldStartTimes
	for range coldStarts {
		times, err := s.coldStart(ctx, app, clients)
		if err != nil {
			return nil, fmt.Errorf("cold start %d of %s: %w", len(all)+1, app.Name, err)
		}
		all = append(all, times)
	}
	return all, errors.Join(app.Scale(ctx, 0), app.DeleteElastiService(ctx))
}

// coldStart puts the application to sleep, sends requests at once, and waits
// until traffic goes to the pod.
func (s *stage) coldStart(ctx context.Context, app *cluster.Application, clients int) (coldStartTimes, error) {
	ctx, cancel := context.WithTimeout(ctx, coldStartTimeout)
	defer cancel()
	if err := putToSleep(ctx, app); err != nil {
		return coldStartTimes{}, err
	}
	elastiService, err := s.Elasti.ElastiV1alpha1().ElastiServices(s.namespace).Get(ctx, app.Name, metav1.GetOptions{})
	if err != nil {
		return coldStartTimes{}, err
	}

	start := time.Now()
	times, err := burst(ctx, app, clients)
	if err != nil {
		return coldStartTimes{}, err
	}
	for _, milestone := range []struct {
		at     *time.Time
		change cluster.Change
		name   string
	}{
		{&times.scaled, cluster.Scaled, app.Name},
		{&times.listed, cluster.EndpointListed, elastiService.Status.PrivateService},
		{&times.privateReady, cluster.EndpointReady, elastiService.Status.PrivateService},
		{&times.publicReady, cluster.EndpointReady, app.Name},
		{&times.resolversRemoved, cluster.ResolversRemoved, app.Name},
	} {
		moment, err := s.observer.Await(ctx, start, milestone.change, milestone.name, "")
		if err != nil {
			return coldStartTimes{}, err
		}
		*milestone.at = moment.At
	}
	return times, nil
}

// patches measures wakes by scaledByPatch.
func (s *stage) patches(ctx context.Context, options cluster.ApplicationOptions) ([]time.Duration, error) {
	app := s.NewApplication(s.namespace, options)
	if err := app.Create(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, coldStartTimeout)
	defer cancel()
	var durations []time.Duration
	for range coldStarts {
		if err := putToSleep(ctx, app); err != nil {
			return nil, err
		}
		took, err := s.scaledByPatch(ctx, app)
		if err != nil {
			return nil, err
		}
		durations = append(durations, took)
		if err := app.AwaitMode(ctx, v1alpha1.ModeServe); err != nil {
			return nil, err
		}
	}
	return durations, errors.Join(app.Scale(ctx, 0), app.DeleteElastiService(ctx))
}

// putToSleep scales the application to zero and waits until it is asleep. It starts
// again when a late wake of the previous cold start has woken the application.
func putToSleep(ctx context.Context, app *cluster.Application) error {
	for {
		if err := app.Sleep(ctx); err != nil {
			return err
		}
		if err := errors.Join(app.AwaitResolverSlice(ctx, true), app.AwaitReachable(ctx)); err != nil {
			return err
		}
		replicas, err := app.Replicas(ctx)
		if err != nil || replicas == 0 {
			return err
		}
	}
}

// burst sends requests at once, each over its own connection, and sets the times that
// clients and the application have recorded.
func burst(ctx context.Context, app *cluster.Application, clients int) (coldStartTimes, error) {
	responses, failures := make([]*cluster.Response, clients), make([]error, clients)
	var ended sync.WaitGroup
	sent := time.Now()
	for i := range clients {
		ended.Go(func() { responses[i], failures[i] = cluster.Get(ctx, app.URL("/")) })
	}
	ended.Wait()

	times := coldStartTimes{sent: sent}
	for i, response := range responses {
		if failures[i] == nil {
			failures[i] = response.FromApplication(app.Name)
		}
		if failures[i] != nil {
			times.failed++
			continue
		}
		received, err := response.ReceivedAt()
		if err != nil {
			return times, err
		}
		if times.accepting, err = response.AcceptingSince(); err != nil {
			return times, err
		}
		if times.received.IsZero() || received.Before(times.received) {
			times.received = received
		}
		if response.CompletedAt.After(times.lastCompleted) {
			times.lastCompleted = response.CompletedAt
		}
	}
	if times.failed == clients {
		return times, fmt.Errorf("no request got a response of the application, the first because: %w", failures[0])
	}
	return times, nil
}
