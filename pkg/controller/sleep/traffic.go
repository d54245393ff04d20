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
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// Resolvers are the names of the pods of the resolvers that are ready. Its zero
// value means that they are not known. Safe for concurrent use.
type Resolvers struct {
	names atomic.Pointer[[]string]
}

// Set replaces the names. They must not be modified afterwards.
func (r *Resolvers) Set(names []string) { r.names.Store(&names) }

func (r *Resolvers) get() (names []string, known bool) {
	if set := r.names.Load(); set != nil {
		return *set, true
	}
	return nil, false
}

// Traffic evaluates traffic triggers: by what resolvers have reported into the
// status of the ElastiService. Nobody has to be asked.
type Traffic struct {
	resolvers *Resolvers
	clock     clock.PassiveClock
}

var _ Evaluator = &Traffic{}

// NewTraffic returns an evaluator that expects reports of these resolvers.
func NewTraffic(resolvers *Resolvers, clock clock.PassiveClock) *Traffic {
	return &Traffic{resolvers: resolvers, clock: clock}
}

// Evaluate implements Evaluator.
func (t *Traffic) Evaluate(_ context.Context, subject Subject) (Result, error) {
	ready, known := t.resolvers.get()
	return judgeTraffic(subject.ElastiService, ready, known, t.clock.Now()), nil
}

// judgeTraffic decides by the reports in the status. For how long there was no
// request is not its business: the cooldown counts from the last one.
func judgeTraffic(elastiService *v1alpha1.ElastiService, ready []string, known bool, now time.Time) Result {
	status := &elastiService.Status
	staleness := activity.Staleness(cooldown(elastiService))
	switch {
	case elastiService.Spec.Proxy == nil || elastiService.Spec.Proxy.Policy != v1alpha1.ProxyAlways:
		return unknownBecause(v1alpha1.ReasonResolversNotInPath, "the resolvers do not see the traffic of an awake target: set spec.proxy.policy to Always")
	case hasOpen(elastiService, now):
		return Result{Active, v1alpha1.ReasonTraffic, "requests or connections are open"}
	case status.SleepRequestedTime != nil && lastRequest(elastiService).After(status.SleepRequestedTime.Time):
		return Result{Active, v1alpha1.ReasonTraffic, "a request came while the target was being put to sleep"}
	case status.Replicas == 0:
		// The resolvers have nothing to tell of a target that sleeps.
		return Result{Idle, v1alpha1.ReasonNoTraffic, "nothing is held"}
	case !known:
		return unknownBecause(v1alpha1.ReasonAwaitingReports, "it is not known yet which resolvers are ready")
	case len(ready) == 0:
		return unknownBecause(v1alpha1.ReasonNotReported, "no resolver is ready to tell whether there is traffic")
	}
	for _, name := range ready {
		if reported := activityOf(elastiService, name); reported != nil && isFresh(reported, staleness, now) {
			continue
		}
		if now.Sub(latest(timeOf(status.LastScaledUpTime), elastiService.CreationTimestamp.Time)) < staleness {
			return unknownBecause(v1alpha1.ReasonAwaitingReports, "the resolvers have just begun to report")
		}
		return unknownBecause(v1alpha1.ReasonNotReported, "resolver %s has not reported in time whether there is traffic", name)
	}
	return Result{Idle, v1alpha1.ReasonNoTraffic, "no request or connection is open"}
}

// isFresh tells whether a report can be believed still. The clock of another
// replica of the server, which received it, may be a little ahead.
func isFresh(reported *v1alpha1.ResolverActivity, staleness time.Duration, now time.Time) bool {
	return now.Sub(reported.ReportTime.Time).Abs() <= staleness
}

// hasOpen tells whether a resolver holds or forwards something. What one that
// does not report any more had open has ended with it, or is open elsewhere.
func hasOpen(elastiService *v1alpha1.ElastiService, now time.Time) bool {
	staleness := activity.Staleness(cooldown(elastiService))
	return slices.ContainsFunc(elastiService.Status.Activity, func(reported v1alpha1.ResolverActivity) bool {
		return reported.Open > 0 && isFresh(&reported, staleness, now)
	})
}

// lastRequest returns when a resolver last saw a request. Zero if none did.
func lastRequest(elastiService *v1alpha1.ElastiService) time.Time {
	var last time.Time
	for i := range elastiService.Status.Activity {
		if at := elastiService.Status.Activity[i].LastRequestTime; at != nil {
			last = latest(last, at.Time)
		}
	}
	return last
}

// trafficSeen returns when resolvers last saw traffic, or cannot have seen what
// there was because they had just been started. Zero if they never did.
func trafficSeen(elastiService *v1alpha1.ElastiService, now time.Time) time.Time {
	if hasOpen(elastiService, now) {
		return now
	}
	seen := lastRequest(elastiService)
	if !decidedByTraffic(elastiService) {
		return seen
	}
	staleness := activity.Staleness(cooldown(elastiService))
	for i := range elastiService.Status.Activity {
		if reported := &elastiService.Status.Activity[i]; isFresh(reported, staleness, now) {
			seen = latest(seen, reported.ObservedSince.Time)
		}
	}
	return seen
}

// trafficTurned tells whether reports changed in a way that leads to another
// verdict: the time of the next look cannot know that.
func trafficTurned(before, after *v1alpha1.ElastiService) bool {
	if !decidedByTraffic(after) {
		return false
	}
	if after.Status.SleepRequestedTime != nil && lastRequest(after).After(lastRequest(before)) {
		return true
	}
	staleness := activity.Staleness(cooldown(after))
	for i := range after.Status.Activity {
		reported := &after.Status.Activity[i]
		known := activityOf(before, reported.Resolver)
		if known == nil || (known.Open > 0) != (reported.Open > 0) || !isFresh(known, staleness, reported.ReportTime.Time) {
			return true
		}
	}
	return false
}

func decidedByTraffic(elastiService *v1alpha1.ElastiService) bool {
	return slices.ContainsFunc(elastiService.Spec.Triggers, func(trigger v1alpha1.ScaleTrigger) bool {
		return trigger.Type == triggers.TypeTraffic
	})
}

// activityOf returns what a resolver has reported, or nil.
func activityOf(elastiService *v1alpha1.ElastiService, resolver string) *v1alpha1.ResolverActivity {
	for i := range elastiService.Status.Activity {
		if reported := &elastiService.Status.Activity[i]; reported.Resolver == resolver {
			return reported
		}
	}
	return nil
}
