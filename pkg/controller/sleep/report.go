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
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// ConditionTriggersHealthy is the type of the condition that is true when every
// trigger tells whether the target is idle.
const ConditionTriggersHealthy = "TriggersHealthy"

// ReasonTriggersAnswer is the reason of ConditionTriggersHealthy when it is
// true. Otherwise it is the reason of the first trigger that is unknown.
const ReasonTriggersAnswer = "TriggersAnswer"

// ConditionDryRun is the type of the condition that is there, and true, while
// decisions are not carried out. Its reason is EventWouldSleep, EventWouldWake
// or ReasonNoAction, its message the decision.
const ConditionDryRun = "DryRun"

// ReasonNoAction means that the target would be left as it is.
const ReasonNoAction = "NoAction"

const (
	// activityRefresh is how old the reported activity of a target that is
	// used may get: a write for each look would be one each interval for
	// every ElastiService.
	activityRefresh = 15 * time.Minute
	// activityDelay is the part of the cooldown after which a target that
	// turned idle is reported to be, so that one which is used now and then
	// is not written each time.
	activityDelay = 4
)

// reportOf returns what is to be reported after a decision, and whether that
// differs from what is reported already. Results are nil when the triggers were
// not looked at.
func reportOf(elastiService *v1alpha1.ElastiService, observation Observation, decision Decision, dryRun bool) (Report, bool) {
	reported := &elastiService.Status
	before := Report{
		LastActivity:    reported.LastActivityTime,
		TriggersHealthy: meta.FindStatusCondition(reported.Conditions, ConditionTriggersHealthy),
		ScalingConflict: meta.FindStatusCondition(reported.Conditions, ConditionScalingConflict),
		DryRun:          meta.FindStatusCondition(reported.Conditions, ConditionDryRun),
	}
	after := before
	if activity := latest(decision.History.LastActive, observation.LastWake); activityIsNews(activity, observation, decision) {
		after.LastActivity = ptr.To(metav1.NewTime(activity).Rfc3339Copy())
	}
	switch {
	case len(elastiService.Spec.Triggers) == 0:
		after.TriggersHealthy = nil
	case len(observation.Triggers) > 0:
		after.TriggersHealthy = judgeTriggers(elastiService, observation)
	}
	after.ScalingConflict = judgeConflict(elastiService, observation)
	after.DryRun = nil
	if dryRun {
		after.DryRun = judgeDryRun(elastiService, observation, decision)
	}
	return after, !equality.Semantic.DeepEqual(before, after)
}

// activityIsNews tells whether a time of activity is worth a write.
func activityIsNews(activity time.Time, observation Observation, decision Decision) bool {
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

// judgeTriggers decides TriggersHealthy.
func judgeTriggers(elastiService *v1alpha1.ElastiService, observation Observation) *metav1.Condition {
	condition := metav1.Condition{
		Type:    ConditionTriggersHealthy,
		Status:  metav1.ConditionTrue,
		Reason:  ReasonTriggersAnswer,
		Message: "every trigger tells whether the target is idle",
	}
	for i := range observation.Triggers {
		result := &observation.Triggers[i]
		if result.Verdict == Unknown && result.Reason == ReasonAwaitingReports {
			return meta.FindStatusCondition(elastiService.Status.Conditions, ConditionTriggersHealthy)
		}
		if result.Verdict == Unknown {
			condition.Status, condition.Reason = metav1.ConditionFalse, result.Reason
			condition.Message = fmt.Sprintf("triggers[%d] (%s): %s", i, elastiService.Spec.Triggers[i].Type, result.Message)
			break
		}
	}
	before := meta.FindStatusCondition(elastiService.Status.Conditions, ConditionTriggersHealthy)
	return transition(elastiService, before, observation.Now, condition)
}

// judgeDryRun decides DryRun for an ElastiService whose decisions are not
// carried out.
func judgeDryRun(elastiService *v1alpha1.ElastiService, observation Observation, decision Decision) *metav1.Condition {
	reason := map[Action]string{ActionNone: ReasonNoAction, ActionSleep: EventWouldSleep, ActionWake: EventWouldWake}[decision.Action]
	before := meta.FindStatusCondition(elastiService.Status.Conditions, ConditionDryRun)
	return transition(elastiService, before, observation.Now, metav1.Condition{
		Type:    ConditionDryRun,
		Status:  metav1.ConditionTrue,
		Reason:  reason,
		Message: decision.Message,
	})
}
