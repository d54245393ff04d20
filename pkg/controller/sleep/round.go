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
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
)

// snapshot is an ElastiService and a copy of its state at one moment.
type snapshot struct {
	key     types.NamespacedName
	subject *subject
	// state is a copy of the subject, failure that of its target.
	state   subject
	failure failure
}

func (m *snapshot) elastiService() *v1alpha1.ElastiService { return m.state.elastiService }

// snapshots returns the ElastiServices of a target as they are now, by name, the
// number of changes of the target until now, and its last wake, nil when none is
// known.
func (s *Scheduler) snapshots(key resources.TargetKey) (members []snapshot, changes int, lastWake *v1alpha1.WakeRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, ok := s.targets[key]
	if !ok {
		return nil, 0, nil
	}
	lastWake = of.lastWake
	now := s.clock.Now()
	for name, known := range of.members {
		// The clock may have been set back since. What is bounded then is kept: a bound that
		// follows the clock would be use until the clock is there again.
		known.elastiService = boundTimes(known.elastiService, nil, nil, now)
		if since := known.elastiService.Status.SleptTime; since != nil {
			known.conflict.slept(now.Sub(since.Time))
		}
		members = append(members, snapshot{key: name, subject: known, state: *known, failure: of.failure})
	}
	slices.SortFunc(members, func(one, other snapshot) int { return cmp.Compare(one.key.Name, other.key.Name) })
	for i := range members {
		lastWake = v1alpha1.LatestWake(lastWake, members[i].elastiService().Status.LastWake, now)
	}
	return members, of.changes, lastWake
}

// member is one ElastiService of a target in a decision about it.
type member struct {
	snapshot
	// dryRun is true when its decisions are not carried out.
	dryRun bool
	// decided is true when there is a decision, which is based on observation.
	decided     bool
	observation Observation
	decision    Decision
}

// round is one decision about a target with all that it is based on.
type round struct {
	// members are the ElastiServices of the target, by name, and votes the vote of
	// each.
	members  []member
	votes    []Vote
	combined CombinedDecision
	// observed is when they were observed, changes the number of changes until
	// then.
	observed time.Time
	changes  int
	// lastWake is the last wake of the target through any of them. Nil when none is
	// known.
	lastWake *v1alpha1.WakeRecord
	// busy is why some could not be evaluated. Nil when all could.
	busy error
}

// decide evaluates the triggers of all ElastiServices of a target, and makes a
// decision of the results and of everything else that is observed.
func (s *Scheduler) decide(ctx context.Context, key resources.TargetKey, maxAge time.Duration) (*round, error) {
	before, _, _ := s.snapshots(key)
	results, failures := make([][]evaluators.Result, len(before)), make([]error, len(before))
	for i := range before {
		observation := s.observe(&before[i].state)
		outsideEnabledPeriod := observation.EnabledPeriod != nil && !observation.EnabledPeriod.Contains(observation.Now)
		if before[i].deleting() || !observation.ReplicasKnown || outsideEnabledPeriod {
			continue
		}
		results[i], failures[i] = s.evaluate(ctx, before[i].elastiService(), maxAge)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	// Evaluating takes time, in which the ElastiServices may change.
	now, changes, lastWake := s.snapshots(key)
	if !slices.EqualFunc(before, now, sameSpec) {
		return nil, queries.ErrBusy
	}
	decided := &round{observed: s.clock.Now(), changes: changes, lastWake: lastWake, busy: errors.Join(failures...)}
	for i := range now {
		m := member{snapshot: now[i], dryRun: s.options.DryRun || isDryRun(now[i].elastiService())}
		m.observation = s.observe(&m.state)
		m.observation.Triggers, m.observation.Failure = results[i], m.failure
		if failures[i] == nil && !m.deleting() {
			m.decided, m.decision = true, Decide(m.observation)
		}
		decided.members = append(decided.members, m)
		decided.votes = append(decided.votes, voteOf(&m))
	}
	decided.combined = Combine(decided.votes)
	return decided, nil
}

// sameSpec reports whether two snapshots are of the same ElastiService with the same
// spec.
func sameSpec(one, other snapshot) bool {
	return one.subject == other.subject && one.elastiService().Generation == other.elastiService().Generation
}

// voteOf returns the vote of an ElastiService about its target. An ElastiService that
// is being deleted keeps the target awake until its Service needs no resolvers any more.
func voteOf(m *member) Vote {
	elastiService := m.elastiService()
	vote := Vote{
		Name:           elastiService.Name,
		Decision:       m.decision,
		Abstains:       hasConflict(elastiService),
		Pending:        !m.decided,
		DryRun:         m.dryRun,
		SleepRequested: elastiService.Status.SleepRequestedTime != nil,
		ByHand:         isByHand(&elastiService.Status) && !m.observation.requestIsStale(),
	}
	if m.deleting() {
		vote.Pending = false
		vote.Abstains = vote.Abstains || !slices.Contains(elastiService.Finalizers, v1alpha1.Finalizer)
		vote.Decision = Decision{Action: ActionNone, Reason: v1alpha1.ReasonNotReady, Message: "it is being deleted"}
	}
	return vote
}

func (m *snapshot) deleting() bool { return !m.elastiService().DeletionTimestamp.IsZero() }

// requested reports whether sleep is requested through any member, requestedByAll
// whether it is through all whose votes count.
func (r *round) requested() bool {
	return slices.ContainsFunc(r.votes, func(vote Vote) bool { return vote.SleepRequested })
}

func (r *round) requestedByAll() bool {
	return !slices.ContainsFunc(r.votes, func(vote Vote) bool { return !vote.Abstains && !vote.SleepRequested })
}

// actionOf returns what is done about one member.
func (r *round) actionOf(i int) Action {
	vote := &r.votes[i]
	switch {
	case vote.Abstains || r.members[i].deleting():
		return ActionNone
	case r.combined.Action == ActionWake && r.combined.By == i:
		return ActionWake
	case r.combined.Action == ActionWake && vote.SleepRequested, r.combined.Action == ActionKeepAwake && vote.SleepRequested:
		return ActionKeepAwake
	case r.combined.Action == ActionSleep && !vote.SleepRequested && !vote.asleep():
		return ActionSleep
	default:
		return ActionNone
	}
}

// keeper returns the vote of another member that keeps the target awake, or nil.
func (r *round) keeper(i int) *Vote {
	if by := r.combined.By; by >= 0 && by != i {
		return &r.votes[by]
	}
	return nil
}

// ConfirmIdle reports whether all ElastiServices of a target agreed within
// confirmMaxAge, on fresh data and without a change since, that it may be scaled to
// zero. Otherwise a sync is scheduled, and retry, which must not block, is called when
// it has ended. ConfirmIdle does not block.
func (s *Scheduler) ConfirmIdle(key resources.TargetKey, retry func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, ok := s.targets[key]
	if !ok || s.stopped {
		return false
	}
	if !of.confirmed.IsZero() && s.clock.Since(of.confirmed) <= confirmMaxAge {
		return true
	}
	of.waiting = retry
	s.addAfter(key, 0)
	return false
}

// record records the decision about a target.
func (s *Scheduler) record(key resources.TargetKey, round *round) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range round.members {
		if m := &round.members[i]; m.decided {
			m.subject.history, m.subject.generation = m.decision.History, m.elastiService().Generation
			action := round.actionOf(i)
			if m.dryRun {
				action = round.withoutDryRun(i).Action
			}
			s.metrics.decided(action)
		}
	}
	of, ok := s.targets[key]
	if !ok {
		return
	}
	if round.combined.Agreed && round.changes == of.changes && round.requestedByAll() {
		of.confirmed = round.observed
	}
	if round.busy == nil && of.waiting != nil {
		of.waiting()
		of.waiting = nil
	}
}
