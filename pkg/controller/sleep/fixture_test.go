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

package sleep

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
)

// fakeTrigger evaluates every trigger to what it is set to.
type fakeTrigger struct {
	mu sync.Mutex
	// say returns the result for an ElastiService, and may block until then.
	say func(ctx context.Context, name string) (evaluators.Result, error)
	// evaluated has the times of the evaluations for each ElastiService.
	evaluated map[string][]time.Time
}

func (f *fakeTrigger) Evaluate(ctx context.Context, subject evaluators.Subject) (evaluators.Result, error) {
	f.mu.Lock()
	f.evaluated[subject.ElastiService.Name] = append(f.evaluated[subject.ElastiService.Name], time.Now())
	say := f.say
	f.mu.Unlock()
	return say(ctx, subject.ElastiService.Name)
}

func (f *fakeTrigger) says(say func(ctx context.Context, name string) (evaluators.Result, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.say = say
}

func (f *fakeTrigger) always(result evaluators.Result) {
	f.says(func(context.Context, string) (evaluators.Result, error) { return result, nil })
}

func (f *fakeTrigger) evaluations(name string) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.evaluated[name])
}

// fakeCluster carries out what the scheduler requests, and calls it with the changes.
type fakeCluster struct {
	scheduler *Scheduler

	mu      sync.Mutex
	objects map[string]*v1alpha1.ElastiService
	done    []string
	writes  int
	// rejects is how many of the next writes of the status fail.
	rejects int
	// unlisted are the reasons of ConditionSleeping that v1alpha1.SleepingReasons lacks.
	unlisted []string
	// beforeSleep is called with each ElastiService of which sleep is requested. Its error
	// is that of the request. It may be nil.
	beforeSleep func(*v1alpha1.ElastiService) error
}

// update changes an ElastiService as the API would.
func (f *fakeCluster) update(name string, change func(*v1alpha1.ElastiService)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.objects[name]
	after := before.DeepCopy()
	change(after)
	f.objects[name] = after
	f.scheduler.Changed(before, after)
}

func (f *fakeCluster) create(name string, change func(*v1alpha1.ElastiService)) {
	elastiService := &v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Generation: 1, CreationTimestamp: metav1.Now()},
		Spec: v1alpha1.ElastiServiceSpec{
			CooldownPeriod: ptr.To(int32(testCooldown.Seconds())),
			Triggers:       []v1alpha1.ScaleTrigger{{Type: "fake"}},
			ScaleTargetRef: v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
		},
		Status: v1alpha1.ElastiServiceStatus{
			Replicas:      3,
			ReadyReplicas: 3,
			Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready"},
				{Type: v1alpha1.ConditionTargetFound, Status: metav1.ConditionTrue, Reason: "Found"},
			},
		},
	}
	if change != nil {
		change(elastiService)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects[name] = elastiService
	f.scheduler.Changed(nil, elastiService)
}

func (f *fakeCluster) delete(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.scheduler.Changed(f.objects[name], nil)
	delete(f.objects, name)
}

func (f *fakeCluster) scale(name string, replicas int32) {
	f.update(name, func(elastiService *v1alpha1.ElastiService) {
		elastiService.Status.Replicas, elastiService.Status.ReadyReplicas = replicas, replicas
	})
}

func (f *fakeCluster) KeepAwake(_ context.Context, elastiService *v1alpha1.ElastiService) error {
	f.did("keep " + elastiService.Name)
	f.update(elastiService.Name, func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
	return nil
}

func (f *fakeCluster) Sleep(_ context.Context, elastiService *v1alpha1.ElastiService) error {
	f.did("sleep " + elastiService.Name)
	f.mu.Lock()
	stored := f.objects[elastiService.Name]
	f.mu.Unlock()
	if f.beforeSleep != nil {
		if err := f.beforeSleep(stored); err != nil {
			return err
		}
	}
	f.update(elastiService.Name, func(elastiService *v1alpha1.ElastiService) {
		elastiService.Status.SleepRequestedTime, elastiService.Status.SleepRequestedBy = ptr.To(metav1.Now()), v1alpha1.CallerServer
	})
	return nil
}

// get returns an ElastiService, which is never modified.
func (f *fakeCluster) get(name string) *v1alpha1.ElastiService {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects[name]
}

// scaleDown does what the other controller does when sleep is requested.
func (f *fakeCluster) scaleDown(name string) {
	f.update(name, func(elastiService *v1alpha1.ElastiService) {
		if elastiService.Status.SleepRequestedTime != nil {
			elastiService.Status.SleepRequestedTime, elastiService.Status.Replicas, elastiService.Status.ReadyReplicas = nil, 0, 0
		}
	})
}

func (f *fakeCluster) Wake(_ context.Context, elastiService *v1alpha1.ElastiService, _ string) error {
	f.did("wake " + elastiService.Name)
	f.update(elastiService.Name, func(elastiService *v1alpha1.ElastiService) {
		elastiService.Status.SleepRequestedTime = nil
		elastiService.Status.Replicas = max(1, elastiService.Status.Replicas)
		elastiService.Status.ReadyReplicas = elastiService.Status.Replicas
	})
	return nil
}

func (f *fakeCluster) Report(_ context.Context, elastiService *v1alpha1.ElastiService, report Report) error {
	f.mu.Lock()
	f.writes++
	rejected := f.rejects > 0
	f.rejects = max(0, f.rejects-1)
	if report.Sleeping != nil && !slices.Contains(v1alpha1.SleepingReasons(), report.Sleeping.Reason) {
		f.unlisted = append(f.unlisted, report.Sleeping.Reason)
	}
	f.mu.Unlock()
	if rejected {
		return errors.New("the storage does not respond")
	}
	f.update(elastiService.Name, func(elastiService *v1alpha1.ElastiService) {
		elastiService.Status.LastActivityTime = report.LastActivity
		elastiService.Status.TargetSharedWith = report.SharedWith
		elastiService.Status.LastWake = report.LastWake
		elastiService.Status.Conditions = slices.DeleteFunc(elastiService.Status.Conditions, func(condition metav1.Condition) bool {
			return condition.Type != v1alpha1.ConditionReady && condition.Type != v1alpha1.ConditionTargetFound
		})
		for _, condition := range []*metav1.Condition{report.TriggersHealthy, report.ScalingConflict, report.DryRun, report.Sleeping, report.TargetShared} {
			if condition != nil {
				elastiService.Status.Conditions = append(elastiService.Status.Conditions, *condition)
			}
		}
	})
	return nil
}

// rejectReports has the next reports fail.
func (f *fakeCluster) rejectReports(count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rejects = count
}

func (f *fakeCluster) did(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = append(f.done, what)
}

// want checks what was done since the last time.
func (f *fakeCluster) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.done, want) {
		t.Errorf("did %q, want %q", f.done, want)
	}
	f.done = nil
}

// writesSince returns how often the status was written since the last time.
func (f *fakeCluster) writesSince() int {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	writes := f.writes
	f.writes = 0
	return writes
}

type fixture struct {
	*fakeCluster
	trigger  *fakeTrigger
	recorder *events.FakeRecorder
	registry *prometheus.Registry
}

// inBubble runs a test with a scheduler that runs.
func inBubble(t *testing.T, change func(*Options), test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{
			fakeCluster: &fakeCluster{objects: map[string]*v1alpha1.ElastiService{}},
			trigger:     &fakeTrigger{evaluated: map[string][]time.Time{}},
			recorder:    events.NewFakeRecorder(100),
			registry:    prometheus.NewPedanticRegistry(),
		}
		f.trigger.always(idle)
		options := Options{
			Evaluators: map[string]evaluators.Evaluator{"fake": f.trigger},
			Sleeper:    f.fakeCluster,
			Waker:      f.fakeCluster,
			Reporter:   f.fakeCluster,
			Recorder:   f.recorder,
			Workers:    4,
			Metrics:    NewMetrics(f.registry, clock.RealClock{}),
		}
		if change != nil {
			change(&options)
		}
		scheduler, err := New(options)
		if err != nil {
			t.Fatal(err)
		}
		f.scheduler = scheduler
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- scheduler.Run(ctx) }()
		synctest.Wait()
		test(t, f)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(f.unlisted) > 0 {
			t.Errorf("reasons of Sleeping that are not listed: %q", f.unlisted)
		}
		if count := testutil.CollectAndCount(f.registry, "elasti_operator_asleep_seconds_total"); count != 0 {
			t.Errorf("%d series are left after the end", count)
		}
	})
}

// pass lets time pass in the bubble.
func pass(duration time.Duration) { <-time.After(duration) }
