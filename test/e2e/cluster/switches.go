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

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// requestTimeout is how long a client waits for a response. It is longer than a pod
// may have to wait to be scheduled on a node that is full of terminating pods.
const requestTimeout = 3 * time.Minute

// lingerWhileSwitching is how long terminating pods still serve after their target was
// scaled to zero by hand. It is longer than the propagation delay of kube-proxy, also
// on a busy machine.
const lingerWhileSwitching = 15 * time.Second

// scaleDownTimeout is longer than a scale-down takes. A scale-down that traffic
// canceled is requested again, as a trigger does.
const scaleDownTimeout = 20 * time.Second

// RoundOptions configure how applications sleep and wake under traffic.
type RoundOptions struct {
	// Applications is how many applications there are.
	Applications int
	// Rounds is how often each of them is put to sleep and wakes.
	Rounds int
	// Clients is how many clients send to each of them, every other one over a
	// connection that it keeps, and PerSecond how many requests each of them
	// sends a second.
	Clients, PerSecond int
	// Timeout bounds the whole.
	Timeout time.Duration
}

// RoundResult is what came of the rounds.
type RoundResult struct {
	// Rounds is how many times an application slept and came back.
	Rounds int
	// Requests is how many requests were sent, Failed how many of them the
	// application did not respond with 200, and Failures the first reasons why.
	Requests, Failed int
	Failures         []string
}

// Switch creates applications in the namespace that the observer watches and
// sends steady traffic to them. It scales each of them to zero, over and over,
// as soon as traffic goes to its pod; the traffic itself wakes it.
func (c *Cluster) Switch(ctx context.Context, namespace string, observer *Observer, options RoundOptions) (RoundResult, error) {
	return c.rounds(ctx, namespace, observer, options, "switched", func(ctx context.Context, app *Application, since time.Time) (Moment, error) {
		if err := app.Scale(ctx, 0); err != nil {
			return Moment{}, err
		}
		return observer.Await(ctx, since, Scaled, app.Name, "0")
	})
}

// ScaleDown is like Switch, except that the controller puts each application to sleep,
// as with a trigger for which that traffic is too little.
func (c *Cluster) ScaleDown(ctx context.Context, namespace string, observer *Observer, options RoundOptions) (RoundResult, error) {
	return c.rounds(ctx, namespace, observer, options, "scaled-down", func(ctx context.Context, app *Application, since time.Time) (Moment, error) {
		for {
			if err := app.RequestSleep(ctx); err != nil {
				return Moment{}, err
			}
			sleepCtx, stop := context.WithTimeout(ctx, scaleDownTimeout)
			asleep, err := observer.Await(sleepCtx, since, Scaled, app.Name, "0")
			stop()
			if err == nil || ctx.Err() != nil {
				return asleep, err
			}
		}
	})
}

// sleepFunc puts an application to sleep, and returns the moment since the given
// one at which it is.
type sleepFunc func(ctx context.Context, app *Application, since time.Time) (Moment, error)

func (c *Cluster) rounds(ctx context.Context, namespace string, observer *Observer, options RoundOptions, name string, sleep sleepFunc) (RoundResult, error) {
	ctx, cancel := context.WithTimeout(ctx, options.Timeout)
	defer cancel()
	var apps []*Application
	for i := range options.Applications {
		app := c.NewApplication(namespace, ApplicationOptions{Name: fmt.Sprintf("%s-%02d", name, i), Linger: lingerWhileSwitching, Container: OneOfMany})
		if err := app.Create(ctx); err != nil {
			return RoundResult{}, err
		}
		apps = append(apps, app)
	}
	for _, app := range apps {
		if err := errors.Join(app.AwaitAsleep(ctx), app.AwaitResolverSlice(ctx, true), app.AwaitReachable(ctx)); err != nil {
			return RoundResult{}, err
		}
	}

	sending, stopSending := context.WithCancel(ctx)
	defer stopSending()
	var clients, sleepers sync.WaitGroup
	traffics := make([]Traffic, len(apps)*options.Clients)
	failures, rounds := make([]error, len(apps)), make([]int, len(apps))
	for i, app := range apps {
		for client := range options.Clients {
			traffic := &traffics[i*options.Clients+client]
			traffic.Application, traffic.Path = app, "/"
			traffic.PerSecond, traffic.KeepAlive = options.PerSecond, (i+client)%2 == 1
			traffic.Timeout, traffic.Limit = requestTimeout, options.PerSecond*int(options.Timeout/time.Second)
			clients.Go(func() { traffic.Run(sending) })
		}
		sleepers.Go(func() { rounds[i], failures[i] = app.sleepAndWake(ctx, observer, options.Rounds, sleep) })
	}
	sleepers.Wait()
	stopSending()
	clients.Wait()

	var result RoundResult
	for _, n := range rounds {
		result.Rounds += n
	}
	for i := range traffics {
		total, failed, reasons := traffics[i].Result()
		result.Requests += total
		result.Failed += failed
		for _, reason := range reasons {
			result.Failures = append(result.Failures, apps[i/options.Clients].Name+": "+reason)
		}
	}
	return result, errors.Join(failures...)
}

// sleepAndWake puts the application to sleep a number of times, each time once traffic
// goes to its pod, and returns how often it woke. A wake may follow so fast that the
// mode in between is never reported.
func (a *Application) sleepAndWake(ctx context.Context, observer *Observer, rounds int, sleep sleepFunc) (int, error) {
	awake, err := observer.Await(ctx, time.Time{}, ModeChanged, a.Name, string(v1alpha1.ModeServe))
	if err != nil {
		return 0, err
	}
	for round := range rounds {
		asleep, err := sleep(ctx, a, awake.At)
		if err != nil {
			return round, err
		}
		// A wake may come before the pod has ended; its endpoint stays ready then.
		if awake, err = observer.Await(ctx, asleep.At, Scaled, a.Name, "1"); err != nil {
			return round, err
		}
		if err := observer.AwaitReadyEndpoint(ctx, a.Name); err != nil {
			return round, err
		}
		if err := a.AwaitResolverSlice(ctx, false); err != nil {
			return round, err
		}
	}
	return rounds, nil
}

// RequestSleep requests the scale-down of the target, as kubectl scale elastiservice
// --replicas=0 does.
func (a *Application) RequestSleep(ctx context.Context) error {
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Name}}
	if _, err := a.cluster.Elasti.ElastiV1alpha1().ElastiServices(a.Namespace).UpdateScale(ctx, a.Name, scale, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("scaling ElastiService %s to zero: %w", a.Name, err)
	}
	return nil
}
