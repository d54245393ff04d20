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
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/fairqueue"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
)

const (
	// The pauses between the attempts while a server is busy: 100, 200, 400 ms
	// … up to 5 s.
	firstBusyPause = 100 * time.Millisecond
	lastBusyPause  = 5 * time.Second
	// pollingJitter is by how much of the interval syncs are delayed at most, so that
	// those that began together spread. They are never early: only a result that is
	// an interval old is queried again.
	pollingJitter = 0.1
	// sleepMaxAge is how old the data may be on which a target is put to sleep.
	sleepMaxAge = time.Second
	// confirmMaxAge is how old the decision may be on which a target is scaled to zero.
	confirmMaxAge = time.Second
)

// Scheduler syncs each target when its time has come. It is made with New and run
// once.
type Scheduler struct {
	options Options
	clock   clock.WithTicker
	metrics *Metrics

	mu sync.Mutex
	// known has the ElastiServices that exist, targets those of each target.
	known   map[types.NamespacedName]*subject
	targets map[resources.TargetKey]*sharedTarget
	// queue is set by Run. Its workers use it without the mutex.
	queue *fairqueue.WorkQueue[resources.TargetKey]
	// stopped is true after Run.
	stopped bool
}

// New returns a scheduler that does nothing until it is run.
func New(options Options) (*Scheduler, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	s := &Scheduler{
		options: options,
		clock:   options.Clock,
		metrics: options.Metrics,
		known:   map[types.NamespacedName]*subject{},
		targets: map[resources.TargetKey]*sharedTarget{},
	}
	options.TargetKeys.OnChange(s.regroupAll)
	return s, nil
}

// Run works until ctx ends, and returns when everything that it started has
// ended.
func (s *Scheduler) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("sleep-scheduler"))
	queue := fairqueue.NewWorkQueue(fairqueue.WorkQueueOptions[resources.TargetKey]{
		Clock:       s.clock,
		NamespaceOf: func(key resources.TargetKey) string { return key.Namespace },
		FirstRetry:  firstBusyPause,
		LastRetry:   lastBusyPause,
		Waiting:     s.metrics.waiting,
	})
	s.start(queue)
	defer s.stop()
	queue.Run(ctx, s.options.Workers, s.sync)
	return nil
}

// start schedules the targets that were recorded before Run.
func (s *Scheduler) start(queue *fairqueue.WorkQueue[resources.TargetKey]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = queue
	for key := range s.targets {
		queue.AddAfter(key, s.firstDelay())
	}
}

// stop drops all state, and makes the scheduler ignore later changes.
func (s *Scheduler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	clear(s.known)
	clear(s.targets)
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

// sync decides about a target and sets the time of the next sync.
func (s *Scheduler) sync(ctx context.Context, key resources.TargetKey) {
	next, err := s.decideAndAct(ctx, key)
	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, queries.ErrBusy):
		s.queue.AddRateLimited(key)
		return
	case err != nil:
		klog.FromContext(ctx).Error(err, "Failed to sync the ElastiServices of a target, will retry", "target", key)
		if next == 0 {
			next = s.options.PollingInterval
		}
	}
	s.queue.Forget(key)
	switch {
	case next >= s.options.PollingInterval:
		s.queue.AddAfter(key, wait.Jitter(next, pollingJitter))
	case next > 0:
		s.queue.AddAfter(key, next)
	}
}

// decideAndAct makes a decision about a target and carries it out. It returns how
// long until the next one, zero if there is none.
func (s *Scheduler) decideAndAct(ctx context.Context, key resources.TargetKey) (time.Duration, error) {
	round, err := s.decide(ctx, key, s.options.PollingInterval)
	if err == nil && (round.combined.Action == ActionSleep || round.requested()) {
		// Results may be an interval old, in which the target may have been used.
		round, err = s.decide(ctx, key, sleepMaxAge)
	}
	if err != nil {
		return 0, err
	}
	s.record(key, round)
	problems := []error{round.busy}
	if round.combined.Action == ActionSleep {
		// It is reported that sleep is requested once it is.
		problems = append(problems, s.act(ctx, round))
	}
	next := time.Duration(0)
	for i := range round.members {
		problems = append(problems, s.report(ctx, round, i))
		if check := round.members[i].decision.NextCheck; check > 0 && (next == 0 || check < next) {
			next = check
		}
	}
	if round.combined.Action == ActionSleep {
		next = min(s.options.PollingInterval, scaleDownCheck)
	} else {
		problems = append(problems, s.act(ctx, round))
	}
	return next, errors.Join(problems...)
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
