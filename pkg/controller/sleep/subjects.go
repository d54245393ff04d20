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
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/reports"
)

// batchingDelay is how long after a change that leads to no action it is reported,
// so that several changes in a row are reported once. Up to half of it is added at
// random, so that changes of all ElastiServices spread.
const batchingDelay = time.Second

// subject is the state of one ElastiService. It is guarded by the mutex of the
// scheduler.
type subject struct {
	// watched is the ElastiService as it was last watched; elastiService is the
	// same without times in the future.
	watched, elastiService *v1alpha1.ElastiService
	// target is its target.
	target resources.TargetKey
	// woken is when the target was seen to go up from zero. Zero if it was not.
	woken time.Time
	// readySince and unreadySince are since when the target, which is up, has had
	// a ready pod or none. At most one of them is set.
	readySince, unreadySince time.Time
	// decidedToSleep is when the scheduler decided to put the target to sleep, which is
	// why sleep is requested. Zero if it did not.
	decidedToSleep time.Time
	// conflict is the state of a conflict with others that scale the target up.
	conflict conflict
	// history is that of the last decision, generation the one of the spec that was
	// decided about.
	history    History
	generation int64
	// announced is the action that a dry run last recorded an Event about.
	announced Action
	// reported is when the condition Sleeping was last written.
	reported time.Time
}

// sharedTarget is the state of one target. It is guarded by the mutex of the
// scheduler.
type sharedTarget struct {
	// members are the ElastiServices of the target, at least one.
	members map[types.NamespacedName]*subject
	// changes counts the changes that may lead to another decision. A decision is
	// confirmed only when there was none while it was made.
	changes int
	// confirmed is when all members last agreed, on fresh data, that the target may
	// be scaled to zero. Zero when something has changed since.
	confirmed time.Time
	// waiting is called after the next decision. Nil when nothing waits.
	waiting func()
	// lastWake is the last wake that was reported to the scheduler. The statuses may
	// not have it yet. Nil when there was none.
	lastWake *v1alpha1.WakeRecord
	// failure is the state of scale-downs that failed.
	failure failure
}

// Changed records that an ElastiService was created (before is nil), changed, or
// deleted (after is nil). The objects must not be modified afterwards. It may be
// called before Run, and does not block.
func (s *Scheduler) Changed(before, after *v1alpha1.ElastiService) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
	case after == nil:
		s.deleted(resources.KeyOf(before))
	case s.known[resources.KeyOf(after)] == nil:
		s.created(after)
	case s.known[resources.KeyOf(after)].watched.UID != after.UID:
		s.deleted(resources.KeyOf(after))
		s.created(after)
	default:
		s.updated(after)
	}
}

func (s *Scheduler) deleted(key types.NamespacedName) {
	s.metrics.forget(key)
	known, ok := s.known[key]
	if !ok {
		return
	}
	delete(s.known, key)
	s.leave(key, known)
}

// leave removes an ElastiService from its target.
func (s *Scheduler) leave(key types.NamespacedName, known *subject) {
	of := s.targets[known.target]
	delete(of.members, key)
	of.changed()
	if len(of.members) == 0 {
		delete(s.targets, known.target)
		return
	}
	s.addAfter(known.target, batchDelay())
}

// join adds an ElastiService to its target. It reports whether the statuses of others
// of the target have to change for that.
func (s *Scheduler) join(key types.NamespacedName, known *subject) (isNew bool) {
	known.target = s.options.TargetKeys.Of(known.watched)
	of, ok := s.targets[known.target]
	if !ok {
		of = &sharedTarget{members: map[types.NamespacedName]*subject{}}
		s.targets[known.target] = of
	}
	of.members[key] = known
	of.changed()
	if len(of.members) > maxSharedWith+1 {
		// Each has as many names as it may have.
		return false
	}
	for _, other := range of.members {
		shared := other.watched.Status.TargetSharedWith
		if other != known && len(shared) < maxSharedWith && !slices.Contains(shared, key.Name) {
			return true
		}
	}
	return false
}

// regroup takes an ElastiService to another target, if it has another one than before.
func (s *Scheduler) regroup(key types.NamespacedName, known *subject) {
	if s.options.TargetKeys.Of(known.watched) == known.target {
		return
	}
	s.leave(key, known)
	s.join(key, known)
	s.addAfter(known.target, batchDelay())
}

// regroupAll takes the ElastiServices to other targets that have other ones than before.
func (s *Scheduler) regroupAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, known := range s.known {
		s.regroup(key, known)
	}
}

// changed records that something may lead to another decision.
func (t *sharedTarget) changed() {
	t.changes++
	t.confirmed = time.Time{}
}

func (s *Scheduler) created(elastiService *v1alpha1.ElastiService) {
	key, now := resources.KeyOf(elastiService), s.clock.Now()
	known := &subject{
		watched:       elastiService,
		elastiService: boundTimes(elastiService, nil, nil, now),
	}
	known.resumeRequest()
	if isStarting(elastiService) {
		known.unreadySince = now
	}
	if meta.IsStatusConditionTrue(elastiService.Status.Conditions, v1alpha1.ConditionScalingConflict) {
		// The conflict is from before a restart, maybe with more short sleeps.
		pause := backoff(max(reports.Cooldown(elastiService), s.options.PollingInterval), conflictSleeps, maxBackoff)
		known.conflict = conflict{shortSleeps: conflictSleeps, by: v1alpha1.CallerUnknown, until: now.Add(pause)}
	}
	s.known[key] = known
	isNew := s.join(key, known)
	s.metrics.forget(key)
	s.recordReplicas(key, elastiService)
	s.addAfter(known.target, s.firstDelay())
	if isNew {
		s.addAfter(known.target, batchDelay())
	}
}

func (s *Scheduler) updated(elastiService *v1alpha1.ElastiService) {
	key, now := resources.KeyOf(elastiService), s.clock.Now()
	known := s.known[key]
	before := known.elastiService
	known.elastiService = boundTimes(elastiService, known.watched, before, now)
	known.watched = elastiService
	if known.recordScale(before, now); known.readySince.Equal(now) && reports.Cooldown(elastiService) < s.options.PollingInterval {
		// The cooldown begins now, and ends before the next sync may be due.
		s.addAfter(known.target, reports.Cooldown(elastiService))
	}
	s.recordReplicas(key, elastiService)
	if before.Generation != elastiService.Generation {
		// The edit may have ended the conflict.
		known.conflict = conflict{}
	}
	s.regroup(key, known)
	s.targets[known.target].endFailure(before, elastiService)
	known.recordRequest(before)
	requested := isByHand(&elastiService.Status) && !isByHand(&before.Status)
	edited := before.Generation != elastiService.Generation || isDryRun(before) != isDryRun(elastiService)
	switch deleting := before.DeletionTimestamp.IsZero() != elastiService.DeletionTimestamp.IsZero(); {
	case edited, requested, deleting, trafficChanged(before, known.elastiService):
		s.targets[known.target].changed()
		s.addAfter(known.target, 0)
	case sleepStateChanged(before, elastiService):
		s.targets[known.target].changed()
		s.addAfter(known.target, batchDelay())
	case !equality.Semantic.DeepEqual(before.Status.LastWake, elastiService.Status.LastWake):
		s.addAfter(known.target, batchDelay())
	}
}

// Woken records that the controller woke a target by itself, and why. It does not
// block.
func (s *Scheduler) Woken(target resources.TargetKey, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordWake(target, v1alpha1.CallerServer, reason)
}

// recordWake records a wake of a target. It must be called with mu held.
func (s *Scheduler) recordWake(target resources.TargetKey, by, reason string) {
	of, ok := s.targets[target]
	if !ok {
		return
	}
	of.lastWake = &v1alpha1.WakeRecord{Time: metav1.NewTime(s.clock.Now()).Rfc3339Copy(), By: by, Reason: reason}
	s.addAfter(target, batchDelay())
}

// recordScale records that the target was scaled from zero, and whether it has a
// ready pod.
func (k *subject) recordScale(before *v1alpha1.ElastiService, now time.Time) {
	after := k.elastiService
	if knowsReplicas(before) && before.Status.Replicas == 0 && after.Status.Replicas > 0 {
		k.woken = now
	}
	switch {
	case !isStarting(after):
		if !k.unreadySince.IsZero() && after.Status.ReadyReplicas > 0 {
			k.readySince = now
		}
		k.unreadySince = time.Time{}
	case k.unreadySince.IsZero():
		k.readySince, k.unreadySince = time.Time{}, now
	}
}

// recordRequest records that a request for sleep was made or removed. One that is made after
// the target was seen to go up from zero is later than that wake, also by the clock of a
// replica that is behind.
func (k *subject) recordRequest(before *v1alpha1.ElastiService) {
	requested, was := k.elastiService.Status.SleepRequestedTime, before.Status.SleepRequestedTime
	switch {
	case requested == nil && was != nil:
		k.decidedToSleep = time.Time{}
	case requested != nil && !requested.Equal(was) && k.woken.After(requested.Time):
		k.woken = requested.Time
	}
}

// resumeRequest takes over a request that another scheduler made, of another replica or
// before a restart, if that still decided to sleep when it last reported. The decision is
// about the generation of that report. What may have been missed since the request counts
// as between any two syncs.
func (k *subject) resumeRequest() {
	requested := k.elastiService.Status.SleepRequestedTime
	reported := meta.FindStatusCondition(k.elastiService.Status.Conditions, v1alpha1.ConditionSleeping)
	if requested == nil || isByHand(&k.elastiService.Status) || reported == nil || reported.Reason != v1alpha1.ReasonSleepRequested {
		return
	}
	k.decidedToSleep, k.generation = requested.Time, reported.ObservedGeneration
	k.history = History{Observed: requested.Time, IdleSince: requested.Time}
}

// isStarting reports whether the target is up and none of its pods is ready.
func isStarting(elastiService *v1alpha1.ElastiService) bool {
	return elastiService.Status.Replicas > 0 && elastiService.Status.ReadyReplicas == 0
}

// sleepStateChanged reports whether the target fell asleep or woke, a request for sleep was
// made or removed, or the scale became known or unknown.
func sleepStateChanged(before, after *v1alpha1.ElastiService) bool {
	return knowsReplicas(before) != knowsReplicas(after) ||
		(before.Status.Replicas == 0) != (after.Status.Replicas == 0) ||
		(before.Status.SleepRequestedTime == nil) != (after.Status.SleepRequestedTime == nil)
}

// Requests records what one pod of a target requests, in cores and bytes. It does
// not block.
func (s *Scheduler) Requests(key types.NamespacedName, cpuCores, memoryBytes float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.known[key]; ok {
		s.metrics.requests(key, cpuCores, memoryBytes)
	}
}

func (s *Scheduler) recordReplicas(key types.NamespacedName, elastiService *v1alpha1.ElastiService) {
	if knowsReplicas(elastiService) {
		s.metrics.observed(key, elastiService.Status.Replicas, minReplicas(elastiService))
	}
}

// addAfter enqueues a target after a delay, if the scheduler runs.
func (s *Scheduler) addAfter(key resources.TargetKey, delay time.Duration) {
	if s.queue != nil {
		s.queue.AddAfter(key, delay)
	}
}

// batchDelay returns the delay of one report.
func batchDelay() time.Duration { return batchingDelay + rand.N(batchingDelay/2) }
