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

// Package wake asks the API server to wake a target for as long as something
// is held for it.
package wake

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

const (
	// callTimeout bounds one call. A wake is answered in milliseconds; a call
	// that takes this long has met a server that is gone.
	callTimeout = 10 * time.Second
	// leftTimeout bounds what remains of a call once nothing is held any more.
	// It is let finish: a server takes a caller that hangs up for one that it
	// kept waiting too long, and logs an error.
	leftTimeout = 2 * time.Second
	// minimumInterval keeps clients that come and go from making a call each.
	minimumInterval = 200 * time.Millisecond
)

// A failed call is repeated after about 50 ms, 100 ms, 200 ms, … 5 s: a
// restart of the API server costs the held traffic little, and a thousand
// services that are held through an outage ask 200 times a second together.
var failureBackoff = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.3, Steps: 8, Cap: 5 * time.Second}

// A call that was answered is repeated after about 1 s, 2 s, 4 s, … 16 s while
// no pod can answer: something may have put the target to sleep again.
var repeatBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.3, Steps: 5, Cap: 16 * time.Second}

// Client is the one call that a Waker makes; the generated client of
// ElastiServices has it.
type Client interface {
	Wake(ctx context.Context, name string, request *v1alpha1.WakeRequest, options metav1.CreateOptions) (*v1alpha1.WakeRequest, error)
}

// Demand is what is held, and is told what came of it.
type Demand interface {
	// Wanting reports whether something needs a pod and there is none.
	Wanting() bool
	// Held returns how many requests and connections are held.
	Held() int
	// WakeAnswered is called after each call that succeeded.
	WakeAnswered()
}

// Observer is told of each call: how long it took, and how it ended. It may be
// called for a short time after the end of Run, and concurrently.
type Observer func(took time.Duration, err error)

// Options are what a Waker is made of.
type Options struct {
	// Client reaches the ElastiServices of the service's namespace.
	Client Client
	// Namespace and Name name the ElastiService.
	Namespace, Name string
	// Demand is what is held for it.
	Demand Demand
	// Observe is told of each call. Optional.
	Observe Observer
	// Calls counts the calls under way. Who runs wakers waits for it after the
	// last one has ended: a call may outlast its Waker by two seconds.
	Calls *sync.WaitGroup
	// Tasks runs the calls, so that a panic of one fails that one only. Optional.
	Tasks *task.Runner
	// Clock defaults to the real one.
	Clock clock.Clock
}

// Waker wakes the target of one ElastiService.
type Waker struct {
	options Options

	// Owned by Run.
	last    time.Time
	failing bool
}

// New returns a Waker.
func New(options Options) *Waker {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Observe == nil {
		options.Observe = func(time.Duration, error) {}
	}
	return &Waker{options: options}
}

// Run calls wake at once, and again for as long as ctx lasts and something
// wants a pod; hurry makes it look again before its time. When ctx ends it
// returns at once, and leaves a call that is under way to end by itself. It
// must not run twice at a time.
func (w *Waker) Run(ctx context.Context, hurry <-chan struct{}) {
	failures, repeats := failureBackoff, repeatBackoff
	wanted := false
	pause := max(0, minimumInterval-w.options.Clock.Since(w.last))
	for {
		if !w.sleep(ctx, pause, hurry, wanted) {
			return
		}
		if !w.options.Demand.Wanting() {
			// The next moment at which a pod is wanted starts afresh.
			failures, repeats, wanted = failureBackoff, repeatBackoff, false
			pause = repeatBackoff.Duration
			continue
		}
		wanted = true
		if err := w.call(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			pause = next(&failures, failureBackoff.Cap)
			continue
		}
		failures = failureBackoff
		pause = next(&repeats, repeatBackoff.Cap)
	}
}

// sleep waits for the pause to pass and reports whether ctx still lasts. While
// nothing was wanted it wakes early when something may be.
func (w *Waker) sleep(ctx context.Context, pause time.Duration, hurry <-chan struct{}, wanted bool) bool {
	if ctx.Err() != nil {
		return false
	}
	if pause == 0 {
		return true
	}
	timer := w.options.Clock.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C():
			return true
		case <-hurry:
			if !wanted && w.options.Clock.Since(w.last) >= minimumInterval {
				return true
			}
		}
	}
}

// call makes one call and waits for its end, or for the end of ctx. In that
// case the call goes on for a short time without being waited for.
func (w *Waker) call(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	pending := w.options.Demand.Held()
	w.last = w.options.Clock.Now()
	ended, giveUp := w.begin(context.WithoutCancel(ctx), w.last, pending)
	var result result
	select {
	case result = <-ended:
	case <-ctx.Done():
		time.AfterFunc(leftTimeout, giveUp)
		return ctx.Err()
	}
	if result.err != nil {
		if !w.failing {
			logger.Error(result.err, "Cannot wake the target, will keep trying while traffic is held", "pending", pending)
		}
		w.failing = true
		return result.err
	}
	w.options.Demand.WakeAnswered()
	if w.failing {
		logger.Info("The target can be woken again", "pending", pending)
	}
	w.failing = false
	if result.answer.Status.Scaled {
		logger.Info("Woke the target", "pending", pending, "replicas", result.answer.Status.Replicas)
	}
	return nil
}

// result is how a call ended.
type result struct {
	answer *v1alpha1.WakeRequest
	err    error
}

// begin begins a call. It may outlive Run, and so uses nothing that Run owns.
func (w *Waker) begin(ctx context.Context, began time.Time, pending int) (ended <-chan result, giveUp context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	results := make(chan result, 1)
	w.options.Calls.Go(func() {
		defer cancel()
		var answer *v1alpha1.WakeRequest
		err := w.options.Tasks.Try(func() (err error) {
			answer, err = w.options.Client.Wake(ctx, w.options.Name, &v1alpha1.WakeRequest{
				ObjectMeta: metav1.ObjectMeta{Namespace: w.options.Namespace, Name: w.options.Name},
				Spec:       v1alpha1.WakeRequestSpec{Reason: "traffic is held", Pending: int32(pending)},
			}, metav1.CreateOptions{})
			w.options.Observe(w.options.Clock.Since(began), err)
			return err
		})
		results <- result{answer, err}
	})
	return results, cancel
}

// next returns the next pause of a backoff, and keeps to about the cap once it
// has no more steps.
func next(backoff *wait.Backoff, limit time.Duration) time.Duration {
	if backoff.Steps > 0 {
		return backoff.Step()
	}
	return limit - time.Duration(rand.Int64N(int64(limit)/4))
}
