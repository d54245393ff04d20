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

package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// lingerWhileSwitching is how long pods go on serving after somebody else
// scaled their target to zero: longer than a kube-proxy needs to follow, on a
// busy machine as well.
const lingerWhileSwitching = 15 * time.Second

// SwitchOptions say how to switch applications between asleep and awake.
type SwitchOptions struct {
	// Applications is how many applications there are.
	Applications int
	// Rounds is how often each of them is put to sleep and wakes.
	Rounds int
	// PerSecond is how many requests a second are sent in all.
	PerSecond int
	// Timeout bounds the whole.
	Timeout time.Duration
}

// SwitchOutcome is what came of switching applications under traffic.
type SwitchOutcome struct {
	// Switches is how many switches there were in each direction.
	Switches int
	// Requests is how many requests were sent, Failed how many of them were
	// not answered with 200, and Failures the first reasons why.
	Requests, Failed int
	Failures         []string
}

// Switch creates applications in the namespace that the observer watches and
// sends steady traffic to them, half of it over connections that are kept. It
// scales each of them to zero, over and over, as soon as traffic goes to its
// pod; the traffic itself wakes it.
func (c *Cluster) Switch(ctx context.Context, namespace string, observer *Observer, options SwitchOptions) (SwitchOutcome, error) {
	ctx, cancel := context.WithTimeout(ctx, options.Timeout)
	defer cancel()
	var apps []*Application
	for i := range options.Applications {
		app := c.NewApplication(namespace, ApplicationOptions{Name: fmt.Sprintf("switched-%02d", i), Linger: lingerWhileSwitching})
		if err := app.Create(ctx); err != nil {
			return SwitchOutcome{}, err
		}
		apps = append(apps, app)
	}
	for _, app := range apps {
		if err := errors.Join(app.AwaitAsleep(ctx), app.AwaitResolverSlice(ctx, true), app.AwaitReachable(ctx)); err != nil {
			return SwitchOutcome{}, err
		}
	}

	sending, stopSending := context.WithCancel(ctx)
	defer stopSending()
	var senders, switchers sync.WaitGroup
	traffics := make([]Traffic, len(apps))
	failures, rounds := make([]error, len(apps)), make([]int, len(apps))
	for i, app := range apps {
		perSecond := max(options.PerSecond/options.Applications, 1)
		traffic := &traffics[i]
		traffic.URL, traffic.PerSecond, traffic.KeepAlive = app.URL("/"), perSecond, i%2 == 1
		traffic.Timeout, traffic.Limit = time.Minute, perSecond*int(options.Timeout/time.Second)
		senders.Go(func() { traffic.Run(sending) })
		switchers.Go(func() { rounds[i], failures[i] = app.sleepAndWake(ctx, observer, options.Rounds) })
	}
	switchers.Wait()
	stopSending()
	senders.Wait()

	var outcome SwitchOutcome
	for i := range traffics {
		total, failed, reasons := traffics[i].Outcome()
		outcome.Switches += rounds[i]
		outcome.Requests += total
		outcome.Failed += failed
		outcome.Failures = append(outcome.Failures, reasons...)
	}
	return outcome, errors.Join(failures...)
}

// sleepAndWake scales the application to zero as often as asked for, each time
// once it is in mode serve, and returns how often it came back.
func (a *Application) sleepAndWake(ctx context.Context, observer *Observer, rounds int) (int, error) {
	awake, err := observer.Await(ctx, time.Time{}, ModeChanged, a.Name, string(v1alpha1.ModeServe))
	if err != nil {
		return 0, err
	}
	for round := range rounds {
		if err := a.Scale(ctx, 0); err != nil {
			return round, err
		}
		asleep, err := observer.Await(ctx, awake.At, ModeChanged, a.Name, string(v1alpha1.ModeProxy))
		if err != nil {
			return round, err
		}
		if awake, err = observer.Await(ctx, asleep.At, ModeChanged, a.Name, string(v1alpha1.ModeServe)); err != nil {
			return round, err
		}
	}
	return rounds, nil
}
