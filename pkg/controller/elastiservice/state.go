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
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/statuswriter"
)

// observationDelay is by how much the observation of a sleep may be late, when it is not
// known since when the target had been up. A wake by the controller in between still counts
// as that.
const observationDelay = 10 * time.Second

// wakeValidity is for how long a wake shows a controller that starts that the target is
// needed: longer than it takes until there is a new leader.
const wakeValidity = time.Minute

// state is what the controller keeps of an ElastiService between two syncs. Times
// are zero while what they are about is not so. Only the worker that syncs the
// ElastiService uses it; only its methods write its fields.
type state struct {
	// written is the response to the last write, until the watch is as far:
	// deciding on older data would repeat what is done.
	written *v1alpha1.ElastiService
	// observed is true after the first pass.
	observed bool
	// zeroSince is when the target was seen to go to zero.
	zeroSince time.Time
	// upSince is when the target was last seen to go up from zero, or was first
	// seen and was up.
	upSince time.Time
	// terminatingSince is when the target went to zero whose endpoints are still
	// ready, for terminatingGrace at most.
	terminatingSince time.Time
	// sliceRemovedAt is when the last resolver slice was removed.
	sliceRemovedAt time.Time
	// removingSince is when the removal of the resolvers began, unless the ElastiService
	// was deleted.
	removingSince time.Time
	// restoredAt is when the target was first observed to be awake whose resolvers are
	// to leave the path for good.
	restoredAt time.Time
	// deletion is when the deletion of an ElastiService was first observed.
	deletion observedDeletion
	// finalized is the UID of the ElastiService whose finalizer was removed after
	// everything had been put back as it was.
	finalized types.UID
	// orphaned are the public Services of a deleted ElastiService that still have resolvers
	// in their path. Their private Services outlive the resolver slices.
	orphaned []types.NamespacedName
	// lost is true once it was logged that the store has lost the ElastiService.
	lost bool
	// damaged is true while the stored object of the ElastiService cannot be read.
	damaged bool
	// damageHandled is true once its target was woken and its resolvers have left.
	damageHandled bool
	// drainingSince is since when a scale-down has the resolvers in the path.
	drainingSince time.Time
	// pausedAt is when a scale-down paused the autoscaler. pausedBefore is true if that
	// said that it was paused already.
	pausedAt     time.Time
	pausedBefore bool
	// scaledToZeroAt is when a scale-down scaled the target to zero, until the
	// watch shows that.
	scaledToZeroAt time.Time
	// completing are the ElastiServices of a target that a scale-down has scaled to
	// zero, or may have, until it is known whether it did and whether the target is
	// still to sleep. Nil when there is no such scale-down.
	completing []*v1alpha1.ElastiService
	// completingTarget is the target of completing.
	completingTarget resources.TargetKey
	// carriedOut is the time of the request for sleep that was last carried out. Zero
	// when that is removed.
	carriedOut time.Time
	// owedWake is the number of replicas to which a scale-down failed to wake the
	// target again. Zero when it owes no wake.
	owedWake int32
	// owedTarget is the target of owedWake.
	owedTarget resources.TargetKey
	// exposedSince is since when resolver slices are missing that cannot be written, or
	// name resolvers that do not accept connections.
	exposedSince time.Time
	// startingSince is since when the target is to have pods and none is ready.
	startingSince time.Time
	// sharedScaledAt is when a scale-down through any ElastiService of the target last
	// scaled it to zero.
	sharedScaledAt time.Time
	// portsOf is the name of the public Service that proxy ports were last assigned for.
	// Empty before the first assignment.
	portsOf string
	// portChecks are the resolvers that accept connections on the proxy ports.
	portChecks resolvers.PortChecks
}

// latest returns the newer one of what the watch has and what was written.
func (s *state) latest(watched *v1alpha1.ElastiService) *v1alpha1.ElastiService {
	if s.written == nil || s.written.UID != watched.UID || !statuswriter.IsNewer(s.written.ResourceVersion, watched.ResourceVersion) {
		s.written = nil
		return watched
	}
	return s.written
}

// recordWrite records the response to a write.
func (s *state) recordWrite(written *v1alpha1.ElastiService) { s.written = written }

// recordPorts records for which public Service proxy ports were assigned.
func (s *state) recordPorts(service string) { s.portsOf = service }

// hasPortsOfAnother reports whether proxy ports were last assigned for another public
// Service than the one with a name.
func (s *state) hasPortsOfAnother(service string) bool {
	return s.portsOf != "" && s.portsOf != service
}

// scaleFacts are what a sync observes of the scale of the target.
type scaleFacts struct {
	// known is true when the scale is known, atZero when it is zero.
	known, atZero bool
	// wasUp is true when the status reports replicas.
	wasUp bool
	// slept is when the target went to zero according to the status. Zero when it does
	// not say.
	slept time.Time
	// requested is true while the target is requested to sleep.
	requested bool
	// sleepCanceled is when the last wake canceled such a request. Zero when it
	// canceled none: then the target was at zero.
	sleepCanceled time.Time
	// readyEndpoints is the number of ready endpoints in the public Service's
	// own slices.
	readyEndpoints int
}

// sleepPeriod is a time that a target slept.
type sleepPeriod struct {
	// since is when the target was seen to be at zero.
	since time.Time
	// after is a time at which the target was still up: when it was seen at
	// zero may be much later than when it was scaled.
	after time.Time
}

// recordScale records what is observed of the scale at a time. It returns the
// sleep that ended when the target is seen to be up again, and nil otherwise.
func (s *state) recordScale(now time.Time, facts scaleFacts) *sleepPeriod {
	if facts.atZero || now.Sub(s.scaledToZeroAt) >= terminatingGrace {
		s.scaledToZeroAt = time.Time{}
	}
	if !s.observed && facts.slept.After(s.terminatingSince) {
		// The leader before saw it go to zero, maybe by a clock that is ahead.
		s.terminatingSince = facts.slept
		if facts.slept.After(now) {
			s.terminatingSince = now
		}
	}
	s.observed = true
	var ended *sleepPeriod
	switch {
	case !facts.known:
	case !facts.atZero:
		if !s.zeroSince.IsZero() {
			ended = &sleepPeriod{since: s.zeroSince, after: s.asleepAfter()}
		}
		if s.upSince.IsZero() || ended != nil {
			s.upSince = now
		}
		s.zeroSince = time.Time{}
	case facts.wasUp && s.zeroSince.IsZero():
		s.zeroSince = now
		s.terminatingSince = now
	}
	if facts.readyEndpoints == 0 || now.Sub(s.terminatingSince) >= terminatingGrace {
		s.terminatingSince = time.Time{}
	}
	return ended
}

// lostWake reports whether the target is at zero although a wake canceled its request
// for sleep: the leader before ended when it had scaled the target, and had not seen the
// wake yet. That counts until the scale was seen for the first time. The clock of the replica
// that recorded the wake may be ahead by clockSkew. A target that was woken like this and put
// to sleep for good within wakeValidity, right before that leader ended, is woken once more.
func (s *state) lostWake(now time.Time, facts scaleFacts) bool {
	seen := !s.upSince.IsZero() || !s.zeroSince.IsZero()
	return !seen && facts.known && facts.atZero && facts.wasUp && !facts.requested &&
		!facts.sleepCanceled.After(now.Add(clockSkew)) && now.Sub(facts.sleepCanceled) < wakeValidity
}

// asleepAfter returns a time after which the target was scaled to zero: it was
// seen to be up then.
func (s *state) asleepAfter() time.Time {
	after := s.zeroSince.Add(-observationDelay)
	if !s.upSince.IsZero() && s.upSince.Before(after) {
		return s.upSince
	}
	return after
}

// recordSliceRemoval records that a resolver slice was removed.
func (s *state) recordSliceRemoval(now time.Time) { s.sliceRemovedAt = now }

// startRemoval records that the resolvers are to leave the path for good, unless
// that was so before. It returns since when it is so, and whether it is new.
func (s *state) startRemoval(now time.Time) (since time.Time, started bool) {
	started = s.removingSince.IsZero()
	if started {
		s.removingSince = now
	}
	return s.removingSince, started
}

// removing reports whether the resolvers are to leave the path for good.
func (s *state) removing() bool { return !s.removingSince.IsZero() }

// observedDeletion is a deletion of an ElastiService and when it was first observed.
type observedDeletion struct {
	uid types.UID
	at  time.Time
}

// recordDeletion records that an ElastiService is being deleted, and returns since
// when: the time of the deletion is that of another clock, and counts only when it is
// earlier than the first observation.
func (s *state) recordDeletion(elastiService *v1alpha1.ElastiService, now time.Time) time.Time {
	if s.deletion.uid != elastiService.UID || s.deletion.at.IsZero() {
		s.deletion = observedDeletion{elastiService.UID, now}
	}
	if deleted := elastiService.DeletionTimestamp.Time; deleted.Before(s.deletion.at) {
		return deleted
	}
	return s.deletion.at
}

// recordFinalized records that everything was put back as it was for an
// ElastiService.
func (s *state) recordFinalized(uid types.UID) { s.finalized = uid }

// recordExistence records that an ElastiService exists. Another one of its name may have
// been finalized before.
func (s *state) recordExistence(uid types.UID) {
	s.damaged, s.damageHandled = false, false
	if s.finalized != uid {
		s.finalized = ""
	}
}

// cleanedUp reports whether everything was put back as it was for an ElastiService that
// does not exist. last is it as its deletion was reported, nil if that was not yet.
func (s *state) cleanedUp(last *v1alpha1.ElastiService) bool {
	return s.finalized != "" && (last == nil || last.UID == s.finalized)
}

// recordOrphaned records a public Service of an ElastiService that does not exist.
func (s *state) recordOrphaned(public types.NamespacedName) {
	if !slices.Contains(s.orphaned, public) {
		s.orphaned = append(s.orphaned, public)
	}
}

// recordLoss records that the store has lost the ElastiService, and reports whether
// that is new.
func (s *state) recordLoss() bool {
	known := s.lost
	s.lost = true
	return !known
}

// recordDamage records that the stored object of the ElastiService cannot be read, and
// reports whether that is new.
func (s *state) recordDamage() bool {
	known := s.damaged
	s.damaged = true
	return !known
}

// recordDamageHandled records that the target of a damaged ElastiService was woken and that its
// resolvers have left.
func (s *state) recordDamageHandled() { s.damageHandled = true }

// endRemoval records that the resolvers have left the path, or are to stay.
func (s *state) endRemoval() { s.removingSince, s.restoredAt = time.Time{}, time.Time{} }

// recordRestored records that the target whose resolvers are to leave the path for good
// is awake, and returns since when that is known.
func (s *state) recordRestored(now time.Time) time.Time {
	if s.restoredAt.IsZero() {
		s.restoredAt = now
	}
	return s.restoredAt
}

// lingering returns for how long the private Service is still needed after the
// removal of the resolver slice. It is not positive when it is not needed.
func (s *state) lingering(now time.Time) time.Duration {
	if s.sliceRemovedAt.IsZero() {
		return 0
	}
	return lingerTime - now.Sub(s.sliceRemovedAt)
}

// terminating reports whether ready endpoints count as those of pods that terminate.
func (s *state) terminating() bool { return !s.terminatingSince.IsZero() }

// graceLeft returns for how long a scale-down to zero still counts although endpoints
// or the scale do not show it, and whether one does.
func (s *state) graceLeft(now time.Time) (time.Duration, bool) {
	since := s.terminatingSince
	if s.scaledToZeroAt.After(since) {
		since = s.scaledToZeroAt
	}
	return terminatingGrace - now.Sub(since), !since.IsZero()
}

// draining reports whether a scale-down has the resolvers in the path.
func (s *state) draining() bool { return !s.drainingSince.IsZero() }

// drained returns for how long a scale-down has had the resolvers in the path. It
// is negative when it has not.
func (s *state) drained(now time.Time) time.Duration {
	if !s.draining() {
		return -1
	}
	return now.Sub(s.drainingSince)
}

// startDrain records that the resolvers are in the path, unless they were before.
func (s *state) startDrain(now time.Time) {
	if !s.draining() {
		s.drainingSince = now
	}
}

// stopDrain records that no scale-down needs the resolvers in the path.
func (s *state) stopDrain() { s.drainingSince = time.Time{} }

// pausing reports whether a scale-down has paused the autoscaler.
func (s *state) pausing() bool { return !s.pausedAt.IsZero() }

// paused returns for how long a scale-down has waited for the paused autoscaler.
func (s *state) paused(now time.Time) time.Duration { return now.Sub(s.pausedAt) }

// startPause records that a scale-down paused the autoscaler, and whether that
// called itself paused before.
func (s *state) startPause(now time.Time, before bool) { s.pausedAt, s.pausedBefore = now, before }

// stopPause records that no scale-down waits for the autoscaler.
func (s *state) stopPause() { s.pausedAt = time.Time{} }

// endScaleDown records that a scale-down has ended.
func (s *state) endScaleDown() {
	s.stopDrain()
	s.stopPause()
}

// startTermination records that the target was scaled to zero, so that its pods
// terminate.
func (s *state) startTermination(now time.Time) { s.terminatingSince = now }

// recordScaledToZero records that a scale-down is complete.
func (s *state) recordScaledToZero(now time.Time) { s.scaledToZeroAt = now }

// recordSharedScaleDown records when a scale-down through any ElastiService of the
// target last scaled it to zero. Its pods terminate from then on.
func (s *state) recordSharedScaleDown(at time.Time) {
	if !at.After(s.sharedScaledAt) {
		return
	}
	s.sharedScaledAt = at
	s.recordScaledToZero(at)
	s.startTermination(at)
}

// scaledToZero reports whether a scale-down scaled the target to zero, or may have, and
// the watch does not show that yet.
func (s *state) scaledToZero() bool { return !s.scaledToZeroAt.IsZero() || s.completing != nil }

// startCompletion records that a scale-down has scaled the target of some ElastiServices
// to zero, or may have.
func (s *state) startCompletion(target resources.TargetKey, siblings []*v1alpha1.ElastiService) {
	s.completing, s.completingTarget = siblings, target
}

// recordCarriedOut records that the target sleeps by a request. That is not carried out
// again if it cannot be removed.
func (s *state) recordCarriedOut(requested time.Time) { s.carriedOut = requested }

// endCompletion records that it is known what came of a scale-down.
func (s *state) endCompletion() { s.completing = nil }

// recordRequest records the request for sleep that is observed, nil when there is none,
// and reports whether it was carried out.
func (s *state) recordRequest(requested *metav1.Time) bool {
	if requested == nil {
		s.carriedOut = time.Time{}
		return false
	}
	return requested.Time.Equal(s.carriedOut)
}

// recordExposure records whether clients reach no resolver although some are ready: slices
// are missing and cannot be written, or name resolvers that do not accept connections. It
// counts only while the target is at zero.
func (s *state) recordExposure(now time.Time, exposed bool) {
	switch {
	case !exposed:
		s.exposedSince = time.Time{}
	case s.exposedSince.IsZero():
		s.exposedSince = now
	}
}

// exposed reports whether clients reach no resolver although some are ready.
func (s *state) exposed() bool { return !s.exposedSince.IsZero() }

// exposureLeft returns for how long that may still be so within a grace period.
func (s *state) exposureLeft(now time.Time, grace time.Duration) time.Duration {
	return grace - now.Sub(s.exposedSince)
}

// oweWake records that a target is still to be woken to a number of replicas, or
// with zero that it was.
func (s *state) oweWake(target resources.TargetKey, replicas int32) {
	s.owedTarget, s.owedWake = target, replicas
}

// owedWakeOf returns to how many replicas a target is still to be woken. Zero when it is not.
// What another target was owed is forgotten: it is restored as a previous one.
func (s *state) owedWakeOf(target resources.TargetKey) int32 {
	if s.owedTarget != target {
		s.owedWake = 0
	}
	return s.owedWake
}

// recordStart records that the target is to have pods and none is ready, which may
// have been so before the first observation. It returns since when it is so.
func (s *state) recordStart(observed time.Time) time.Time {
	if s.startingSince.IsZero() {
		s.startingSince = observed
	}
	return s.startingSince
}

// endStart records that a pod of the target is ready, or that it is to have none.
func (s *state) endStart() { s.startingSince = time.Time{} }

// states are the states of all ElastiServices. It is safe for concurrent use.
type states struct {
	mu sync.Mutex
	// byKey has an entry for each ElastiService that was synced. forget removes
	// it when the ElastiService is deleted.
	byKey map[types.NamespacedName]*state
}

func newStates() *states { return &states{byKey: map[types.NamespacedName]*state{}} }

// of returns the state of an ElastiService, which is empty at first.
func (s *states) of(key types.NamespacedName) *state {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.byKey[key]
	if !ok {
		found = &state{}
		s.byKey[key] = found
	}
	return found
}

func (s *states) forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, key)
}
