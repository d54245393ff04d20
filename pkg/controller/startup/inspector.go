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

package startup

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/fairqueue"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

const (
	// grace is how long a target may take to start before its pods are inspected.
	// Most are available by then, and cost no request.
	grace = 3 * time.Second
	// The pause between two inspections is a quarter of the time since the first
	// one, within these bounds: 2, 2, 2, 2, 2, 2.5, 3.1, 3.9 … 30 s.
	minPause = 2 * time.Second
	maxPause = 30 * time.Second
	// inspectionTimeout ends an inspection of which a request hangs.
	inspectionTimeout = 10 * time.Second
	// inspectionsPerSecond bounds the inspections of all namespaces together, among
	// which they are shared fairly.
	inspectionsPerSecond = 20
	workers              = 4
	// maxPods and eventsPerPage bound what a request returns, whatever a selector
	// matches.
	maxPods       = 20
	eventsPerPage = 100
	// maxEventPages bounds how many Events about one object are read. They come in
	// the order of their names, so the newest one may be on any page.
	maxEventPages = 10
	// noPodsAfter is how long a target may have no pods before that is a problem by
	// itself.
	noPodsAfter = 30 * time.Second
	// notReadyAfter is how long pods may take to become ready before that is a problem
	// by itself: as long as a Deployment waits for progress by default.
	notReadyAfter = 10 * time.Minute
)

// Scales reads the scales of targets.
type Scales interface {
	Get(ctx context.Context, target scaling.Target) (*autoscalingv1.Scale, error)
}

// Options configure an Inspector. All fields are required.
type Options struct {
	// Host reads pods and Events.
	Host kubernetes.Interface
	// Scales says which pods are those of a target.
	Scales Scales
	// Enqueue is called when the result for an ElastiService has changed.
	Enqueue func(types.NamespacedName)
	// Clock is the time.
	Clock clock.WithTicker
}

// Start is a target that is scaled up and has no ready pod.
type Start struct {
	// Target is the target, UID that of the object, which may not be known.
	Target scaling.Target
	UID    types.UID
	// Since is when it began to start.
	Since time.Time
	// Selector is that of the public Service, for a target whose scale has no
	// selector.
	Selector map[string]string
}

// subject is the start of the target of one ElastiService.
type subject struct {
	// Immutable.
	start Start
	begun time.Time

	// Used by the worker that has the key.

	// pods selects the pods of the target. Nil until that is known.
	pods labels.Selector
	// failed is true after an inspection failed.
	failed bool

	// Guarded by the mutex of the Inspector.

	problem   *Problem
	inspected bool
}

// Inspector finds out what keeps targets from starting. It lists the few pods of one
// target at a time: most starts end before a watch for each would pay off, and a
// single watch would cache all pods of the cluster. It is safe for concurrent use.
type Inspector struct {
	options Options
	queue   *fairqueue.WorkQueue[types.NamespacedName]
	limiter *rate.Limiter

	mu sync.Mutex
	// subjects has the ElastiServices whose targets start. Forget removes them.
	subjects map[types.NamespacedName]*subject
}

// NewInspector returns an Inspector that inspects nothing until it is run.
func NewInspector(options Options) *Inspector {
	return &Inspector{
		options: options,
		queue: fairqueue.NewWorkQueue(fairqueue.WorkQueueOptions[types.NamespacedName]{
			Clock: options.Clock, NamespaceOf: fairqueue.NamespaceOf, FirstRetry: minPause, LastRetry: maxPause,
		}),
		limiter:  rate.NewLimiter(inspectionsPerSecond, inspectionsPerSecond),
		subjects: map[types.NamespacedName]*subject{},
	}
}

// Observe returns what keeps the target of an ElastiService from starting, which may
// be nil, and whether it was inspected during this start. The target is inspected
// until Forget is called.
func (i *Inspector) Observe(key types.NamespacedName, start Start) (*Problem, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if known := i.subjects[key]; known != nil && known.start.UID == start.UID && known.start.Since.Equal(start.Since) {
		return known.problem, known.inspected
	}
	now := i.options.Clock.Now()
	i.subjects[key] = &subject{start: start, begun: now}
	i.queue.AddAfter(key, grace-now.Sub(start.Since))
	return nil, false
}

// Forget ends the inspections for an ElastiService.
func (i *Inspector) Forget(key types.NamespacedName) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.subjects, key)
}

// Run inspects targets until ctx ends. It returns when everything that it started
// has ended. An Inspector is run once.
func (i *Inspector) Run(ctx context.Context) {
	i.queue.Run(ctx, workers, func(ctx context.Context, key types.NamespacedName) {
		if i.await(ctx) {
			i.inspect(ctx, key)
		}
	})
}

// await waits until the rate limit allows an inspection. It returns false when ctx
// ends.
func (i *Inspector) await(ctx context.Context) bool {
	now := i.options.Clock.Now()
	delay := i.limiter.ReserveN(now, 1).DelayFrom(now)
	if delay <= 0 {
		return ctx.Err() == nil
	}
	timer := i.options.Clock.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

func (i *Inspector) inspect(ctx context.Context, key types.NamespacedName) {
	i.mu.Lock()
	inspected := i.subjects[key]
	i.mu.Unlock()
	if inspected == nil {
		return
	}
	limited, cancel := context.WithTimeout(ctx, inspectionTimeout)
	defer cancel()
	problem, err := i.problemOf(limited, inspected)
	if err != nil && !inspected.failed && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to inspect a target that does not start, will retry", "elastiService", key)
	}
	inspected.failed = err != nil

	i.mu.Lock()
	defer i.mu.Unlock()
	if i.subjects[key] != inspected {
		return
	}
	i.queue.AddAfter(key, pause(i.options.Clock.Since(inspected.begun)))
	if err != nil {
		// The previous result is kept.
		return
	}
	changed := !inspected.inspected || !equal(inspected.problem, problem)
	inspected.inspected, inspected.problem = true, problem
	if changed {
		i.options.Enqueue(key)
	}
}

// pause returns the time to the next inspection.
func pause(elapsed time.Duration) time.Duration { return min(max(elapsed/4, minPause), maxPause) }

func (i *Inspector) problemOf(ctx context.Context, inspected *subject) (*Problem, error) {
	start := &inspected.start
	elapsed := i.options.Clock.Since(start.Since)
	pods, err := i.podsOf(ctx, inspected)
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		problem, err := i.reported(ctx, start.Target.Namespace, start.UID, start.Since)
		if err == nil && problem == nil && elapsed >= noPodsAfter {
			problem = newProblem(v1alpha1.ReasonPodsNotCreated, "%s %q has no pods: see the Events about it", start.Target.Kind, start.Target.Name)
		}
		return problem, err
	}
	problem, creating := ofPods(pods)
	if creating != nil {
		if problem, err = i.reported(ctx, creating.Namespace, creating.UID, creating.CreationTimestamp.Time); err != nil {
			return nil, err
		}
	}
	if problem == nil && elapsed >= notReadyAfter {
		problem = notReady(pods)
	}
	return problem, nil
}

// podsOf returns pods of a target that have not ended. The request is not served
// from a cache of any age ("resourceVersion=0"), because then the server would
// ignore the limit.
func (i *Inspector) podsOf(ctx context.Context, inspected *subject) ([]corev1.Pod, error) {
	if inspected.pods == nil {
		selector, err := i.selectorOf(ctx, &inspected.start)
		if err != nil {
			return nil, err
		}
		inspected.pods = selector
	}
	if inspected.pods.Empty() {
		return nil, nil
	}
	running := fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))
	pods, err := i.options.Host.CoreV1().Pods(inspected.start.Target.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: inspected.pods.String(),
		FieldSelector: running.String(),
		Limit:         maxPods,
	})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of the target: %w", err)
	}
	return pods.Items, nil
}

// selectorOf returns the selector of the pods of a target. It is empty when that is
// not known.
func (i *Inspector) selectorOf(ctx context.Context, start *Start) (labels.Selector, error) {
	scale, err := i.options.Scales.Get(ctx, start.Target)
	if err != nil {
		return nil, fmt.Errorf("reading which pods the target has: %w", err)
	}
	if selector, err := labels.Parse(scale.Status.Selector); err == nil && !selector.Empty() {
		return selector, nil
	}
	return labels.SelectorFromSet(start.Selector), nil
}

// reported returns the problem that Events about an object report.
func (i *Inspector) reported(ctx context.Context, namespace string, uid types.UID, since time.Time) (*Problem, error) {
	if uid == "" {
		return nil, nil
	}
	var newest *eventsv1.Event
	options := metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("regarding.uid", string(uid)).String(),
		Limit:         eventsPerPage,
	}
	for range maxEventPages {
		page, err := i.options.Host.EventsV1().Events(namespace).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing the Events about the target: %w", err)
		}
		newest = newestEvent(newest, page.Items)
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	return ofEvent(newest, since), nil
}
