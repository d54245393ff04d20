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
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/schedule"
)

const (
	testInterval = 30 * time.Second
	testCooldown = 15 * time.Minute
)

var (
	testNow = time.Date(2026, time.January, 7, 12, 0, 0, 0, time.UTC)

	idle    = evaluators.Result{State: evaluators.Idle, Reason: v1alpha1.ReasonBelowThreshold, Message: "below 1"}
	active  = evaluators.Result{State: evaluators.Active, Reason: v1alpha1.ReasonThresholdReached, Message: "at least 1"}
	unknown = evaluators.Result{State: evaluators.Unknown, Reason: v1alpha1.ReasonNoData, Message: "the response is empty"}
)

// idleLongEnough is an observation that leads to sleep.
func idleLongEnough() Observation {
	return Observation{
		Now:           testNow,
		Interval:      testInterval,
		Cooldown:      testCooldown,
		Created:       testNow.Add(-24 * time.Hour),
		LastWake:      testNow.Add(-2 * time.Hour),
		LastActivity:  testNow.Add(-time.Hour),
		History:       History{Observed: testNow.Add(-testInterval), IdleSince: testNow.Add(-testCooldown)},
		Triggers:      []evaluators.Result{idle, idle},
		ReplicasKnown: true,
		Replicas:      2,
	}
}

// failedUntil is a scale-down that failed, and is tried again after a time.
func failedUntil(until time.Time) failure { return failure{count: 1, cause: "denied", until: until} }

func TestDecide(t *testing.T) {
	officeHours := mustParse(t, "0 9 * * *", "8h")
	nights := mustParse(t, "0 19 * * *", "12h")
	for _, test := range []struct {
		name   string
		change func(*Observation)
		action Action
		reason string
		next   time.Duration
	}{
		{"idle for the whole cooldown", func(*Observation) {}, ActionSleep, v1alpha1.ReasonIdle, scaleDownCheck},
		{"idle, one instant too short", func(o *Observation) { o.History.IdleSince = o.History.IdleSince.Add(time.Nanosecond) }, ActionNone, v1alpha1.ReasonCoolingDown, time.Nanosecond},
		{"idle, with a long way to go", func(o *Observation) { o.History.IdleSince = o.Now.Add(-time.Minute) }, ActionNone, v1alpha1.ReasonCoolingDown, testInterval},
		{"the first sync", func(o *Observation) { o.History = History{} }, ActionNone, v1alpha1.ReasonCoolingDown, testInterval},
		{"the first sync without a cooldown", func(o *Observation) { o.History, o.Cooldown = History{}, 0 }, ActionSleep, v1alpha1.ReasonIdle, scaleDownCheck},
		{"not synced for a while", func(o *Observation) { o.History.Observed = o.Now.Add(-4 * testInterval) }, ActionNone, v1alpha1.ReasonCoolingDown, testInterval},
		{"created a moment ago", func(o *Observation) { o.Created = o.Now.Add(-time.Second) }, ActionNone, v1alpha1.ReasonCoolingDown, testInterval},
		{"woken a moment ago", func(o *Observation) { o.LastWake = o.Now.Add(-time.Second) }, ActionNone, v1alpha1.ReasonCoolingDown, testInterval},
		{"used a moment ago", func(o *Observation) { o.LastActivity = o.Now.Add(-time.Second) }, ActionNone, v1alpha1.ReasonCoolingDown, testInterval},

		{"one trigger active", func(o *Observation) { o.Triggers[1] = active }, ActionNone, v1alpha1.ReasonTriggerActive, testInterval},
		{"one trigger active, asleep", func(o *Observation) { o.Triggers[1], o.Replicas = active, 0 }, ActionWake, v1alpha1.ReasonTriggerActive, testInterval},
		{"one trigger active, on the way to sleep", func(o *Observation) { o.Triggers[1], o.SleepRequested = active, true }, ActionWake, v1alpha1.ReasonTriggerActive, testInterval},
		{"one active, one unknown, asleep", func(o *Observation) { o.Triggers, o.Replicas = []evaluators.Result{unknown, active}, 0 }, ActionWake, v1alpha1.ReasonTriggerActive, testInterval},
		{"one trigger unknown", func(o *Observation) { o.Triggers[1] = unknown }, ActionNone, v1alpha1.ReasonTriggerUnknown, testInterval},
		{"one trigger unknown, asleep", func(o *Observation) { o.Triggers[1], o.Replicas = unknown, 0 }, ActionNone, v1alpha1.ReasonAsleep, testInterval},
		{"one trigger unknown, on the way to sleep", func(o *Observation) { o.Triggers[1], o.SleepRequested = unknown, true }, ActionKeepAwake, v1alpha1.ReasonTriggerUnknown, testInterval},
		{"one trigger unknown, sleep requested by hand", func(o *Observation) { o.Triggers[1], o.SleepRequested, o.ByHand = unknown, true, true }, ActionNone, v1alpha1.ReasonSleepRequested, scaleDownCheck},
		{"one trigger active, sleep requested by hand", func(o *Observation) { o.Triggers[1], o.SleepRequested, o.ByHand = active, true, true }, ActionWake, v1alpha1.ReasonTriggerActive, testInterval},
		{"no triggers", func(o *Observation) { o.Triggers = nil }, ActionNone, v1alpha1.ReasonNoTriggers, 0},
		{"no triggers, asleep", func(o *Observation) { o.Triggers, o.Replicas = nil, 0 }, ActionNone, v1alpha1.ReasonAsleep, 0},
		{"no triggers, sleep requested", func(o *Observation) { o.Triggers, o.SleepRequested, o.ByHand = nil, true, true }, ActionNone, v1alpha1.ReasonSleepRequested, scaleDownCheck},

		{"requests are held, no cooldown", func(o *Observation) { o.TrafficOpen, o.Cooldown = true, 0 }, ActionNone, v1alpha1.ReasonTraffic, testInterval},
		{"requests are held, on the way to sleep", func(o *Observation) { o.TrafficOpen, o.SleepRequested = true, true }, ActionKeepAwake, v1alpha1.ReasonTraffic, testInterval},
		{"requests are held, sleep requested by hand", func(o *Observation) { o.TrafficOpen, o.SleepRequested, o.ByHand = true, true, true }, ActionNone, v1alpha1.ReasonSleepRequested, scaleDownCheck},
		{"requests are held, asleep", func(o *Observation) { o.TrafficOpen, o.Replicas = true, 0 }, ActionNone, v1alpha1.ReasonAsleep, testInterval},

		{"starting for longer than the cooldown", func(o *Observation) { o.Cooldown, o.UnreadySince = time.Minute, o.Now.Add(-2*time.Minute) }, ActionNone, v1alpha1.ReasonStarting, testInterval},
		{"ready for less than the cooldown", func(o *Observation) { o.ReadySince = o.Now.Add(-testCooldown + 1) }, ActionNone, v1alpha1.ReasonCoolingDown, 1},
		{"never ready", func(o *Observation) { o.UnreadySince = o.Now.Add(-startTimeout) }, ActionSleep, v1alpha1.ReasonIdle, scaleDownCheck},

		{"asleep", func(o *Observation) { o.Replicas = 0 }, ActionNone, v1alpha1.ReasonAsleep, testInterval},
		{"on the way to sleep", func(o *Observation) { o.SleepRequested, o.DecidedToSleep = true, o.History.IdleSince }, ActionNone, v1alpha1.ReasonSleepRequested, scaleDownCheck},
		{"no resolver", func(o *Observation) { o.Obstacle = "no resolver is ready" }, ActionNone, v1alpha1.ReasonNotReady, testInterval},
		{"no resolver, asleep and active", func(o *Observation) {
			o.Obstacle, o.Replicas, o.Triggers = "no resolver is ready", 0, []evaluators.Result{active}
		}, ActionWake, v1alpha1.ReasonTriggerActive, testInterval},
		{"a failed scale-down a moment ago", func(o *Observation) { o.Failure = failedUntil(o.Now.Add(time.Hour)) }, ActionNone, v1alpha1.ReasonBackingOff, testInterval},
		{"a failed scale-down, its pause ends soon", func(o *Observation) { o.Failure = failedUntil(o.Now.Add(time.Second)) }, ActionNone, v1alpha1.ReasonBackingOff, time.Second},
		{"a failed scale-down, its pause is over", func(o *Observation) { o.Failure = failedUntil(o.Now) }, ActionSleep, v1alpha1.ReasonIdle, scaleDownCheck},
		{"a failed scale-down, used since", func(o *Observation) {
			o.Failure, o.LastActivity = failedUntil(o.Now), o.Now.Add(-time.Second)
		}, ActionNone, v1alpha1.ReasonCoolingDown, testInterval},
		{"a failed scale-down, in use", func(o *Observation) {
			o.Failure, o.Triggers[0] = failedUntil(o.Now.Add(time.Hour)), active
		}, ActionNone, v1alpha1.ReasonTriggerActive, testInterval},
		{"a failed scale-down, sleep requested by hand", func(o *Observation) {
			o.Failure, o.SleepRequested, o.ByHand = failedUntil(o.Now.Add(time.Hour)), true, true
		}, ActionNone, v1alpha1.ReasonSleepRequested, scaleDownCheck},
		{"a failed scale-down, no triggers", func(o *Observation) {
			o.Failure, o.Triggers = failedUntil(o.Now.Add(time.Hour)), nil
		}, ActionNone, v1alpha1.ReasonNoTriggers, testInterval},
		{"target unknown", func(o *Observation) { o.ReplicasKnown = false }, ActionNone, v1alpha1.ReasonTargetUnknown, testInterval},
		{"target unknown, active", func(o *Observation) { o.ReplicasKnown, o.Replicas, o.Triggers = false, 0, []evaluators.Result{active} }, ActionNone, v1alpha1.ReasonTargetUnknown, testInterval},

		{"inside the enabled period", func(o *Observation) { o.EnabledPeriod = officeHours }, ActionSleep, v1alpha1.ReasonIdle, scaleDownCheck},
		{"outside the enabled period", func(o *Observation) { o.EnabledPeriod = nights }, ActionNone, v1alpha1.ReasonOutsideEnabledPeriod, testInterval},
		{"outside the enabled period, asleep", func(o *Observation) { o.EnabledPeriod, o.Replicas = nights, 0 }, ActionWake, v1alpha1.ReasonOutsideEnabledPeriod, testInterval},
		{"outside the enabled period, nothing known of triggers", func(o *Observation) {
			o.EnabledPeriod, o.Replicas, o.Triggers = nights, 0, nil
		}, ActionWake, v1alpha1.ReasonOutsideEnabledPeriod, testInterval},
		{"outside the enabled period, on the way to sleep", func(o *Observation) { o.EnabledPeriod, o.SleepRequested = nights, true }, ActionWake, v1alpha1.ReasonOutsideEnabledPeriod, testInterval},
		{"inside the enabled period, no triggers, asleep", func(o *Observation) {
			o.EnabledPeriod, o.Replicas, o.Triggers = officeHours, 0, nil
		}, ActionNone, v1alpha1.ReasonAsleep, testInterval},
	} {
		t.Run(test.name, func(t *testing.T) {
			observation := idleLongEnough()
			test.change(&observation)
			decision := Decide(observation)
			if decision.Action != test.action || decision.Reason != test.reason || decision.NextCheck != test.next {
				t.Errorf("got %s because of %s, again in %s, want %s because of %s, again in %s",
					decision.Action, decision.Reason, decision.NextCheck, test.action, test.reason, test.next)
			}
			if decision.Message == "" {
				t.Error("the decision has no message")
			}
			saysWhy := decision.Action == ActionNone && decision.Reason != v1alpha1.ReasonTriggerActive
			if strings.Contains(decision.Message, "denied") != (observation.Failure.count > 0 && saysWhy) {
				t.Errorf("the message about a failed scale-down: %s", decision.Message)
			}
			if decision.History.Observed != observation.Now {
				t.Errorf("the history says %s, want %s", decision.History.Observed, observation.Now)
			}
		})
	}
}

func mustParse(t *testing.T, expression, duration string) *schedule.Period {
	t.Helper()
	period, err := schedule.Parse(expression, duration, "UTC")
	if err != nil {
		t.Fatal(err)
	}
	return period
}

// syncStep is one sync of a simulated target.
type syncStep struct {
	after    time.Duration
	triggers []evaluators.Result
}

// simulate decides at each sync until the target sleeps, and returns the time
// of that, or zero.
func simulate(syncs func(yield func(syncStep) bool)) time.Time {
	observation := Observation{Now: testNow, Created: testNow, Interval: testInterval, Cooldown: testCooldown, ReplicasKnown: true, Replicas: 1}
	for step := range syncs {
		observation.Now = observation.Now.Add(step.after)
		observation.Triggers = step.triggers
		decision := Decide(observation)
		if decision.Action == ActionSleep {
			return observation.Now
		}
		observation.History = decision.History
	}
	return time.Time{}
}

// The target does not sleep as long as each cooldown has a sync with an unknown
// trigger, or too long a time without a sync.
func TestMissingDataNeverSleepsATarget(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		slept := simulate(func(yield func(syncStep) bool) {
			var sinceMissing time.Duration
			for range 2000 {
				next := syncStep{after: time.Duration(random.Int64N(int64(2 * testInterval))), triggers: []evaluators.Result{idle, idle}}
				switch {
				case sinceMissing+next.after >= testCooldown:
					if random.IntN(2) == 0 {
						next.triggers[random.IntN(2)] = unknown
					} else {
						next.after = maxMissedSyncs*testInterval + 1
					}
				case random.IntN(50) == 0:
					next.triggers[random.IntN(2)] = unknown
				case random.IntN(50) == 0:
					next.triggers[random.IntN(2)] = active
				}
				sinceMissing += next.after
				if firstWith(next.triggers, evaluators.Unknown) != nil || next.after > maxMissedSyncs*testInterval {
					sinceMissing = 0
				}
				if !yield(next) {
					return
				}
			}
		})
		if !slept.IsZero() {
			t.Fatalf("seed %d: the target sleeps at %s", seed, slept)
		}
	}
}

// A target sleeps only if it was idle in each sync of the last cooldown, and does so
// as soon as that is the case.
func TestSleepsAfterAWholeCooldownOfIdleSyncs(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 2))
		now := testNow
		var quietSince time.Time
		slept := simulate(func(yield func(syncStep) bool) {
			for {
				next := syncStep{after: time.Duration(random.Int64N(int64(testInterval))), triggers: []evaluators.Result{idle}}
				now = now.Add(next.after)
				if random.IntN(30) == 0 {
					next.triggers = []evaluators.Result{[]evaluators.Result{active, unknown}[random.IntN(2)]}
				}
				wasIdle := next.triggers[0].State == evaluators.Idle
				if !wasIdle {
					quietSince = time.Time{}
				} else if quietSince.IsZero() {
					quietSince = now
				}
				due := wasIdle && now.Sub(quietSince) >= testCooldown
				proceed := yield(next)
				if due == proceed {
					t.Errorf("seed %d: at %s, idle since %s: sleeps %v, want %v", seed, now, quietSince, !proceed, due)
				}
				if !proceed {
					return
				}
			}
		})
		if slept.IsZero() {
			t.Fatalf("seed %d: the target never sleeps", seed)
		}
	}
}

// The cooldown begins with the last request that a resolver saw, not with the sync
// that observed it.
func TestARequestEachMinuteNeverSleepsATarget(t *testing.T) {
	observation := Observation{Now: testNow, Created: testNow, Interval: testInterval, Cooldown: 61 * time.Second, ReplicasKnown: true, Replicas: 1, Triggers: []evaluators.Result{idle}}
	random := rand.New(rand.NewPCG(1, 3))
	for observation.Now.Before(testNow.Add(24 * time.Hour)) {
		observation.Now = observation.Now.Add(time.Duration(random.Int64N(int64(testInterval))))
		observation.LastActivity = observation.Now.Truncate(time.Minute)
		decision := Decide(observation)
		if decision.Action == ActionSleep {
			t.Fatalf("sleeps at %s, %s after a request", observation.Now, observation.Now.Sub(observation.LastActivity))
		}
		observation.History = decision.History
	}
}

// A request for sleep that what woke the target could not remove does not override the wake,
// whichever client requested it.
func TestARequestThatIsOlderThanTheWakeDoesNotAgree(t *testing.T) {
	woken := testNow.Add(-5 * time.Second)
	for name, test := range map[string]struct {
		requested time.Time
		agrees    bool
	}{
		"before the wake": {woken.Add(-time.Minute), false},
		"in the second of the wake, according to a time in whole seconds": {woken.Add(-time.Second), true},
		"after the wake": {woken.Add(time.Second), true},
	} {
		for _, byHand := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, by hand: %t", name, byHand), func(t *testing.T) {
				elastiService := &v1alpha1.ElastiService{}
				elastiService.Status.SleepRequestedTime, elastiService.Status.SleepRequestedBy = ptr.To(metav1.NewTime(test.requested)), v1alpha1.CallerServer
				if byHand {
					elastiService.Status.SleepRequestedBy = "user alice"
				}
				m := &member{snapshot: snapshot{state: subject{elastiService: elastiService}}, decided: true}
				m.observation = Observation{
					Now: testNow, Interval: testInterval, Cooldown: testCooldown, Created: testNow.Add(-time.Hour),
					LastWake: woken, ReadySince: woken, ReplicasKnown: true, Replicas: 2,
					SleepRequested: true, SleepRequestedTime: test.requested, ByHand: byHand, DecidedToSleep: testNow,
					Triggers: []evaluators.Result{idle},
				}
				m.decision = Decide(m.observation)
				combined := Combine([]Vote{voteOf(m)})
				if combined.Agreed != test.agrees || (combined.Action == ActionKeepAwake) == test.agrees {
					t.Errorf("the combined decision is %+v (%s)", combined, m.decision.Message)
				}
			})
		}
	}
}
