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

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// wakeRounds is how often a target is scaled in each way. Of these, wakeWarmUp are not
	// measured: the first ones open connections.
	wakeRounds = 210
	wakeWarmUp = 10
	// wakePause is the pause between rounds. It is longer than the least time between two
	// wake calls of a resolver for one service.
	wakePause = 500 * time.Millisecond
	// wakesTimeout bounds the whole, scaledTimeout the time until a target is scaled.
	wakesTimeout  = 15 * time.Minute
	scaledTimeout = 30 * time.Second
)

// scaling is one way to scale a target at zero, the application whose target is scaled in
// this way, and how long that took.
type scaling struct {
	app *cluster.Application
	// scale returns how long after it began the observer saw the new scale.
	scale func(context.Context, *cluster.Application) (time.Duration, error)
	took  []time.Duration
}

// measureWakes measures what a wake takes beyond one call of the Kubernetes API. A wake
// and that call take turns, and those of a round are compared.
func measureWakes(ctx context.Context, b *bench) error {
	ctx, cancel := context.WithTimeout(ctx, wakesTimeout)
	defer cancel()
	stage, leave, err := b.newStage(ctx)
	if err != nil {
		return err
	}
	defer leave()
	patched, called, requested := &scaling{scale: stage.scaledByPatch}, &scaling{scale: stage.scaledByCall}, &scaling{scale: stage.scaledByRequest}
	ways := []*scaling{patched, called, requested}
	for number, way := range ways {
		if way.app, err = stage.createPodless(ctx, objectName(number)); err != nil {
			return err
		}
	}
	for round := range wakeRounds {
		for turn := range ways {
			way := ways[(round+turn)%len(ways)]
			took, err := way.scale(ctx, way.app)
			if err != nil {
				return fmt.Errorf("round %d: %w", round+1, err)
			}
			if round >= wakeWarmUp {
				way.took = append(way.took, took)
			}
		}
		if err := putAllToSleep(ctx, ways); err != nil {
			return err
		}
	}
	added := differences(requested.took, patched.took)
	b.durations("request sent → target scaled", requested.took)
	b.durations("wake call sent → target scaled", called.took)
	b.durations("one call by a client of the API: scale patched → target scaled", patched.took)
	b.durations("a request, less the patch of the same round", added)
	b.durations("a wake call, less the patch of the same round", differences(called.took, patched.took))
	b.set("wake_over_patch_p50_ms", durationQuantile(added, 0.5))
	b.set("wake_over_patch_p99_ms", durationQuantile(added, 0.99))
	return nil
}

// createPodless creates an application that sleeps, and whose target gets no pods when it
// is scaled: its Deployment is paused. So wakes do not wait for the processor while
// pods of others start, and any number of such applications can be woken.
func (s *stage) createPodless(ctx context.Context, name string) (*cluster.Application, error) {
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{
		Name:       name,
		Deployment: func(deployment *appsv1.DeploymentSpec) { deployment.Paused = true },
	})
	if err := app.Create(ctx); err != nil {
		return nil, err
	}
	return app, errors.Join(app.AwaitAsleep(ctx), app.AwaitResolverSlice(ctx, true), app.AwaitReachable(ctx))
}

// putAllToSleep scales targets to zero that have just been scaled, and returns when the
// statuses of all say so and resolvers wake them at once again. A wake call that was made
// beside another one may come late: its target is scaled to zero again.
func putAllToSleep(ctx context.Context, ways []*scaling) error {
	for awake := ways; len(awake) > 0; {
		for _, way := range awake {
			if err := way.app.AwaitReported(ctx, true); err != nil {
				return err
			}
			if err := errors.Join(way.app.Scale(ctx, 0), way.app.AwaitReported(ctx, false)); err != nil {
				return err
			}
		}
		if err := pause(ctx, wakePause); err != nil {
			return err
		}
		awake = nil
		for _, way := range ways {
			replicas, err := way.app.Replicas(ctx)
			if err != nil {
				return err
			}
			if replicas > 0 {
				awake = append(awake, way)
			}
		}
	}
	return nil
}

// scaledByPatch scales a target at zero with a single call of the API, which is the minimum
// of a wake, and returns how long after that the observer saw it.
func (s *stage) scaledByPatch(ctx context.Context, app *cluster.Application) (time.Duration, error) {
	start := time.Now()
	_, err := s.Host.AppsV1().Deployments(s.namespace).Patch(ctx, app.Name, types.JSONPatchType,
		[]byte(`[{"op":"add","path":"/spec/replicas","value":1}]`), metav1.PatchOptions{}, "scale")
	if err != nil {
		return 0, fmt.Errorf("scaling %s: %w", app.Name, err)
	}
	return s.scaledSince(ctx, start, app)
}

// scaledByCall wakes a target with a wake call, as a resolver does.
func (s *stage) scaledByCall(ctx context.Context, app *cluster.Application) (time.Duration, error) {
	start := time.Now()
	_, err := s.Elasti.ElastiV1alpha1().ElastiServices(s.namespace).Wake(ctx, app.Name, &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("waking %s: %w", app.Name, err)
	}
	return s.scaledSince(ctx, start, app)
}

// scaledByRequest wakes a target with a request, and cancels the request when the target is
// scaled. A response before that is an error.
func (s *stage) scaledByRequest(ctx context.Context, app *cluster.Application) (time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer cancel(nil)
	start := time.Now()
	ended.Go(func() {
		response, err := cluster.Get(ctx, app.URL("/"))
		if err == nil {
			err = fmt.Errorf("the request got status %d, it was not held: %.200s", response.Status, response.Body)
		}
		cancel(err)
	})
	return s.scaledSince(ctx, start, app)
}

// scaledSince waits until the observer has seen that a target was scaled to one replica.
func (s *stage) scaledSince(ctx context.Context, start time.Time, app *cluster.Application) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, scaledTimeout)
	defer cancel()
	moment, err := s.observer.Await(ctx, start, cluster.Scaled, app.Name, "1")
	if err != nil {
		return 0, err
	}
	return moment.At.Sub(start), nil
}

// differences subtracts the second durations from the first ones, which were measured in
// the same order.
func differences(first, second []time.Duration) []time.Duration {
	durations := make([]time.Duration, 0, len(first))
	for i := range min(len(first), len(second)) {
		durations = append(durations, first[i]-second[i])
	}
	return durations
}
