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

package elastiservice

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// gatedScaler lets each wake begin and end when the test says so.
type gatedScaler struct {
	Scaler
	proceed chan struct{}

	mu sync.Mutex
	// running and calls are guarded by mu.
	running, calls int
	// fromZero counts the wakes from zero. It is for one at a time.
	fromZero int
}

func (g *gatedScaler) Wake(context.Context, scaling.Target, scaling.Autoscaler, int32, bool) (scaling.Result, error) {
	g.mu.Lock()
	g.calls++
	g.running++
	g.mu.Unlock()
	<-g.proceed
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	return scaling.Result{Replicas: 1, Scaled: g.calls == 1}, nil
}

func (g *gatedScaler) WakeFromZero(ctx context.Context, target scaling.Target, autoscaler scaling.Autoscaler, minimum int32) (scaling.Result, error) {
	g.fromZero++
	return g.Wake(ctx, target, autoscaler, minimum, false)
}

// A target whose status says that it is at zero is woken the faster way.
func TestTargetsAtZeroAreWokenFromZero(t *testing.T) {
	for _, test := range []struct {
		mode     elasti.Mode
		replicas int32
		want     int
	}{
		{elasti.ModeProxy, 0, 1},
		{elasti.ModeProxy, 2, 0},
		{elasti.ModeServe, 0, 0},
		{"", 0, 0},
	} {
		scaler := &gatedScaler{proceed: make(chan struct{})}
		close(scaler.proceed)
		elastiService := sleeping()
		elastiService.Status.Mode, elastiService.Status.Replicas = test.mode, test.replicas
		if _, err := (&targets{scaler: scaler, events: noEvents{}}).wake(t.Context(), elastiService, 1, "test", false); err != nil {
			t.Fatal(err)
		}
		if scaler.fromZero != test.want || scaler.calls != 1 {
			t.Errorf("mode %q, %d replicas: woken from zero %d times, want %d", test.mode, test.replicas, scaler.fromZero, test.want)
		}
	}
}

type noEvents struct{}

func (noEvents) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) {}

func sleeping() *elasti.ElastiService {
	return &elasti.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
		Spec:       elasti.ElastiServiceSpec{ScaleTargetRef: elasti.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "cart"}},
	}
}

// Callers that arrive while a wake runs share one more: the running one may have
// read the scale before the target was put to sleep.
func TestConcurrentWakesShareTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scaler := &gatedScaler{proceed: make(chan struct{})}
		targets := &targets{scaler: scaler, events: noEvents{}}
		var group sync.WaitGroup
		wake := func() {
			if _, err := targets.wake(t.Context(), sleeping(), 1, "test", false); err != nil {
				t.Error(err)
			}
		}
		group.Go(wake)
		synctest.Wait()
		for range 20 {
			group.Go(wake)
		}
		synctest.Wait()
		if scaler.running != 1 {
			t.Errorf("%d wakes of one target run at once, want 1", scaler.running)
		}
		close(scaler.proceed)
		group.Wait()
		if scaler.calls != 2 {
			t.Errorf("21 wakes at once made %d calls, want 2", scaler.calls)
		}
	})
}

// A caller that disconnects must not fail the others that share its wake.
func TestWakeOutlivesItsFirstCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scaler := &gatedScaler{proceed: make(chan struct{})}
		targets := &targets{scaler: scaler, events: noEvents{}}
		ctx, disconnect := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := targets.wake(ctx, sleeping(), 1, "test", false)
			failed <- err
		}()
		synctest.Wait()
		disconnect()
		if err := <-failed; err == nil {
			t.Error("a caller that disconnected got a result")
		}
		close(scaler.proceed)
		synctest.Wait()
		if scaler.running != 0 {
			t.Error("the wake did not end")
		}
	})
}

func TestKeyedMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mutex keyedMutex
		unlock, err := mutex.lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		unlockOther, err := mutex.lock(t.Context(), "b")
		if err != nil {
			t.Fatalf("another key waits: %v", err)
		}
		unlockOther()

		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := mutex.lock(ctx, "a")
			failed <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-failed; err == nil {
			t.Error("a held key was locked twice")
		}

		locked := make(chan func())
		go func() {
			unlock, err := mutex.lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			locked <- unlock
		}()
		synctest.Wait()
		unlock()
		(<-locked)()
		if len(mutex.locks) != 0 {
			t.Errorf("%d locks are kept that are not in use", len(mutex.locks))
		}
	})
}

// The ElastiService may be given another target after the watch cache was read.
func TestRequestForSleepOfAnotherTargetIsNotCanceled(t *testing.T) {
	requested, wake := metav1.Now(), elasti.WakeRecord{Time: metav1.Now(), By: "user alice"}
	for target, want := range map[string]bool{"cart": true, "basket": false} {
		elastiService := sleeping()
		elastiService.Status.SleepRequestedTime, elastiService.Status.SleepRequestedBy = &requested, "user bob"
		cancelSleepOf(elastiService, target, wake)
		status := elastiService.Status
		canceled := status.SleepRequestedTime == nil && status.SleepRequestedBy == "" && status.LastWake != nil && status.LastWake.CancelledSleep
		left := status.SleepRequestedTime != nil && status.SleepRequestedBy != "" && status.LastWake == nil
		if want && !canceled || !want && !left {
			t.Errorf("after a wake of %s the status is %+v", target, status)
		}
	}
}
