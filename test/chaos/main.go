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

// Command chaos sends requests to applications that sleep and wake, while
// resolvers are killed and rolled out anew. Only requests that were with a
// resolver when it was killed, or met its address before that was removed
// everywhere, may fail; any other failure ends the command with an error.
//
// It knows nothing of how resolvers hold requests. Begin with main.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// settleTimeout bounds the time until the applications sleep, and until the
	// resolvers are all there again after the last of them was killed.
	settleTimeout = 3 * time.Minute
	// linger is how long a pod of an application serves after it was deleted:
	// what knows its address late must not be counted as a failure of the product.
	linger = 15 * time.Second
)

func main() {
	options := options{}
	flag.IntVar(&options.rate, "rate", 1000, "requests a second, over all applications")
	flag.IntVar(&options.applications, "applications", 20, "how many applications sleep and wake")
	flag.DurationVar(&options.duration, "duration", time.Minute, "how long requests are sent")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, options); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

type options struct {
	rate, applications int
	duration           time.Duration
}

// run makes the applications, disturbs, and classifies the failures.
func run(ctx context.Context, options options) (err error) {
	connected, err := cluster.Connect(ctx)
	if err != nil {
		return err
	}
	namespace, err := connected.CreateNamespace(ctx, "chaos")
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
		defer cancel()
		err = errors.Join(err, connected.DeleteNamespace(ctx, namespace), connected.AwaitNamespaceDeleted(ctx, namespace))
	}()
	applications, err := sleepingApplications(ctx, connected, namespace, options.applications)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, options.duration+settleTimeout)
	defer cancel()
	stopNoting, err := noteDestinations(ctx, servicePort)
	if err != nil {
		return err
	}
	sending, stopSending := context.WithTimeout(ctx, options.duration)
	defer stopSending()
	load := newLoad(applications, options.rate)
	disturbance := &disturbance{cluster: connected}
	var running sync.WaitGroup
	running.Go(func() { load.run(sending) })
	for _, app := range applications {
		running.Go(func() { sleepOften(sending, app) })
	}
	disturbErr := disturbance.run(ctx, sending)
	running.Wait()
	went, err := stopNoting(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}

	total, failures := load.result(went)
	return errors.Join(disturbErr, report(options, disturbance, total, failures))
}

// report prints which requests failed, and returns what is wrong with that.
func report(options options, disturbance *disturbance, total int, failures []failure) error {
	unexplained := disturbance.unexplained(failures)
	fmt.Printf("%d requests over %d applications in %s; %d resolvers killed, %d rollouts; %d requests failed, %d of them for no allowed reason\n",
		total, options.applications, options.duration, len(disturbance.kills), disturbance.rollouts, len(failures), len(unexplained))
	for _, kill := range disturbance.kills {
		number, last := kill.window(failures)
		fmt.Printf("  %s, killed at %s: %d requests failed, the last was sent %s after\n",
			kill.address, kill.at.Format(time.TimeOnly), number, last.Round(time.Millisecond))
	}
	for i, failure := range unexplained {
		if i == maxPrinted {
			fmt.Println("  and more")
			break
		}
		fmt.Println("  " + failure.String())
	}
	switch {
	case len(unexplained) > 0:
		return fmt.Errorf("%d requests failed that no killed resolver had", len(unexplained))
	case len(disturbance.kills) == 0 || disturbance.rollouts == 0:
		return errors.New("the time was too short to kill a resolver and to roll them out; give a longer -duration")
	case float64(total) < enough*float64(options.rate)*options.duration.Seconds():
		return fmt.Errorf("only %d requests were sent: this machine cannot do %d a second; give a lower -rate", total, options.rate)
	}
	return nil
}

const (
	// servicePort is the port of the applications' Services.
	servicePort = 80
	// maxPrinted is how many failures are printed.
	maxPrinted = 20
	// enough is the part of the requests that must have been sent.
	enough = 0.8
)

func sleepingApplications(ctx context.Context, connected *cluster.Cluster, namespace string, number int) ([]*cluster.Application, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	var applications []*cluster.Application
	for i := range number {
		app := connected.NewApplication(namespace, cluster.ApplicationOptions{Name: fmt.Sprintf("chaos-%02d", i), Linger: linger, Container: cluster.OneOfMany})
		if err := app.Create(ctx); err != nil {
			return nil, err
		}
		applications = append(applications, app)
	}
	for _, app := range applications {
		if err := errors.Join(app.AwaitAsleep(ctx), app.AwaitResolverSlice(ctx, true), app.AwaitReachable(ctx)); err != nil {
			return nil, err
		}
	}
	return applications, nil
}

// sleepOften puts an application to sleep whenever it has been awake for a
// moment; its own traffic wakes it.
func sleepOften(ctx context.Context, app *cluster.Application) {
	for {
		// Before that nothing of it would be seen but a pod that never comes to
		// serve. It fails when ctx ends.
		if app.AwaitMode(ctx, v1alpha1.ModeServe) != nil || !pause(ctx, awakeFor) {
			return
		}
		if app.Scale(ctx, 0) != nil {
			// The API may be slow for a moment; there is another turn.
			continue
		}
		if app.AwaitMode(ctx, v1alpha1.ModeProxy) != nil {
			return
		}
	}
}

// awakeFor is how long an application is awake. Twenty of them so begin one pod a
// second, which is what two processors can start beside the load.
const awakeFor = 20 * time.Second
