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
	// shortSleep is the length up to which a sleep that another client ends counts
	// as short. Autoscalers and operators act within that time.
	shortSleep = 2 * time.Minute
	// conflictSleeps is how many short sleeps in a row are a conflict: a single one
	// is a user who needs the target.
	conflictSleeps = 2
	// maxBackoff bounds for how long a target is left awake for a conflict.
	maxBackoff = 24 * time.Hour
)

// conflict is the state of a conflict with another client or controller that scales a
// sleeping target up.
type conflict struct {
	// shortSleeps is the number of short sleeps in a row.
	shortSleeps int
	// by is the client that scaled the target up last.
	by string
	// until is when the target may be put to sleep again.
	until time.Time
}

// scaledUp records that another client ended a sleep. The pauses are the cooldown,
// doubled with every short sleep after the first.
func (c *conflict) scaledUp(by string, slept, cooldown time.Duration, now time.Time) {
	c.by = by
	if slept >= shortSleep {
		c.shortSleeps = 0
		return
	}
	c.shortSleeps++
	c.until = now.Add(backoff(cooldown, c.shortSleeps, maxBackoff))
}

// slept records for how long the target has slept.
func (c *conflict) slept(duration time.Duration) {
	if duration >= shortSleep {
		*c = conflict{by: c.by}
	}
}

func (c *conflict) active() bool { return c.shortSleeps >= conflictSleeps }

// backoff returns how long a target is left awake after something has happened a number of
// times in a row: the cooldown, doubled with each time after the first, up to a bound.
func backoff(cooldown time.Duration, times int, bound time.Duration) time.Duration {
	pause := cooldown
	for range times - 1 {
		if pause *= 2; pause >= bound {
			return max(bound, cooldown)
		}
	}
	return pause
}

// ScaledUp records that another client scaled the target of an ElastiService up from
// zero. by is the name of that client, and slept for how long the target had slept.
// It does not block.
func (s *Scheduler) ScaledUp(key types.NamespacedName, by string, slept time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.known[key]
	if !ok {
		return
	}
	known.conflict.scaledUp(by, slept, max(reports.Cooldown(known.elastiService), s.options.PollingInterval), s.clock.Now())
	klog.Background().V(2).Info("Another client scaled a sleeping target up", "elastiService", key, "by", by, "slept", slept, "shortSleeps", known.conflict.shortSleeps)
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
				known.by, known.shortSleeps, known.until.UTC().Format(time.RFC3339)),
		})
	case before != nil && before.Status == metav1.ConditionTrue:
		return transition(elastiService, before, observation.Now, metav1.Condition{
			Type:    v1alpha1.ConditionScalingConflict,
			Status:  metav1.ConditionFalse,
			Reason:  v1alpha1.ReasonConflictOver,
			Message: "the target sleeps, or may sleep, and is not scaled up by others any more",
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
