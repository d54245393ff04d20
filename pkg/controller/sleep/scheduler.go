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

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const (
	// The pauses between the attempts while a server is busy: 100, 200, 400 ms
	// … up to 5 s.
	firstBusyPause = 100 * time.Millisecond
	lastBusyPause  = 5 * time.Second
	// pollingJitter is by how much of the interval looks are put off at most,
	// so that those that began together spread. Never the other way: an
	// answer that is an interval old is asked for again.
	pollingJitter = 0.1
	// sleepMaxAge is how old data may be that a target is put to sleep on.
	sleepMaxAge = time.Second
)

// Scheduler looks at each ElastiService when its time has come. Make it with
// New and run it once.
type Scheduler struct {
	options Options
	clock   clock.WithTicker
	metrics *Metrics

	mu sync.Mutex
	// known are the ElastiServices that exist.
	known map[types.NamespacedName]*subject
	// queue is there while the scheduler runs.
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]
}

// subject is what is known of one ElastiService.
type subject struct {
	// Guarded by the mutex of the scheduler.

	elastiService *v1alpha1.ElastiService
	// woken is when the target was seen to go up from zero. Zero if it was not.
	woken time.Time

	// Used by the worker that has the ElastiService.

	history History
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
	defer s.metrics.forgetAll()
	defer s.closeIdleConnections()

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
					s.look(ctx, key)
				}
				queue.Done(key)
			}
		})
	}
	<-ctx.Done()
	return nil
}

// start gives everyone who is known already a time.
func (s *Scheduler) start(queue workqueue.TypedRateLimitingInterface[types.NamespacedName]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = queue
	for key := range s.known {
		queue.AddAfter(key, s.firstDelay())
	}
}

// firstDelay spreads the first looks over an interval.
func (s *Scheduler) firstDelay() time.Duration {
	return rand.N(s.options.PollingInterval)
}

func (s *Scheduler) closeIdleConnections() {
	for _, evaluator := range s.options.Evaluators {
		if holder, ok := evaluator.(interface{ CloseIdleConnections() }); ok {
			holder.CloseIdleConnections()
		}
	}
}

// Changed takes in that an ElastiService was created (before is nil), changed,
// or deleted (after is nil). The objects must not be modified afterwards. It
// may be called before Run, and does not wait for anything.
func (s *Scheduler) Changed(before, after *v1alpha1.ElastiService) {
	if after == nil {
		s.forget(keyOf(before))
		return
	}
	key := keyOf(after)
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.known[key]
	if !ok || known.elastiService.UID != after.UID {
		s.known[key] = &subject{elastiService: after}
		s.metrics.forget(key)
		s.takeInReplicas(key, after)
		if s.queue != nil {
			s.queue.AddAfter(key, s.firstDelay())
		}
		return
	}
	if knowsReplicas(known.elastiService) && known.elastiService.Status.Replicas == 0 && after.Status.Replicas > 0 {
		known.woken = s.clock.Now()
	}
	edited := known.elastiService.Generation != after.Generation || isDryRun(known.elastiService) != isDryRun(after)
	known.elastiService = after
	s.takeInReplicas(key, after)
	if edited && s.queue != nil {
		s.queue.Add(key)
	}
}

func (s *Scheduler) takeInReplicas(key types.NamespacedName, elastiService *v1alpha1.ElastiService) {
	if knowsReplicas(elastiService) {
		s.metrics.observed(key, elastiService.Status.Replicas, minReplicas(elastiService))
	}
}

func (s *Scheduler) forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, key)
	s.metrics.forget(key)
}

// get returns the ElastiService as it is now, and when it was seen to be woken.
func (s *Scheduler) get(key types.NamespacedName) (*subject, *v1alpha1.ElastiService, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.known[key]
	if !ok || !known.elastiService.DeletionTimestamp.IsZero() {
		return nil, nil, time.Time{}
	}
	return known, known.elastiService, known.woken
}

// look looks at an ElastiService and sets the time of the next look.
func (s *Scheduler) look(ctx context.Context, key types.NamespacedName) {
	known, elastiService, _ := s.get(key)
	if known == nil {
		s.queue.Forget(key)
		return
	}
	next, err := s.decideAndAct(ctx, key, known, elastiService)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, ErrBusy):
		s.queue.AddRateLimited(key)
	default:
		s.queue.Forget(key)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Carrying out what was decided failed, it is decided again", "elastiService", key)
		}
		switch {
		case next >= s.options.PollingInterval:
			s.queue.AddAfter(key, wait.Jitter(next, pollingJitter))
		case next > 0:
			s.queue.AddAfter(key, next)
		}
	}
}

// decideAndAct makes a decision and carries it out. It returns how long until
// the next one.
func (s *Scheduler) decideAndAct(ctx context.Context, key types.NamespacedName, known *subject, looked *v1alpha1.ElastiService) (time.Duration, error) {
	observation, decision, err := s.decide(ctx, key, known, looked, s.options.PollingInterval)
	if err == nil && decision.Action == ActionSleep {
		// Answers may be an interval old, in which somebody may have come.
		observation, decision, err = s.decide(ctx, key, known, looked, sleepMaxAge)
	}
	if err != nil {
		return 0, err
	}
	known.history = decision.History
	s.metrics.decided(decision.Action)
	err = s.report(ctx, key, known, observation, decision)
	return decision.NextCheck, errors.Join(err, s.act(ctx, looked, known, decision))
}

// decide evaluates the triggers of an ElastiService and makes a decision of
// that and everything else that is known.
func (s *Scheduler) decide(ctx context.Context, key types.NamespacedName, known *subject, looked *v1alpha1.ElastiService, maxAge time.Duration) (Observation, Decision, error) {
	observation := s.observe(looked, known)
	if observation.ReplicasKnown && (observation.EnabledPeriod == nil || observation.EnabledPeriod.Contains(observation.Now)) {
		results, err := s.evaluate(ctx, looked, maxAge)
		if err != nil {
			return Observation{}, Decision{}, err
		}
		// Evaluating takes time, in which much can happen.
		current, now, woken := s.get(key)
		if current != known || now.Generation != looked.Generation {
			return Observation{}, Decision{}, ErrBusy
		}
		observation = s.observe(now, known)
		observation.LastWake = latest(observation.LastWake, woken)
		observation.Triggers = results
	}
	return observation, Decide(observation), nil
}

// evaluate returns the results of all triggers of an ElastiService.
func (s *Scheduler) evaluate(ctx context.Context, elastiService *v1alpha1.ElastiService, maxAge time.Duration) ([]Result, error) {
	results := make([]Result, len(elastiService.Spec.Triggers))
	for i := range elastiService.Spec.Triggers {
		trigger := &elastiService.Spec.Triggers[i]
		evaluator, ok := s.options.Evaluators[trigger.Type]
		if !ok {
			results[i] = unknownBecause(ReasonNotSupported, "this version cannot evaluate triggers of this type, so the target is not put to sleep")
			continue
		}
		result, err := evaluator.Evaluate(ctx, Subject{ElastiService: elastiService, Trigger: trigger, MaxAge: maxAge})
		if err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.metrics.evaluated(trigger.Type, result.Verdict)
		results[i] = result
	}
	return results, nil
}

func (s *Scheduler) report(ctx context.Context, key types.NamespacedName, known *subject, observation Observation, decision Decision) error {
	current, elastiService, _ := s.get(key)
	if current != known {
		return nil
	}
	report, changed := reportOf(elastiService, observation, decision)
	if !changed {
		return nil
	}
	return s.options.Reporter.Report(ctx, elastiService, report)
}

func keyOf(elastiService *v1alpha1.ElastiService) types.NamespacedName {
	return types.NamespacedName{Namespace: elastiService.Namespace, Name: elastiService.Name}
}
