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
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const (
	eventActionSleep = "Sleep"
	eventActionWake  = "Wake"
)

func isDryRun(elastiService *v1alpha1.ElastiService) bool {
	return elastiService.Annotations[v1alpha1.AnnotationDryRun] == "true"
}

// act carries out a decision about a target, for as many of its ElastiServices as it
// can.
func (s *Scheduler) act(ctx context.Context, round *round) error {
	var problems []error
	for i := range round.members {
		m := &round.members[i]
		action := round.actionOf(i)
		if m.dryRun && !round.votes[i].Abstains && !m.deleting() {
			s.announce(m, round.withoutDryRun(i))
		} else {
			s.setAnnounced(m, ActionNone)
		}
		if err := s.actOn(ctx, round, i, action); err != nil {
			problems = append(problems, fmt.Errorf("ElastiService %s: %w", m.key, err))
		}
	}
	return errors.Join(problems...)
}

// actOn carries out a decision about one ElastiService of a target.
func (s *Scheduler) actOn(ctx context.Context, round *round, i int, action Action) error {
	m, logger := &round.members[i], klog.FromContext(ctx).V(2)
	elastiService, message := m.elastiService(), round.because(i)
	switch action {
	case ActionSleep:
		s.setRequested(m)
		if err := s.options.Sleeper.Sleep(ctx, elastiService); err != nil {
			m.observation.Failure = s.requestFailed(m, err)
			return err
		}
		logger.Info("Requested sleep of a target", "elastiService", m.key)
		s.event(elastiService, v1alpha1.ReasonSleepRequested, eventActionSleep, message)
	case ActionKeepAwake:
		if err := s.options.Sleeper.KeepAwake(ctx, elastiService); err != nil {
			return err
		}
		logger.Info("Canceled the sleep request of a target", "elastiService", m.key)
		s.event(elastiService, v1alpha1.ReasonSleepCalledOff, eventActionSleep, "the target stays awake: "+message)
	case ActionWake:
		if err := s.options.Waker.Wake(ctx, elastiService, message); err != nil {
			return err
		}
		logger.Info("Woke a target", "elastiService", m.key, "reason", m.decision.Reason)
		s.event(elastiService, v1alpha1.ReasonWakeRequested, eventActionWake, message)
	}
	return nil
}

// because returns for users the reason of what is done about a member.
func (r *round) because(i int) string {
	if keeper := r.keeper(i); keeper != nil {
		return keptAwakeBy(keeper.Name, keeper.Decision.Message)
	}
	if r.combined.Action == ActionSleep && r.members[i].decision.Action != ActionSleep {
		return requestedThroughOther
	}
	return r.members[i].decision.Message
}

// setRequested records that the scheduler requests sleep, by the decision about this
// member or by that about another one. For a target that stays awake all the same, the
// request is repeated after another cooldown.
func (s *Scheduler) setRequested(m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.subject.history.IdleSince = m.observation.Now
	if m.decision.Action == ActionSleep {
		m.subject.decidedToSleep = m.observation.Now
	}
}

// requestFailed records that sleep could not be requested, and returns what is known of
// failures of the target.
func (s *Scheduler) requestFailed(m *member, err error) failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recordFailure(m.subject.target, err.Error())
}

func (s *Scheduler) setAnnounced(m *member, action Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.subject.announced = action
}

// withoutDryRun returns the decision about a member of a dry run as it would be if
// no member were in a dry run.
func (r *round) withoutDryRun(i int) Decision {
	decision := r.members[i].decision
	votes := slices.Clone(r.votes)
	for j := range votes {
		votes[j].DryRun = false
	}
	combined := Combine(votes)
	if decision.Action == ActionSleep && combined.By >= 0 && combined.By != i {
		keeper := &votes[combined.By]
		return Decision{Action: ActionNone, Reason: v1alpha1.ReasonSharedTarget, Message: keptAwakeBy(keeper.Name, keeper.Decision.Message)}
	}
	return decision
}

// announce records an Event about what a dry run would do, once until that changes.
func (s *Scheduler) announce(m *member, decision Decision) {
	if decision.Action == m.state.announced {
		return
	}
	s.setAnnounced(m, decision.Action)
	switch decision.Action {
	case ActionSleep:
		s.event(m.elastiService(), v1alpha1.ReasonWouldSleep, eventActionSleep, "dry run: "+decision.Message)
	case ActionWake:
		s.event(m.elastiService(), v1alpha1.ReasonWouldWake, eventActionWake, "dry run: "+decision.Message)
	}
}

func (s *Scheduler) event(elastiService *v1alpha1.ElastiService, reason, action, message string) {
	s.options.Recorder.Eventf(v1alpha1.ReferenceTo(elastiService), nil, corev1.EventTypeNormal, reason, action, "%s", message)
}
