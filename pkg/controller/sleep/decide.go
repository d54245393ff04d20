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

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/schedule"
)

// Action is what is to be done with a target. Its values are those of the label
// "action" of metrics.
type Action string

const (
	// ActionNone: leave the target as it is.
	ActionNone Action = "none"
	// ActionSleep: put the target to sleep.
	ActionSleep Action = "sleep"
	// ActionKeepAwake: cancel the request for sleep of a target that is still up.
	ActionKeepAwake Action = "keepAwake"
	// ActionWake: wake the target.
	ActionWake Action = "wake"
)

// actions are all values of Action.
var actions = [...]Action{ActionNone, ActionSleep, ActionKeepAwake, ActionWake}

// scaleDownCheck is the time between two evaluations while a target is being
// scaled down, to keep it awake when it is used after all. A scale-down takes a
// little longer.
const scaleDownCheck = 2 * time.Second

// startTimeout is how long a target of which no pod is ready counts as starting. It
// is the default of a Deployment's spec.progressDeadlineSeconds: a target that is not
// ready by then is not kept awake for its start any more.
const startTimeout = 10 * time.Minute

// maxMissedSyncs is how many intervals may pass between two syncs of an
// ElastiService before the time between them counts as missing data.
const maxMissedSyncs = 3

// Observation is everything that a decision depends on. Unknown times are zero.
type Observation struct {
	// Now is the time of the observation.
	Now time.Time
	// Interval is the time between two syncs.
	Interval time.Duration

	// Cooldown is how long every trigger must be idle.
	Cooldown time.Duration
	// EnabledPeriod is when the target may sleep. Nil means at any time.
	EnabledPeriod *schedule.Period

	// Created is when the ElastiService was created.
	Created time.Time
	// LastWake is when the target was last woken.
	LastWake time.Time
	// LastActivity is when the target was last known to be used.
	LastActivity time.Time
	// TrafficSeen is when resolvers last saw traffic, or may not have seen it.
	TrafficSeen time.Time
	// TrafficOpen is true while resolvers hold or forward requests or connections,
	// TrafficOpenUnknown while one may, whose reports are late.
	TrafficOpen, TrafficOpenUnknown bool
	// ReadySince is since when the target has had a ready pod, as far as that is
	// known.
	ReadySince time.Time
	// UnreadySince is since when no pod of the target has been ready. Zero while
	// one is.
	UnreadySince time.Time
	// History is that of the previous decision.
	History History

	// Triggers are the results of the triggers, in their order. They are not
	// evaluated outside of the enabled period.
	Triggers []evaluators.Result
	// ReplicasKnown is true when Replicas is the number in the spec of the target's
	// scale.
	ReplicasKnown bool
	Replicas      int32
	// SleepRequested is true while the target is being put to sleep, SleepRequestedTime
	// when that was requested.
	SleepRequested     bool
	SleepRequestedTime time.Time
	// ByHand is true when a user requested that, which overrides unknown triggers and
	// the cooldown.
	ByHand bool
	// DecidedToSleep is when the scheduler decided that, after a whole cooldown. Zero when
	// it did not, or when that is not known.
	DecidedToSleep time.Time
	// Obstacle says why the target could not be put to sleep without losing
	// requests, such as that no resolver is ready. Empty when it could.
	Obstacle string
	// Conflict is the state of a conflict with others that scale the target up.
	Conflict conflict
	// Failure is the state of scale-downs of the target that failed.
	Failure failure
}

// History is the state that one decision leaves for the next.
type History struct {
	// Observed is when the decision was made.
	Observed time.Time
	// IdleSince is the first of the observations since which every trigger was
	// idle without exception. Zero when one was not.
	IdleSince time.Time
	// LastActive is when a trigger was last active. Zero if none was.
	LastActive time.Time
}

// Decision is what is to be done and why.
type Decision struct {
	Action Action
	// Reason is one of the reasons of v1alpha1.
	Reason string
	// Message is a sentence for the user.
	Message string
	// NextCheck is how long until the next sync. Zero means that only a change of the
	// ElastiService leads to another decision.
	NextCheck time.Duration
	// History is for the next observation.
	History History
}

// Decide decides what is to be done with a target that has one ElastiService. It never
// scales for lack of data, and puts the target to sleep only after a whole cooldown in
// which every evaluation of every trigger was idle: an evaluation that failed, or that
// was missed, starts the cooldown again.
func Decide(o Observation) Decision {
	o.SleepRequested = o.SleepRequested && !o.requestIsStale()
	history := History{Observed: o.Now, LastActive: o.History.LastActive}
	if firstWith(o.Triggers, evaluators.Active) != nil {
		history.LastActive = o.Now
	}
	if decision := decideByUse(o); decision != nil {
		decision.History = history
		return *decision
	}
	history.IdleSince = o.Now
	if before := o.History; !before.IdleSince.IsZero() && o.Now.Sub(before.Observed) <= maxMissedSyncs*o.Interval {
		history.IdleSince = before.IdleSince
	}
	decision := decideIdle(o, history.IdleSince)
	decision.History = history
	return decision
}

// requestIsStale reports whether the target was woken after sleep was requested. What woke
// it could not remove the request, such as while the storage accepts no writes: it counts
// as if it were removed. Its time is in whole seconds.
func (o *Observation) requestIsStale() bool {
	return !o.SleepRequestedTime.IsZero() && o.LastWake.After(o.SleepRequestedTime.Add(time.Second))
}

// requestHolds reports whether sleep is requested by a decision that would be made again:
// the cooldown has not begun anew since. Traffic that resolvers see only while they are
// put in the path does not count.
func (o *Observation) requestHolds(idleSince time.Time) bool {
	return o.SleepRequested && !o.DecidedToSleep.IsZero() && !latest(idleSince, o.ReadySince, o.UnreadySince).After(o.DecidedToSleep)
}

// decideByUse decides about a target that is in use, or whose use is unknown. It
// returns nil for one that is idle.
func decideByUse(o Observation) *Decision {
	none := func(reason, message string, args ...any) *Decision {
		return &Decision{Action: ActionNone, Reason: reason, Message: fmt.Sprintf(message, args...), NextCheck: o.Interval}
	}
	awake := func(reason, message string) *Decision {
		decision := none(reason, "%s", message)
		if o.Replicas == 0 || o.SleepRequested {
			decision.Action = ActionWake
		}
		return decision
	}
	// stays keeps a target up, and does not wake it.
	stays := func(decision *Decision) *Decision {
		if o.SleepRequested && o.Replicas > 0 {
			decision.Action = ActionKeepAwake
		}
		return decision
	}
	active, unknown := firstWith(o.Triggers, evaluators.Active), firstWith(o.Triggers, evaluators.Unknown)
	switch {
	case !o.ReplicasKnown:
		return none(v1alpha1.ReasonTargetUnknown, "the scale of the target is not known")
	case o.EnabledPeriod != nil && !o.EnabledPeriod.Contains(o.Now):
		return awake(v1alpha1.ReasonOutsideEnabledPeriod, "outside of enabledPeriod the target is kept awake")
	case active != nil:
		return awake(v1alpha1.ReasonTriggerActive, "a trigger is active: "+active.Message)
	case o.SleepRequested && o.ByHand:
		return sleepRequested(o)
	case o.TrafficOpen && o.Replicas > 0:
		return stays(none(v1alpha1.ReasonTraffic, "resolvers hold or forward requests or connections"))
	case o.TrafficOpenUnknown && o.Replicas > 0:
		return stays(none(v1alpha1.ReasonNotReported, "a resolver that held or forwarded requests or connections has not reported in time whether it still does"))
	case len(o.Triggers) == 0 && o.Replicas == 0:
		return withoutTriggers(o, none(v1alpha1.ReasonAsleep, "the target sleeps"))
	case len(o.Triggers) == 0:
		return withoutTriggers(o, none(v1alpha1.ReasonNoTriggers, "without triggers the target is not put to sleep%s", o.Failure.note()))
	case unknown != nil && o.Replicas == 0:
		return none(v1alpha1.ReasonAsleep, "the target sleeps")
	case unknown != nil:
		return stays(none(v1alpha1.ReasonTriggerUnknown, "it is not known from a trigger whether the target is idle: %s", unknown.Message))
	default:
		return nil
	}
}

// withoutTriggers returns a decision that holds until a change, or the end of an
// enabled period. The report of a failed scale-down may have to wait.
func withoutTriggers(o Observation, decision *Decision) *Decision {
	if o.EnabledPeriod == nil && o.Failure.count == 0 {
		decision.NextCheck = 0
	}
	return decision
}

func sleepRequested(o Observation) *Decision {
	message := "the target is being put to sleep" + o.Failure.note()
	if o.Obstacle != "" {
		message = "sleep of the target is requested, but it cannot be put to sleep: " + o.Obstacle
	}
	return &Decision{
		Action:    ActionNone,
		Reason:    v1alpha1.ReasonSleepRequested,
		Message:   message,
		NextCheck: min(o.Interval, scaleDownCheck),
	}
}

// decideIdle decides about a target whose triggers have all been idle since a time.
func decideIdle(o Observation, idleSince time.Time) Decision {
	none := func(next time.Duration, reason, message string, args ...any) Decision {
		return Decision{Action: ActionNone, Reason: reason, Message: fmt.Sprintf(message, args...), NextCheck: min(o.Interval, next)}
	}
	quietSince := latest(idleSince, o.Created, o.LastWake, o.LastActivity, o.TrafficSeen, o.ReadySince)
	remaining := o.Cooldown - o.Now.Sub(quietSince)
	switch {
	case o.requestHolds(idleSince):
		return *sleepRequested(o)
	case o.Replicas == 0:
		return none(o.Interval, v1alpha1.ReasonAsleep, "the target sleeps")
	case starting(o) > 0:
		return none(starting(o), v1alpha1.ReasonStarting, "no pod of the target is ready yet: the cooldown of %s begins when one is, or after %s", o.Cooldown, startTimeout)
	case o.Failure.pauses(o.Now):
		return none(o.Failure.until.Sub(o.Now), v1alpha1.ReasonBackingOff, "%s", o.Failure.message())
	case remaining > 0:
		return none(remaining, v1alpha1.ReasonCoolingDown, "every trigger is idle, but not yet for the cooldown of %s%s", o.Cooldown, o.Failure.note())
	case o.Conflict.active() && o.Conflict.until.After(o.Now):
		return none(o.Conflict.until.Sub(o.Now), v1alpha1.ReasonBackingOff, "the target is idle, but %s scales it up each time that it was put to sleep", o.Conflict.by)
	case o.Obstacle != "":
		return none(o.Interval, v1alpha1.ReasonNotReady, "the target is idle, but cannot be put to sleep: %s", o.Obstacle)
	default:
		return Decision{
			Action:    ActionSleep,
			Reason:    v1alpha1.ReasonIdle,
			Message:   fmt.Sprintf("every trigger has been idle for %s", o.Cooldown),
			NextCheck: min(o.Interval, scaleDownCheck),
		}
	}
}

// starting returns for how long a target still counts as starting. It is not
// positive when the target does not start.
func starting(o Observation) time.Duration {
	if o.UnreadySince.IsZero() {
		return 0
	}
	return startTimeout - o.Now.Sub(latest(o.UnreadySince, o.LastWake))
}

func firstWith(results []evaluators.Result, state evaluators.State) *evaluators.Result {
	for i := range results {
		if results[i].State == state {
			return &results[i]
		}
	}
	return nil
}

func latest(times ...time.Time) time.Time {
	var last time.Time
	for _, t := range times {
		if t.After(last) {
			last = t
		}
	}
	return last
}
