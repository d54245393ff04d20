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

// Package activity reports to the API server when services were last used, and
// whether they are used now, for those who decide by it when targets sleep.
package activity

import (
	"context"
	"math"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const (
	// workers is how many reports are under way at a time.
	workers = 16
	// callTimeout bounds one report.
	callTimeout = 5 * time.Second
	// firstDelay is how long the first request after a time without is not told:
	// a target that it wakes is woken first. It is short against the time that
	// passes until a target that is put to sleep is scaled.
	firstDelay = 200 * time.Millisecond
	// A report that failed is repeated after about 250 ms, 500 ms, … 8 s, but at
	// least as often as reports are due.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 8 * time.Second
	// jitter spreads the reports of services that began together.
	jitter = 0.1
	// maxObserved is the longest time that a report may tell.
	maxObserved = 365 * 24 * time.Hour
)

// Client is the one call that a Reporter makes.
type Client interface {
	ReportActivity(ctx context.Context, namespace, name string, report *v1alpha1.ActivityReport) error
}

// Options are what a Reporter is made of.
type Options struct {
	// Client reaches the ElastiServices.
	Client Client
	// Resolver is the name of the resolver's pod.
	Resolver string
}

// Reporter reports the traffic of all services of a resolver. It is safe for
// concurrent use.
type Reporter struct {
	options Options
	queue   workqueue.TypedDelayingInterface[*Tracker]
}

// New returns a Reporter, which reports while Run runs.
func New(options Options) *Reporter {
	return &Reporter{
		options: options,
		queue:   workqueue.NewTypedDelayingQueue[*Tracker](),
	}
}

// Track begins to count the traffic of an ElastiService. Apply says what is
// reported of it, and Close ends that.
func (r *Reporter) Track(namespace, name string) *Tracker {
	t := NewTracker()
	t.namespace, t.name, t.reporter = namespace, name, r
	return t
}

// Run reports until ctx ends, and returns when no report is under way any more.
// It must not run twice.
func (r *Reporter) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	defer r.queue.ShutDown()
	for range workers {
		running.Go(func() {
			for {
				t, shutdown := r.queue.Get()
				if shutdown {
					return
				}
				if ctx.Err() == nil {
					r.look(ctx, t)
				}
				r.queue.Done(t)
			}
		})
	}
	<-ctx.Done()
}

// now has a tracker looked at at once, soon a moment later.
func (r *Reporter) now(t *Tracker)  { r.queue.Add(t) }
func (r *Reporter) soon(t *Tracker) { r.queue.AddAfter(t, wait.Jitter(firstDelay, jitter)) }

// look reports the traffic of a service, if there is something to report, and
// sets the time of the next look.
func (r *Reporter) look(ctx context.Context, t *Tracker) {
	policy := t.policy.Load()
	if t.closed.Load() || !policy.Report {
		return
	}
	state := t.state()
	news := t.isNews(state)
	if !news && !policy.KeepAlive {
		if !t.arm() {
			r.now(t)
		}
		return
	}
	if err := r.report(ctx, t, state); err != nil {
		r.failed(ctx, t, policy, err)
		return
	}
	if t.told.failures > 0 {
		klog.FromContext(ctx).Info("The activity of an ElastiService can be reported again", "elastiservice", klog.KRef(t.namespace, t.name))
	}
	t.told = told{open: state.open > 0, last: state.last}
	if !news {
		// There was nothing for an interval.
		t.arm()
	}
	r.queue.AddAfter(t, wait.Jitter(policy.Interval, jitter))
}

func (r *Reporter) failed(ctx context.Context, t *Tracker, policy *Policy, err error) {
	if ctx.Err() != nil {
		return
	}
	if t.told.failures == 0 {
		klog.FromContext(ctx).Error(err, "Cannot report the activity of an ElastiService, will keep trying", "elastiservice", klog.KRef(t.namespace, t.name))
	}
	pause := min(lastRetry, policy.Interval)
	// 2^5 times the first pause is the last.
	if t.told.failures < 5 {
		pause = min(pause, firstRetry<<t.told.failures)
	}
	t.told.failures++
	r.queue.AddAfter(t, wait.Jitter(pause, 0.5))
}

func (r *Reporter) report(ctx context.Context, t *Tracker, state state) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	elapsed := time.Since(t.since)
	report := &v1alpha1.ActivityReport{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: t.name},
		Spec: v1alpha1.ActivityReportSpec{
			Resolver:             r.options.Resolver,
			Open:                 int32(min(state.open, math.MaxInt32)),
			ObservedMilliseconds: min(elapsed, maxObserved).Milliseconds(),
		},
	}
	if age := elapsed - time.Duration(state.last); state.last != never && age <= maxObserved {
		report.Spec.LastRequestAgeMilliseconds = ptr.To(age.Milliseconds())
	}
	return r.options.Client.ReportActivity(ctx, t.namespace, t.name, report)
}
