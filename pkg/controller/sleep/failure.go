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

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/reports"
)

const (
	// maxFailurePause bounds for how long a target is left awake that could not be put to
	// sleep.
	maxFailurePause = time.Hour
	// maxCauseBytes bounds the cause of a failure. The message of a webhook has no bound.
	maxCauseBytes = 1 << 10
)

// failure is the state of the scale-downs of a target that failed in a row, such as by an
// admission policy, a missing permission or a webhook. It is kept until the target sleeps.
type failure struct {
	// count is how many failed in a row.
	count int
	// cause is why the last one failed.
	cause string
	// until is when the target may be put to sleep again.
	until time.Time
}

// record records that a scale-down failed. The pauses are the cooldown, doubled with every
// failure after the first. A failure within a pause does not count: it is a repetition of the
// last one, or a user requested to sleep meanwhile.
func (f *failure) record(cause string, cooldown time.Duration, now time.Time) {
	if len(cause) > maxCauseBytes {
		cause = strings.ToValidUTF8(cause[:maxCauseBytes], "") + "…"
	}
	f.cause = cause
	if f.pauses(now) {
		return
	}
	f.count++
	f.until = now.Add(backoff(cooldown, f.count, maxFailurePause))
}

// pauses reports whether the target is left awake at a time.
func (f *failure) pauses(now time.Time) bool { return f.until.After(now) }

// message returns for users why the target is left awake, and until when.
func (f *failure) message() string {
	return fmt.Sprintf("the target is idle, but could not be put to sleep, which is tried again after %s: %s", f.until.UTC().Format(time.RFC3339), f.cause)
}

// note returns for users what is to be added to another message about the target. It is empty
// when no scale-down failed.
func (f *failure) note() string {
	if f.count == 0 {
		return ""
	}
	return "; the last attempt to put it to sleep failed: " + f.cause
}

// SleepFailed records that a target could not be put to sleep, and why. It does not block.
func (s *Scheduler) SleepFailed(target resources.TargetKey, cause string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recordFailure(target, cause).count > 0 {
		s.addAfter(target, batchDelay())
	}
}

// recordFailure records that a target could not be put to sleep, and returns what is known of
// that. It must be called with mu held.
func (s *Scheduler) recordFailure(target resources.TargetKey, cause string) failure {
	of, ok := s.targets[target]
	if !ok {
		return failure{}
	}
	cooldown := s.options.PollingInterval
	for _, known := range of.members {
		cooldown = max(cooldown, reports.Cooldown(known.elastiService))
	}
	of.failure.record(cause, cooldown, s.clock.Now())
	of.changed()
	return of.failure
}

// endFailure records that the target of an ElastiService sleeps, or that the ElastiService was
// edited, which may have ended what kept the target from that.
func (t *sharedTarget) endFailure(before, after *v1alpha1.ElastiService) {
	if before.Generation != after.Generation || knowsReplicas(after) && after.Status.Replicas == 0 {
		t.failure = failure{}
	}
}
