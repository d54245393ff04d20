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

// Package wake sends wake requests for a target to the API server while requests
// or connections are held for it.
//
// It does not know what is held, which its Demand hides. Begin with Waker.
package wake

import (
	"context"
	"errors"
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
	// callTimeout bounds one call. A call that takes this long was sent to a server
	// that is no longer running.
	callTimeout = 10 * time.Second
	// leftTimeout bounds the rest of a call once nothing is held any more. The call
	// is not canceled at once, because a server logs an error when a client
	// disconnects before the response.
	leftTimeout = 2 * time.Second
	// minimumInterval is the least time between two calls, also where clients
	// connect and disconnect in quick succession.
	minimumInterval = 200 * time.Millisecond
)

// A failed call is repeated after about 50 ms, 100 ms, 200 ms, … 5 s: a restart of
// the API server delays held traffic little, and during an outage a thousand
// services send 200 calls a second together.
var failureBackoff = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.3, Steps: 8, Cap: 5 * time.Second}

// A successful call is repeated after about 1 s, 2 s, 4 s, … 16 s while no pod can
// serve, because the target may have been scaled down again.
var repeatBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.3, Steps: 5, Cap: 16 * time.Second}

// errSuperseded cancels the calls that are still in progress after another call succeeded.
// It is not counted as a failure.
var errSuperseded = errors.New("another call has succeeded")

// Client sends wake requests. The generated client of ElastiServices implements
// it.
type Client interface {
	Wake(ctx context.Context, name string, request *v1alpha1.WakeRequest, options metav1.CreateOptions) (*v1alpha1.WakeRequest, error)
}

// Demand is the held traffic of a service.
type Demand interface {
	// NeedsPod reports whether a pod is needed and none can serve.
	NeedsPod() bool
	// Held returns how many requests and connections are held.
	Held() int
	// WakeSucceeded is called after each call that succeeded.
	WakeSucceeded()
}

// Observer is called with the duration and the error of each call, save for those that
// were canceled because another one had succeeded. It may be called concurrently, and for a
// short time after Run returned.
type Observer func(took time.Duration, err error)

// Options configure a Waker.
type Options struct {
	// Client is for the ElastiServices of the service's namespace.
	Client Client
	// Namespace and Name name the ElastiService.
	Namespace, Name string
	// Demand is the traffic that is held for it.
	Demand Demand
	// Observe is called after each call. Optional.
	Observe Observer
	// Calls counts the calls in progress. The owner of the wakers waits for it after
	// the last Run has returned: a call may outlast its Waker by leftTimeout.
	Calls *sync.WaitGroup
	// Tasks runs the calls, so that a panic fails one call only. Optional.
	Tasks *task.Runner
	// Beside decides when calls are made beside others of which there is no response yet,
	// for all wakers together. Optional: without it there are none.
	Beside *Beside
	// Clock defaults to the real one.
	Clock clock.WithTicker
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

// Run sends a wake request at once, and repeats it while a pod is needed, until ctx
// ends. A value of hurry makes it check the demand before the pause is over. When
// ctx ends it returns at once, and a call in progress ends by itself. Only one call
// of Run may be in progress.
func (w *Waker) Run(ctx context.Context, hurry <-chan struct{}) {
	failures, repeats := failureBackoff, repeatBackoff
	needed := false
	pause := max(0, minimumInterval-w.options.Clock.Since(w.last))
	for {
		if !w.sleep(ctx, pause, hurry, needed) {
			return
		}
		if !w.options.Demand.NeedsPod() {
			// The backoff starts again when a pod is needed next.
			failures, repeats, needed = failureBackoff, repeatBackoff, false
			pause = repeatBackoff.Duration
			continue
		}
		needed = true
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

// sleep waits until the pause is over and reports whether ctx is still valid. When
// no pod was needed before, a value of hurry ends the pause.
func (w *Waker) sleep(ctx context.Context, pause time.Duration, hurry <-chan struct{}, needed bool) bool {
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
			if !needed && w.options.Clock.Since(w.last) >= minimumInterval {
				return true
			}
		}
	}
}

// call sends a wake request, and again while there is no response, and waits for the first
// success or the end of ctx.
func (w *Waker) call(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	pending := w.options.Demand.Held()
	w.last = w.options.Clock.Now()
	result, err := w.firstSuccess(ctx, pending)
	if err != nil {
		return err
	}
	if result.err != nil {
		w.failed(ctx, result.err, pending)
		return result.err
	}
	w.options.Demand.WakeSucceeded()
	if w.failing {
		logger.Info("Wake requests succeed again", "pending", pending)
	}
	w.failing = false
	if result.response.Status.Scaled {
		logger.Info("Woke the target", "pending", pending, "replicas", result.response.Status.Replicas)
	}
	return nil
}

// failed logs the first of several failures.
func (w *Waker) failed(ctx context.Context, err error, pending int) {
	if !w.failing {
		klog.FromContext(ctx).Error(err, "Failed to wake the target, will retry while traffic is held", "pending", pending)
	}
	w.failing = true
}

// result is the result of a call.
type result struct {
	response *v1alpha1.WakeRequest
	err      error
}

// firstSuccess returns the result of the call that succeeds first, or of the last one that
// fails when none is in progress any more. Calls beside others begin for as long as there is
// no response and a pod is needed: an API server that responded to none gets the next one as soon as it is back.
// Those that are in progress after a success, and all of them after the end of ctx, continue
// for leftTimeout at most.
func (w *Waker) firstSuccess(ctx context.Context, pending int) (result, error) {
	calling, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	results, ended, cause := make(chan result), make(chan struct{}), context.Canceled
	defer func() {
		close(ended)
		time.AfterFunc(leftTimeout, func() { giveUp(cause) })
	}()
	begin := func() {
		w.begin(calling, pending, func(r result) {
			select {
			case results <- r:
			case <-ended:
			}
		})
	}
	begin()
	besideDue := w.options.Clock.NewTimer(w.besideDelay(1))
	defer besideDue.Stop()
	for inProgress := 1; ; {
		select {
		case last := <-results:
			inProgress--
			if last.err == nil {
				cause = errSuperseded
			}
			if last.err == nil || inProgress == 0 {
				return last, nil
			}
			w.failed(ctx, last.err, pending)
		case <-ctx.Done():
			return result{}, ctx.Err()
		case <-besideDue.C():
			if w.options.Beside != nil && w.options.Demand.NeedsPod() && w.options.Beside.accept(w.options.Namespace, w.options.Clock.Now()) {
				inProgress++
				begin()
			}
			besideDue.Reset(w.besideDelay(inProgress))
		}
	}
}

// besideDelay returns for how long there may be no response before a call is made beside
// those in progress.
func (w *Waker) besideDelay(inProgress int) time.Duration {
	if w.options.Beside == nil {
		return callTimeout
	}
	return w.options.Beside.delay(inProgress)
}

// begin starts a call. The call may outlive Run, and so uses no state of it.
func (w *Waker) begin(ctx context.Context, pending int, end func(result)) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	began := w.options.Clock.Now()
	w.options.Calls.Go(func() {
		defer cancel()
		var response *v1alpha1.WakeRequest
		err := w.options.Tasks.Try(func() (err error) {
			response, err = w.options.Client.Wake(ctx, w.options.Name, &v1alpha1.WakeRequest{
				ObjectMeta: metav1.ObjectMeta{Namespace: w.options.Namespace, Name: w.options.Name},
				Spec:       v1alpha1.WakeRequestSpec{Reason: "traffic is held", Pending: int32(pending)},
			}, metav1.CreateOptions{})
			took := w.options.Clock.Since(began)
			if err == nil && w.options.Beside != nil {
				w.options.Beside.succeeded(took)
			}
			if err == nil || !errors.Is(context.Cause(ctx), errSuperseded) {
				w.options.Observe(took, err)
			}
			return err
		})
		end(result{response, err})
	})
}

// next returns the next pause of a backoff, which stays at about the limit once the
// backoff has no more steps.
func next(backoff *wait.Backoff, limit time.Duration) time.Duration {
	if backoff.Steps > 0 {
		return backoff.Step()
	}
	return limit - time.Duration(rand.Int64N(int64(limit)/4))
}
