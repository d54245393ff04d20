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
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const (
	// maxSharedWith is how many names status.targetSharedWith has at most.
	maxSharedWith = 64
	// messageDelay is how long the message of Sleeping stays when nothing but the
	// message would change: that may be so at each sync.
	messageDelay = time.Minute
)

// computeSleeping computes Sleeping of a member: whether its target sleeps, and why
// not otherwise.
func computeSleeping(round *round, i int) *metav1.Condition {
	m := &round.members[i]
	before := meta.FindStatusCondition(m.elastiService().Status.Conditions, v1alpha1.ConditionSleeping)
	after := round.sleepingOf(i)
	woken := lastWoken(round.lastWake)
	after.Message += woken
	if before != nil && before.Status == after.Status && strings.HasSuffix(before.Message, woken) && !sleepingChanged(m, before, &after) {
		return before
	}
	return transition(m.elastiService(), before, round.observed, after)
}

// sleepingOf returns the condition Sleeping of a member according to its last decision.
func (r *round) sleepingOf(i int) metav1.Condition {
	m := &r.members[i]
	condition := metav1.Condition{
		Type:    v1alpha1.ConditionSleeping,
		Status:  metav1.ConditionFalse,
		Reason:  m.decision.Reason,
		Message: m.decision.Message,
	}
	conflict := meta.FindStatusCondition(m.elastiService().Status.Conditions, v1alpha1.ConditionConflict)
	switch keeper := r.keeper(i); {
	case r.votes[i].Abstains && conflict != nil:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionUnknown, v1alpha1.ReasonServiceTaken, conflict.Message
		return condition
	case !m.observation.ReplicasKnown:
		condition.Status = metav1.ConditionUnknown
		return condition
	case m.observation.Replicas == 0:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, v1alpha1.ReasonAsleep, "the target sleeps"
		return condition
	case m.dryRun && m.decision.Action == ActionSleep:
		condition.Reason, condition.Message = v1alpha1.ReasonDryRun, "the target would be put to sleep, but for the dry run: "+m.decision.Message
	case keeper != nil && r.votes[i].agrees(false):
		condition.Reason, condition.Message = v1alpha1.ReasonSharedTarget, keptAwakeBy(keeper.Name, r.sleepingOf(r.combined.By).Message)
		return condition
	case r.combined.Agreed && !r.votes[i].agrees(false):
		condition.Reason, condition.Message = v1alpha1.ReasonSharedTarget, requestedThroughOther
	case m.decision.Action == ActionSleep && !r.combined.Agreed:
		condition.Reason, condition.Message = v1alpha1.ReasonSharedTarget, "another ElastiService of the target has not been evaluated yet"
	case m.decision.Action == ActionSleep && m.observation.Failure.pauses(m.observation.Now):
		// The request was rejected.
		condition.Reason, condition.Message = v1alpha1.ReasonBackingOff, m.observation.Failure.message()
	case m.decision.Action == ActionSleep:
		condition.Reason, condition.Message = v1alpha1.ReasonSleepRequested, sleepRequested(m.observation).Message
	}
	return condition
}

// pendingSleeping returns the condition Sleeping of a member without a decision: the
// one that it has, or else that the decision is pending.
func pendingSleeping(m *member, now time.Time) *metav1.Condition {
	if before := meta.FindStatusCondition(m.elastiService().Status.Conditions, v1alpha1.ConditionSleeping); before != nil {
		return before
	}
	return transition(m.elastiService(), nil, now, metav1.Condition{
		Type:    v1alpha1.ConditionSleeping,
		Status:  metav1.ConditionUnknown,
		Reason:  v1alpha1.ReasonDecisionPending,
		Message: "it has not been decided yet whether the target is to sleep",
	})
}

// lastWoken returns for users the last wake of the target. It is empty when none is
// known.
func lastWoken(wake *v1alpha1.WakeRecord) string {
	if wake == nil {
		return ""
	}
	text := fmt.Sprintf("; last woken at %s by %s", wake.Time.UTC().Format(time.RFC3339), wake.By)
	if wake.Reason != "" {
		text += ": " + wake.Reason
	}
	return text
}

// sleepingChanged reports whether a condition Sleeping with the same status is worth
// a write. A target that is used now and then is reported to cool down only when it
// has been idle for a part of the cooldown.
func sleepingChanged(m *member, before, after *metav1.Condition) bool {
	switch {
	case before.Reason == after.Reason && before.Message == after.Message:
		return before.ObservedGeneration != m.elastiService().Generation
	case before.Reason == after.Reason, inUse(before.Reason) && inUse(after.Reason):
		return m.observation.Now.Sub(m.state.reported) >= messageDelay
	case inUse(before.Reason) && after.Reason == v1alpha1.ReasonCoolingDown:
		return m.observation.Now.Sub(m.decision.History.IdleSince) >= m.observation.Cooldown/activityDelay
	default:
		return true
	}
}

// inUse reports whether a reason says that the target is used.
func inUse(reason string) bool {
	return reason == v1alpha1.ReasonTriggerActive || reason == v1alpha1.ReasonTraffic
}

// sharedWith returns the names of the other ElastiServices of the target, in order.
func (r *round) sharedWith(i int) []string {
	var others []string
	for j := range r.members {
		if j != i && len(others) < maxSharedWith {
			others = append(others, r.members[j].key.Name)
		}
	}
	return others
}

// computeTargetShared computes TargetShared. It is absent while the target has one
// ElastiService.
func computeTargetShared(elastiService *v1alpha1.ElastiService, others []string, now time.Time) *metav1.Condition {
	if len(others) == 0 {
		return nil
	}
	before := meta.FindStatusCondition(elastiService.Status.Conditions, v1alpha1.ConditionTargetShared)
	if before != nil && before.ObservedGeneration == elastiService.Generation {
		return before
	}
	return transition(elastiService, before, now, metav1.Condition{
		Type:    v1alpha1.ConditionTargetShared,
		Status:  metav1.ConditionTrue,
		Reason:  v1alpha1.ReasonSharedTarget,
		Message: "other ElastiServices have the same target: it sleeps when all of them say idle, and wakes when any is called",
	})
}
