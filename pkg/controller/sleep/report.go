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
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
)

const (
	// activityRefresh is how old the reported activity of a target that is used may
	// become. Writing it with each sync would be a write per ElastiService and
	// interval.
	activityRefresh = 15 * time.Minute
	// activityDelay is the part of the cooldown, as a divisor, after which a target
	// that became idle is reported as such, so that a target which is used now and
	// then is not written each time.
	activityDelay = 4
)

// report writes into the status of a member what has changed.
func (s *Scheduler) report(ctx context.Context, round *round, i int) error {
	m := &round.members[i]
	if m.deleting() {
		return nil
	}
	report, changed := reportOf(round, i)
	if !changed {
		return nil
	}
	if err := s.options.Reporter.Report(ctx, m.elastiService(), report); err != nil {
		return fmt.Errorf("ElastiService %s: %w", m.key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.subject.reported = round.observed
	return nil
}

// reportOf returns the report about a member, and whether it differs from the
// status.
func reportOf(round *round, i int) (Report, bool) {
	m := &round.members[i]
	elastiService, reported := m.elastiService(), &m.elastiService().Status
	before := Report{
		LastActivity:    reported.LastActivityTime,
		TriggersHealthy: meta.FindStatusCondition(reported.Conditions, v1alpha1.ConditionTriggersHealthy),
		ScalingConflict: meta.FindStatusCondition(reported.Conditions, v1alpha1.ConditionScalingConflict),
		DryRun:          meta.FindStatusCondition(reported.Conditions, v1alpha1.ConditionDryRun),
		Sleeping:        meta.FindStatusCondition(reported.Conditions, v1alpha1.ConditionSleeping),
		SharedWith:      reported.TargetSharedWith,
		TargetShared:    meta.FindStatusCondition(reported.Conditions, v1alpha1.ConditionTargetShared),
		LastWake:        reported.LastWake,
	}
	after := before
	after.LastWake = round.lastWake
	after.Sleeping = pendingSleeping(m, round.observed)
	after.SharedWith = round.sharedWith(i)
	after.TargetShared = computeTargetShared(elastiService, after.SharedWith, round.observed)
	if m.decided {
		reportDecision(m, &after)
		after.Sleeping = computeSleeping(round, i)
	}
	return after, !equality.Semantic.DeepEqual(before, after)
}

// reportDecision adds to a report what a decision about a member was based on. The
// triggers may not have been evaluated.
func reportDecision(m *member, after *Report) {
	elastiService := m.elastiService()
	if activity := latest(m.decision.History.LastActive, m.observation.LastWake); activityChanged(activity, m.observation, m.decision) {
		after.LastActivity = ptr.To(metav1.NewTime(activity).Rfc3339Copy())
	}
	switch {
	case len(elastiService.Spec.Triggers) == 0:
		after.TriggersHealthy = nil
	case len(m.observation.Triggers) > 0:
		after.TriggersHealthy = computeTriggersHealthy(elastiService, m.observation)
	}
	after.ScalingConflict = computeScalingConflict(elastiService, m.observation)
	after.DryRun = nil
	if m.dryRun {
		after.DryRun = computeDryRun(elastiService, m.observation, m.decision)
	}
}

// activityChanged reports whether a time of activity is worth a write.
func activityChanged(activity time.Time, observation Observation, decision Decision) bool {
	newer := activity.Sub(observation.LastActivity)
	switch {
	case activity.IsZero() || newer < time.Second:
		return false
	case observation.LastActivity.IsZero() || newer >= activityRefresh:
		return true
	default:
		idleSince := decision.History.IdleSince
		return !idleSince.IsZero() && observation.Now.Sub(idleSince) >= observation.Cooldown/activityDelay
	}
}

// computeTriggersHealthy computes TriggersHealthy.
func computeTriggersHealthy(elastiService *v1alpha1.ElastiService, observation Observation) *metav1.Condition {
	condition := metav1.Condition{
		Type:    v1alpha1.ConditionTriggersHealthy,
		Status:  metav1.ConditionTrue,
		Reason:  v1alpha1.ReasonTriggersAnswer,
		Message: "every trigger reports whether the target is idle",
	}
	for i := range observation.Triggers {
		result := &observation.Triggers[i]
		if result.State == evaluators.Unknown && result.Reason == v1alpha1.ReasonAwaitingReports {
			return meta.FindStatusCondition(elastiService.Status.Conditions, v1alpha1.ConditionTriggersHealthy)
		}
		if result.State == evaluators.Unknown {
			condition.Status, condition.Reason = metav1.ConditionFalse, result.Reason
			condition.Message = fmt.Sprintf("triggers[%d] (%s): %s", i, elastiService.Spec.Triggers[i].Type, result.Message)
			break
		}
		if result.Note != "" {
			condition.Message += fmt.Sprintf("; triggers[%d] (%s): %s", i, elastiService.Spec.Triggers[i].Type, result.Note)
		}
	}
	before := meta.FindStatusCondition(elastiService.Status.Conditions, v1alpha1.ConditionTriggersHealthy)
	return transition(elastiService, before, observation.Now, condition)
}

// computeDryRun computes DryRun for an ElastiService whose decisions are not
// carried out.
func computeDryRun(elastiService *v1alpha1.ElastiService, observation Observation, decision Decision) *metav1.Condition {
	reason := v1alpha1.ReasonNoAction
	switch decision.Action {
	case ActionSleep:
		reason = v1alpha1.ReasonWouldSleep
	case ActionWake:
		reason = v1alpha1.ReasonWouldWake
	}
	before := meta.FindStatusCondition(elastiService.Status.Conditions, v1alpha1.ConditionDryRun)
	return transition(elastiService, before, observation.Now, metav1.Condition{
		Type:    v1alpha1.ConditionDryRun,
		Status:  metav1.ConditionTrue,
		Reason:  reason,
		Message: decision.Message,
	})
}
