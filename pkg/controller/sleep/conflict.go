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

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/reports"
)

const (
	// disturbedSleep is up to which length a sleep that somebody else ends
	// counts as disturbed. Autoscalers and operators act within that time.
	disturbedSleep = 2 * time.Minute
	// conflictSleeps is how many disturbed sleeps in a row are a conflict: a
	// single one is somebody who wants to use the target.
	conflictSleeps = 2
	// maxBackoff bounds for how long a target is left alone.
	maxBackoff = 24 * time.Hour
)

// conflict is what is known of somebody who scales a target up that sleeps.
type conflict struct {
	// disturbed is the number of disturbed sleeps in a row.
	disturbed int
	// by is who scaled the target up last.
	by string
	// until is when the target may be put to sleep again.
	until time.Time
}

// scaledUp takes in that somebody else ended a sleep. The pauses are the
// cooldown, doubled with every disturbed sleep after the first.
func (c *conflict) scaledUp(by string, slept, cooldown time.Duration, now time.Time) {
	c.by = by
	if slept >= disturbedSleep {
		c.disturbed = 0
		return
	}
	c.disturbed++
	c.until = now.Add(backoff(cooldown, c.disturbed))
}

// slept takes in for how long the target has slept now.
func (c *conflict) slept(duration time.Duration) {
	if duration >= disturbedSleep {
		*c = conflict{by: c.by}
	}
}

func (c *conflict) active() bool { return c.disturbed >= conflictSleeps }

// backoff is how long a target is left alone after a number of disturbed sleeps.
func backoff(cooldown time.Duration, disturbed int) time.Duration {
	pause := cooldown
	for range disturbed - 1 {
		if pause *= 2; pause >= maxBackoff {
			return max(maxBackoff, cooldown)
		}
	}
	return pause
}

// ScaledUp records that the target of an ElastiService was scaled up from zero
// by somebody else. by is how that one calls itself, and slept for how long the
// target had slept. It does not wait for anything.
func (s *Scheduler) ScaledUp(key types.NamespacedName, by string, slept time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.known[key]
	if !ok {
		return
	}
	known.conflict.scaledUp(by, slept, max(reports.Cooldown(known.elastiService), s.options.PollingInterval), s.clock.Now())
	klog.Background().V(2).Info("A sleeping target was scaled up by somebody else", "elastiService", key, "by", by, "slept", slept, "disturbedSleeps", known.conflict.disturbed)
	s.event(known.elastiService, v1alpha1.ReasonScaledUpByOther, eventActionWake, fmt.Sprintf("%s scaled the target up after it had slept for %s", by, slept.Round(time.Second)))
	s.recordWake(known.target, by, "")
	s.addAfter(known.target, 0)
}

// computeScalingConflict computes ScalingConflict. It is absent until there is
// a conflict.
func computeScalingConflict(elastiService *v1alpha1.ElastiService, observation Observation) *metav1.Condition {
	before := meta.FindStatusCondition(elastiService.Status.Conditions, v1alpha1.ConditionScalingConflict)
	known := observation.Conflict
	switch {
	case known.active():
		return transition(elastiService, before, observation.Now, metav1.Condition{
			Type:   v1alpha1.ConditionScalingConflict,
			Status: metav1.ConditionTrue,
			Reason: v1alpha1.ReasonScaledUpByOther,
			Message: fmt.Sprintf("%s scaled the target up soon after it was put to sleep, %d times in a row; it is left awake until %s: let only one of the two decide, or name the autoscaler in spec.autoscaler",
				known.by, known.disturbed, known.until.UTC().Format(time.RFC3339)),
		})
	case before != nil && before.Status == metav1.ConditionTrue:
		return transition(elastiService, before, observation.Now, metav1.Condition{
			Type:    v1alpha1.ConditionScalingConflict,
			Status:  metav1.ConditionFalse,
			Reason:  v1alpha1.ReasonConflictOver,
			Message: "the target sleeps, or may sleep, undisturbed again",
		})
	default:
		return before
	}
}

// transition returns a condition with the time of its last transition, given
// what it was before. Nil before means that it was not there.
func transition(elastiService *v1alpha1.ElastiService, before *metav1.Condition, now time.Time, after metav1.Condition) *metav1.Condition {
	after.ObservedGeneration = elastiService.Generation
	after.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy()
	conditions := []metav1.Condition{}
	if before != nil {
		conditions = append(conditions, *before)
	}
	meta.SetStatusCondition(&conditions, after)
	return &conditions[0]
}
