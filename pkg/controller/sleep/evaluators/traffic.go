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

package evaluators

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/reports"
)

// Resolvers are the names of the pods of the resolvers that are ready. Its zero
// value means that they are not known. It is safe for concurrent use.
type Resolvers struct {
	names atomic.Pointer[[]string]
}

// Set replaces the names. They must not be modified afterwards.
func (r *Resolvers) Set(names []string) { r.names.Store(&names) }

// IsReady reports whether a resolver is ready, or may be as that is not known.
func (r *Resolvers) IsReady(name string) bool {
	names, known := r.get()
	return !known || slices.Contains(names, name)
}

func (r *Resolvers) get() (names []string, known bool) {
	if set := r.names.Load(); set != nil {
		return *set, true
	}
	return nil, false
}

// Traffic evaluates triggers of the type traffic by what resolvers have
// reported into the status of the ElastiService. It sends no request. It is
// safe for concurrent use.
type Traffic struct {
	resolvers *Resolvers
	clock     clock.PassiveClock
}

var _ Evaluator = &Traffic{}

// NewTraffic returns an evaluator that expects reports of these resolvers.
func NewTraffic(resolvers *Resolvers, clock clock.PassiveClock) *Traffic {
	return &Traffic{resolvers: resolvers, clock: clock}
}

// Evaluate implements Evaluator. For how long there was no request does not
// matter here: the cooldown counts from the last one.
func (t *Traffic) Evaluate(_ context.Context, subject Subject) (Result, error) {
	ready, known := t.resolvers.get()
	result := evaluateReports(subject.ElastiService, ready, known, t.clock.Now())
	result.Note = shareSeen(subject.ElastiService, len(ready))
	return result, nil
}

// shareSeen returns which part of the new connections a number of resolvers see. It is
// empty while that is all of them, or not known. While pods are ready, they are
// endpoints of the Service beside the resolvers, and what balances its traffic
// chooses between them all.
func shareSeen(elastiService *v1alpha1.ElastiService, resolvers int) string {
	pods := int(elastiService.Status.ReadyReplicas)
	if elastiService.Status.Replicas == 0 || pods <= 0 || resolvers == 0 {
		return ""
	}
	return fmt.Sprintf("it sees about %d of %d new connections, those through a resolver; the others go straight to the pods", resolvers, resolvers+pods)
}

func evaluateReports(elastiService *v1alpha1.ElastiService, ready []string, known bool, now time.Time) Result {
	status := &elastiService.Status
	staleness := reports.Staleness(elastiService)
	switch {
	case elastiService.Spec.Proxy == nil || elastiService.Spec.Proxy.Policy != v1alpha1.ProxyAlways:
		return unknown(v1alpha1.ReasonResolversNotInPath, "the resolvers do not see the traffic of an awake target: set spec.proxy.policy to Always")
	case reports.HasOpen(elastiService, now):
		return Result{State: Active, Reason: v1alpha1.ReasonTraffic, Message: "requests or connections are open"}
	case status.SleepRequestedTime != nil && reports.LastRequest(elastiService).After(status.SleepRequestedTime.Time):
		return Result{State: Active, Reason: v1alpha1.ReasonTraffic, Message: "a request came while the target was being put to sleep"}
	case status.Replicas == 0:
		// Resolvers report nothing about a target that sleeps.
		return Result{State: Idle, Reason: v1alpha1.ReasonNoTraffic, Message: "nothing is held"}
	case !known:
		return unknown(v1alpha1.ReasonAwaitingReports, "it is not known yet which resolvers are ready")
	case len(ready) == 0:
		return unknown(v1alpha1.ReasonNotReported, "no resolver is ready to report whether there is traffic")
	}
	for _, name := range ready {
		if reported := reports.Find(elastiService, name); reported != nil && reports.IsFresh(reported, staleness, now) {
			continue
		}
		if now.Sub(awakeSince(elastiService)) < staleness {
			return unknown(v1alpha1.ReasonAwaitingReports, "the resolvers have just begun to report")
		}
		return unknown(v1alpha1.ReasonNotReported, "resolver %s has not reported in time whether there is traffic", name)
	}
	return Result{State: Idle, Reason: v1alpha1.ReasonNoTraffic, Message: "no request or connection is open"}
}

// awakeSince returns the time from which on resolvers report about a target.
func awakeSince(elastiService *v1alpha1.ElastiService) time.Time {
	since := elastiService.CreationTimestamp.Time
	if woken := elastiService.Status.LastScaledUpTime; woken != nil && woken.After(since) {
		since = woken.Time
	}
	return since
}
