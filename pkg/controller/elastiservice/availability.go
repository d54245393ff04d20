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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/startup"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
)

// reconcileAvailability is the phase availability. It finds out whether a pod of
// the target is ready, and what keeps the target from starting when none is.
func (c *Controller) reconcileAvailability(_ context.Context, p *pass) {
	before := findCondition(p.elastiService, v1alpha1.ConditionTargetAvailable)
	facts := availabilityFacts{ref: p.elastiService.Spec.ScaleTargetRef, observation: p.target, ready: p.readyReplicas(), before: before}
	switch {
	case p.target.Pending:
	case p.target.Scale == nil, p.target.AtZero(), facts.ready > 0:
		p.state.endStart()
		c.inspector.Forget(p.key())
	default:
		since := p.state.recordStart(startTime(p.elastiService, before, c.clock.Now()))
		facts.problem, facts.inspected = c.whatKeepsFromStarting(p, since)
	}
	p.availability = computeTargetAvailableCondition(facts)
}

// whatKeepsFromStarting returns what keeps the target from starting, which may be
// nil, and whether that is known.
func (c *Controller) whatKeepsFromStarting(p *pass, since time.Time) (problem *startup.Problem, known bool) {
	if creation := p.target.Object.CreationProblem; creation != nil && p.target.Scale.Existing == 0 {
		return creation, true
	}
	start := startup.Start{Target: target.Of(p.elastiService), UID: p.target.Object.UID, Since: since}
	if p.service != nil {
		start.Selector = p.service.Spec.Selector
	}
	return c.inspector.Observe(p.key(), start)
}

// readyReplicas returns the number of ready pods of the target.
func (o *observed) readyReplicas() int32 {
	switch scale := o.target.Scale; {
	case scale == nil:
		return 0
	case scale.Ready >= 0:
		return scale.Ready
	default:
		return int32(o.readyPods)
	}
}

// startTime returns when a target began to start that is observed to do so for
// the first time. The status reports the time before this process.
func startTime(elastiService *v1alpha1.ElastiService, before *metav1.Condition, now time.Time) time.Time {
	if before == nil || before.Status != metav1.ConditionFalse || before.Reason == v1alpha1.ReasonAsleep {
		return now
	}
	since := before.LastTransitionTime.Time
	if woken := elastiService.Status.LastScaledUpTime; woken != nil && woken.After(since) {
		since = woken.Time
	}
	if since.After(now) {
		return now
	}
	return since
}

// availabilityFacts are what TargetAvailable follows from.
type availabilityFacts struct {
	ref         v1alpha1.ScaleTargetRef
	observation target.Observation
	// ready is the number of ready pods.
	ready int32
	// problem keeps the target from starting, if it is known whether there is one.
	problem   *startup.Problem
	inspected bool
	// before is the condition as it is reported, or nil.
	before *metav1.Condition
}

// computeTargetAvailableCondition computes TargetAvailable. It is nil without a
// target. While the target is not known, the condition stays as it is, and so does
// a problem until the target was inspected.
func computeTargetAvailableCondition(facts availabilityFacts) *condition {
	ref, before := facts.ref, facts.before
	var computed condition
	switch observed := facts.observation; {
	case observed.Pending && before != nil:
		computed = condition{before.Status, before.Reason, before.Message}
	case observed.Scale == nil:
		return nil
	case observed.AtZero():
		computed = conditionFalse(v1alpha1.ReasonAsleep, "%s %q is scaled to zero", ref.Kind, ref.Name)
	case facts.ready > 0:
		computed = conditionTrue(v1alpha1.ReasonPodReady, "a pod of %s %q is ready", ref.Kind, ref.Name)
	case facts.problem != nil:
		computed = conditionFalse(facts.problem.Reason, "%s", facts.problem.Message)
	case !facts.inspected && isProblem(before):
		computed = condition{before.Status, before.Reason, before.Message}
	default:
		computed = conditionFalse(v1alpha1.ReasonStarting, "no pod of %s %q is ready yet", ref.Kind, ref.Name)
	}
	return &computed
}

// isProblem reports whether TargetAvailable, which may be nil, reports what keeps
// the target from starting.
func isProblem(available *metav1.Condition) bool {
	return available != nil && available.Status == metav1.ConditionFalse && v1alpha1.IsTargetProblem(available.Reason)
}

// reportAvailability records an Event when something begins to keep the target
// from starting, and when it has started after all.
func (c *Controller) reportAvailability(elastiService *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) {
	before := findCondition(elastiService, v1alpha1.ConditionTargetAvailable)
	after := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionTargetAvailable)
	ref, key := elastiService.Spec.ScaleTargetRef, resources.KeyOf(elastiService)
	switch {
	case isProblem(after):
		c.failedStarts.add(key, c.isWatched)
		if !isProblem(before) || before.Reason != after.Reason {
			c.event(elastiService, corev1.EventTypeWarning, after.Reason, actionWake, "%s %q does not start: %s", ref.Kind, ref.Name, after.Message)
		}
	case after != nil && after.Status == metav1.ConditionTrue:
		// What kept it from starting may be over for a while before a pod is ready.
		if c.failedStarts.remove(key) || isProblem(before) {
			c.event(elastiService, corev1.EventTypeNormal, after.Reason, actionWake, "%s", after.Message)
		}
	case after == nil || after.Reason == v1alpha1.ReasonAsleep:
		c.failedStarts.remove(key)
	}
}

// isWatched reports whether the watch has an ElastiService.
func (c *Controller) isWatched(key types.NamespacedName) bool {
	_, ok := c.elastiServices.in(key.Namespace).Get(key.Namespace, key.Name)
	return ok
}

// failedStarts are the ElastiServices whose targets are starting and for which an Event has
// reported what keeps, or kept, them from it. It is safe for concurrent use.
type failedStarts struct {
	mu   sync.Mutex
	keys sets.Set[types.NamespacedName]
}

func newFailedStarts() *failedStarts {
	return &failedStarts{keys: sets.New[types.NamespacedName]()}
}

// add adds an ElastiService if it exists: remove is called when it is deleted.
func (f *failedStarts) add(key types.NamespacedName, exists func(types.NamespacedName) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if exists(key) {
		f.keys.Insert(key)
	}
}

// remove removes an ElastiService, and reports whether it was there.
func (f *failedStarts) remove(key types.NamespacedName) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := f.keys.Has(key)
	f.keys.Delete(key)
	return found
}
