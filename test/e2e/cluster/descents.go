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

// descentClients is how many clients send requests to each application, every
// other one over a connection that it keeps, and descentRate how many each
// sends a second.
const (
	descentClients = 5
	descentRate    = 10
)

// DescentOptions say how to put applications to sleep under traffic.
type DescentOptions struct {
	// Applications is how many applications there are.
	Applications int
	// Rounds is how often each of them is put to sleep.
	Rounds int
	// Timeout bounds the whole.
	Timeout time.Duration
}

// DescentOutcome is what came of putting applications to sleep under traffic.
type DescentOutcome struct {
	// Descents is how many times an application was scaled to zero.
	Descents int
	// Requests is how many requests were sent, Failed how many of them were
	// not answered with 200, and Failures the first reasons why.
	Requests, Failed int
	Failures         []string
}

// Descend creates applications in the namespace that the observer watches,
// sends steady traffic to them, and has each of them put to sleep over and over,
// as a trigger would for which that traffic is too little. The traffic wakes it.
func (c *Cluster) Descend(ctx context.Context, namespace string, observer *Observer, options DescentOptions) (DescentOutcome, error) {
	ctx, cancel := context.WithTimeout(ctx, options.Timeout)
	defer cancel()
	var apps []*Application
	for i := range options.Applications {
		app := c.NewApplication(namespace, ApplicationOptions{Name: fmt.Sprintf("descending-%02d", i), Linger: lingerWhileSwitching})
		if err := app.Create(ctx); err != nil {
			return DescentOutcome{}, err
		}
		apps = append(apps, app)
	}
	for _, app := range apps {
		if err := errors.Join(app.AwaitAsleep(ctx), app.AwaitResolverSlice(ctx, true), app.AwaitReachable(ctx)); err != nil {
			return DescentOutcome{}, err
		}
	}

	sending, stopSending := context.WithCancel(ctx)
	defer stopSending()
	var clients, descents sync.WaitGroup
	traffics := make([]Traffic, len(apps)*descentClients)
	failures, rounds := make([]error, len(apps)), make([]int, len(apps))
	for i, app := range apps {
		for client := range descentClients {
			traffic := &traffics[i*descentClients+client]
			traffic.URL, traffic.PerSecond, traffic.KeepAlive = app.URL("/"), descentRate, client%2 == 1
			traffic.Timeout, traffic.Limit = time.Minute, descentRate*int(options.Timeout/time.Second)
			clients.Go(func() { traffic.Run(sending) })
		}
		descents.Go(func() { rounds[i], failures[i] = app.descendAndWake(ctx, observer, options.Rounds) })
	}
	descents.Wait()
	stopSending()
	clients.Wait()

	var outcome DescentOutcome
	for _, descended := range rounds {
		outcome.Descents += descended
	}
	for i := range traffics {
		total, failed, reasons := traffics[i].Outcome()
		outcome.Requests += total
		outcome.Failed += failed
		outcome.Failures = append(outcome.Failures, reasons...)
	}
	return outcome, errors.Join(failures...)
}

// descendAndWake has the application put to sleep as often as asked for, each
// time once it is in mode serve, and returns how often it was scaled to zero and
// came back.
func (a *Application) descendAndWake(ctx context.Context, observer *Observer, rounds int) (int, error) {
	awake, err := observer.Await(ctx, time.Time{}, ModeChanged, a.Name, string(v1alpha1.ModeServe))
	if err != nil {
		return 0, err
	}
	for round := range rounds {
		if err := a.RequestSleep(ctx); err != nil {
			return round, err
		}
		asleep, err := observer.Await(ctx, awake.At, Scaled, a.Name, "0")
		if err != nil {
			return round, err
		}
		if awake, err = observer.Await(ctx, asleep.At, ModeChanged, a.Name, string(v1alpha1.ModeServe)); err != nil {
			return round, err
		}
	}
	return rounds, nil
}

// RequestSleep asks for the target to be put to sleep, as kubectl scale
// elastiservice --replicas=0 does.
func (a *Application) RequestSleep(ctx context.Context) error {
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Name}}
	if _, err := a.cluster.Elasti.ElastiV1alpha1().ElastiServices(a.Namespace).UpdateScale(ctx, a.Name, scale, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("asking for ElastiService %s to sleep: %w", a.Name, err)
	}
	return nil
}
