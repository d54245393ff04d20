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
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/reports"
)

const (
	// The pauses between the attempts while a server is busy: 100, 200, 400 ms
	// … up to 5 s.
	firstBusyPause = 100 * time.Millisecond
	lastBusyPause  = 5 * time.Second
	// pollingJitter is by how much of the interval syncs are put off at most,
	// so that those that began together spread. Never the other way: a result
	// that is an interval old is queried again.
	pollingJitter = 0.1
	// sleepMaxAge is how old data may be that a target is put to sleep on.
	sleepMaxAge = time.Second
)

// errDeleted means that an ElastiService does not exist any more, or is being
// deleted.
var errDeleted = errors.New("the ElastiService is deleted")

// Scheduler syncs each ElastiService when its time has come. Make it with New
// and run it once.
type Scheduler struct {
	options Options
	clock   clock.WithTicker
	metrics *Metrics

	mu sync.Mutex
	// known are the ElastiServices that exist.
	known map[types.NamespacedName]*subject
	// queue is there from Run on. Its workers use it without the mutex.
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]
	// stopped is true after Run.
	stopped bool
}

// subject is what is known of one ElastiService.
type subject struct {
	// Guarded by the mutex of the scheduler.

	elastiService *v1alpha1.ElastiService
	// woken is when the target was seen to go up from zero. Zero if it was not.
	woken time.Time
	// conflict is what is known of others that scale the target up.
	conflict conflict

	// Used by the worker that has the ElastiService.

	// history is what the last decision left, generation that of the spec
	// that it was made for.
	history    History
	generation int64
	// announced is what a dry run has last said that it would do.
	announced Action
}

// New returns a scheduler that does nothing until it is run.
func New(options Options) (*Scheduler, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	return &Scheduler{
		options: options,
		clock:   options.Clock,
		metrics: options.Metrics,
		known:   map[types.NamespacedName]*subject{},
	}, nil
}

// Run works until ctx ends, and returns when everything that it started has
// ended.
func (s *Scheduler) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("sleep-scheduler"))
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstBusyPause, lastBusyPause),
		workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Clock: s.clock})
	s.start(queue)
	defer s.stop()

	var running sync.WaitGroup
	defer running.Wait()
	defer queue.ShutDown()
	for range s.options.Workers {
		running.Go(func() {
			for {
				key, shutdown := queue.Get()
				if shutdown {
					return
				}
				if ctx.Err() == nil {
					s.sync(ctx, key)
				}
				queue.Done(key)
			}
		})
	}
	<-ctx.Done()
	return nil
}

// start schedules the ElastiServices that are known already.
func (s *Scheduler) start(queue workqueue.TypedRateLimitingInterface[types.NamespacedName]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = queue
	for key := range s.known {
		queue.AddAfter(key, s.firstDelay())
	}
}

// stop forgets everything, and what changes later.
func (s *Scheduler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	clear(s.known)
	s.metrics.forgetAll()
	for _, evaluator := range s.options.Evaluators {
		if holder, ok := evaluator.(interface{ CloseIdleConnections() }); ok {
			holder.CloseIdleConnections()
		}
	}
}

// firstDelay spreads the first syncs over an interval.
func (s *Scheduler) firstDelay() time.Duration {
	return rand.N(s.options.PollingInterval)
}

// Changed takes in that an ElastiService was created (before is nil), changed,
// or deleted (after is nil). The objects must not be modified afterwards. It
// may be called before Run, and does not wait for anything.
func (s *Scheduler) Changed(before, after *v1alpha1.ElastiService) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
	case after == nil:
		delete(s.known, keyOf(before))
		s.metrics.forget(keyOf(before))
	case s.known[keyOf(after)] == nil || s.known[keyOf(after)].elastiService.UID != after.UID:
		s.created(after)
	default:
		s.updated(after)
	}
}

func (s *Scheduler) created(elastiService *v1alpha1.ElastiService) {
	key := keyOf(elastiService)
	known := &subject{elastiService: elastiService}
	if meta.IsStatusConditionTrue(elastiService.Status.Conditions, v1alpha1.ConditionScalingConflict) {
		// It was there before a restart, with more disturbed sleeps maybe.
		pause := backoff(max(reports.Cooldown(elastiService), s.options.PollingInterval), conflictSleeps)
		known.conflict = conflict{disturbed: conflictSleeps, by: "somebody else", until: s.clock.Now().Add(pause)}
	}
	s.known[key] = known
	s.metrics.forget(key)
	s.takeInReplicas(key, elastiService)
	if s.queue != nil {
		s.queue.AddAfter(key, s.firstDelay())
	}
}

func (s *Scheduler) updated(elastiService *v1alpha1.ElastiService) {
	key := keyOf(elastiService)
	known := s.known[key]
	before := known.elastiService
	known.elastiService = elastiService
	if knowsReplicas(before) && before.Status.Replicas == 0 && elastiService.Status.Replicas > 0 {
		known.woken = s.clock.Now()
	}
	s.takeInReplicas(key, elastiService)
	if before.Generation != elastiService.Generation {
		// The edit may have ended the conflict.
		known.conflict = conflict{}
	}
	edited := before.Generation != elastiService.Generation || isDryRun(before) != isDryRun(elastiService)
	if (edited || trafficTurned(before, elastiService)) && s.queue != nil {
		s.queue.Add(key)
	}
}

// Requests takes in what one pod of a target requests, in cores and bytes. It
// does not wait for anything.
func (s *Scheduler) Requests(key types.NamespacedName, cpuCores, memoryBytes float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.known[key]; ok {
		s.metrics.requests(key, cpuCores, memoryBytes)
	}
}

func (s *Scheduler) takeInReplicas(key types.NamespacedName, elastiService *v1alpha1.ElastiService) {
	if knowsReplicas(elastiService) {
		s.metrics.observed(key, elastiService.Status.Replicas, minReplicas(elastiService))
	}
}

// snapshot is an ElastiService as it was at one moment.
type snapshot struct {
	subject       *subject
	elastiService *v1alpha1.ElastiService
	woken         time.Time
	conflict      conflict
}

// get returns an ElastiService as it is now. It fails with errDeleted for one that
// is not there any more.
func (s *Scheduler) get(key types.NamespacedName) (snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.known[key]
	if !ok || !known.elastiService.DeletionTimestamp.IsZero() {
		return snapshot{}, errDeleted
	}
	if since := known.elastiService.Status.SleptTime; since != nil {
		known.conflict.slept(s.clock.Since(since.Time))
	}
	return snapshot{subject: known, elastiService: known.elastiService, woken: known.woken, conflict: known.conflict}, nil
}

// sync decides about an ElastiService and sets the time of the next sync.
func (s *Scheduler) sync(ctx context.Context, key types.NamespacedName) {
	next, err := s.decideAndAct(ctx, key)
	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, queries.ErrBusy):
		s.queue.AddRateLimited(key)
		return
	case errors.Is(err, errDeleted):
	case err != nil:
		klog.FromContext(ctx).Error(err, "Failed to sync ElastiService, will retry", "elastiService", key)
	}
	s.queue.Forget(key)
	switch {
	case next >= s.options.PollingInterval:
		s.queue.AddAfter(key, wait.Jitter(next, pollingJitter))
	case next > 0:
		s.queue.AddAfter(key, next)
	}
}

// decideAndAct makes a decision and carries it out. It returns how long until
// the next one, zero if there is none.
func (s *Scheduler) decideAndAct(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	result, err := s.decide(ctx, key, s.options.PollingInterval)
	if err == nil && (result.decision.Action == ActionSleep || result.observation.SleepRequested) {
		// Results may be an interval old, in which the target may have been used.
		result, err = s.decide(ctx, key, sleepMaxAge)
	}
	if err != nil {
		return 0, err
	}
	result.subject.history, result.subject.generation = result.decision.History, result.elastiService.Generation
	s.metrics.decided(result.decision.Action)
	dryRun := s.options.DryRun || isDryRun(result.elastiService)
	if report, changed := reportOf(result.elastiService, result.observation, result.decision, dryRun); changed {
		err = s.options.Reporter.Report(ctx, result.elastiService, report)
	}
	return result.decision.NextCheck, errors.Join(err, s.act(ctx, result.elastiService, result.subject, result.decision))
}

// decided is a decision with all that it was made of.
type decided struct {
	snapshot
	observation Observation
	decision    Decision
}

// decide evaluates the triggers of an ElastiService, and makes a decision of
// that and of everything else that is known.
func (s *Scheduler) decide(ctx context.Context, key types.NamespacedName, maxAge time.Duration) (decided, error) {
	before, err := s.get(key)
	if err != nil {
		return decided{}, err
	}
	observation := s.observe(before)
	if !observation.ReplicasKnown || observation.EnabledPeriod != nil && !observation.EnabledPeriod.Contains(observation.Now) {
		return decided{before, observation, Decide(observation)}, nil
	}
	results, err := s.evaluate(ctx, before.elastiService, maxAge)
	if err != nil {
		return decided{}, err
	}
	// Evaluating takes time, in which much can happen.
	now, err := s.get(key)
	if err != nil {
		return decided{}, err
	}
	if now.subject != before.subject || now.elastiService.Generation != before.elastiService.Generation {
		return decided{}, queries.ErrBusy
	}
	observation = s.observe(now)
	observation.Triggers = results
	return decided{now, observation, Decide(observation)}, nil
}

// evaluate returns the results of all triggers of an ElastiService.
func (s *Scheduler) evaluate(ctx context.Context, elastiService *v1alpha1.ElastiService, maxAge time.Duration) ([]evaluators.Result, error) {
	results := make([]evaluators.Result, len(elastiService.Spec.Triggers))
	for i := range elastiService.Spec.Triggers {
		trigger := &elastiService.Spec.Triggers[i]
		evaluator, ok := s.options.Evaluators[trigger.Type]
		if !ok {
			results[i] = evaluators.NotSupported()
			continue
		}
		result, err := evaluator.Evaluate(ctx, evaluators.Subject{ElastiService: elastiService, Trigger: trigger, MaxAge: maxAge})
		if err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.metrics.evaluated(trigger.Type, result.State)
		results[i] = result
	}
	return results, nil
}

func keyOf(elastiService *v1alpha1.ElastiService) types.NamespacedName {
	return types.NamespacedName{Namespace: elastiService.Namespace, Name: elastiService.Name}
}
