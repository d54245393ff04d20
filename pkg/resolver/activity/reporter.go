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
// whether they are in use. The controller decides by these reports when targets
// sleep.
//
// It does not know what the controller decides. Begin with Tracker.
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
	// workers is how many reports are sent at a time.
	workers = 16
	// callTimeout bounds one report.
	callTimeout = 5 * time.Second
	// firstDelay delays the report of the first request after an idle time, so that
	// the wake which that request may need comes first. It is much shorter than the
	// drain of a scale-down.
	firstDelay = 200 * time.Millisecond
	// A failed report is repeated after about 250 ms, 500 ms, … 8 s, and at least
	// once in each interval.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 8 * time.Second
	// jitter spreads the reports of services that began together.
	jitter = 0.1
	// maxObserved is the longest time that a report may contain.
	maxObserved = 365 * 24 * time.Hour
)

// Client sends the reports.
type Client interface {
	ReportActivity(ctx context.Context, namespace, name string, report *v1alpha1.ActivityReport) error
}

// Options configure a Reporter.
type Options struct {
	// Client is for the ElastiServices.
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

// New returns a Reporter. Run sends its reports.
func New(options Options) *Reporter {
	return &Reporter{
		options: options,
		queue:   workqueue.NewTypedDelayingQueue[*Tracker](),
	}
}

// Track returns a tracker of the traffic of an ElastiService. Its Apply sets what is
// reported, and its Close ends the reports.
func (r *Reporter) Track(namespace, name string) *Tracker {
	t := NewTracker()
	t.namespace, t.name, t.reporter = namespace, name, r
	return t
}

// Run sends reports until ctx ends, and returns when none is in progress. It must
// be called once.
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
					r.sync(ctx, t)
				}
				r.queue.Done(t)
			}
		})
	}
	<-ctx.Done()
}

// now enqueues a tracker at once, soon after firstDelay.
func (r *Reporter) now(t *Tracker)  { r.queue.Add(t) }
func (r *Reporter) soon(t *Tracker) { r.queue.AddAfter(t, wait.Jitter(firstDelay, jitter)) }

// sync reports the traffic of a service, if there is something to report, and
// enqueues the tracker for the next sync.
func (r *Reporter) sync(ctx context.Context, t *Tracker) {
	policy := t.policy.Load()
	if t.closed.Load() || !policy.Report {
		return
	}
	state := t.state()
	changed := t.changed(state)
	if !changed && !policy.KeepAlive {
		if !t.arm() {
			r.now(t)
		}
		return
	}
	if err := r.report(ctx, t, state); err != nil {
		r.failed(ctx, t, policy, err)
		return
	}
	if t.reported.failures > 0 {
		klog.FromContext(ctx).Info("Reports of the activity of an ElastiService succeed again", "elastiService", klog.KRef(t.namespace, t.name))
	}
	t.reported = reported{open: state.open > 0, last: state.last}
	if !changed {
		// There was no traffic for an interval.
		t.arm()
	}
	r.queue.AddAfter(t, wait.Jitter(policy.Interval, jitter))
}

func (r *Reporter) failed(ctx context.Context, t *Tracker, policy *Policy, err error) {
	if ctx.Err() != nil {
		return
	}
	if t.reported.failures == 0 {
		klog.FromContext(ctx).Error(err, "Failed to report the activity of an ElastiService, will retry", "elastiService", klog.KRef(t.namespace, t.name))
	}
	pause := min(lastRetry, policy.Interval)
	// The last pause is 2^5 times the first.
	if t.reported.failures < 5 {
		pause = min(pause, firstRetry<<t.reported.failures)
	}
	t.reported.failures++
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
