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
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// says returns a vote for an action with a reason.
func says(action Action, reason string) Vote {
	return Vote{Name: reason, Decision: Decision{Action: action, Reason: reason}}
}

// requested returns the same vote while sleep is requested.
func requested(vote Vote) Vote {
	vote.SleepRequested = true
	return vote
}

func requestedByHand() Vote {
	vote := requested(says(ActionNone, v1alpha1.ReasonSleepRequested))
	vote.ByHand = true
	return vote
}

func TestCombine(t *testing.T) {
	var (
		idle        = says(ActionSleep, v1alpha1.ReasonIdle)
		asleep      = says(ActionNone, v1alpha1.ReasonAsleep)
		cooling     = says(ActionNone, v1alpha1.ReasonCoolingDown)
		active      = says(ActionNone, v1alpha1.ReasonTriggerActive)
		wakes       = says(ActionWake, v1alpha1.ReasonTriggerActive)
		unknown     = says(ActionNone, v1alpha1.ReasonTriggerUnknown)
		notReady    = says(ActionNone, v1alpha1.ReasonNotReady)
		starting    = says(ActionNone, v1alpha1.ReasonStarting)
		noTriggers  = says(ActionNone, v1alpha1.ReasonNoTriggers)
		scalingDown = requested(says(ActionNone, v1alpha1.ReasonSleepRequested))
		turned      = requested(says(ActionKeepAwake, v1alpha1.ReasonTriggerUnknown))
		byHand      = requestedByHand()
		conflicting = Vote{Abstains: true, Decision: Decision{Reason: v1alpha1.ReasonTargetUnknown}}
		busy        = Vote{Pending: true}
		dryIdle     = Vote{DryRun: true, Decision: idle.Decision}
		dryWakes    = Vote{DryRun: true, Decision: wakes.Decision}
	)
	for name, test := range map[string]struct {
		votes  []Vote
		action Action
		by     int
		agreed bool
	}{
		"no ElastiService":                                  {nil, ActionNone, -1, false},
		"one, idle":                                         {[]Vote{idle}, ActionSleep, -1, true},
		"one, used":                                         {[]Vote{active}, ActionNone, 0, false},
		"all idle":                                          {[]Vote{idle, idle}, ActionSleep, -1, true},
		"one idle, one used":                                {[]Vote{idle, active}, ActionNone, 1, false},
		"one idle, one cooling down":                        {[]Vote{cooling, idle}, ActionNone, 0, false},
		"one idle, one unknown":                             {[]Vote{idle, unknown}, ActionNone, 1, false},
		"one idle, one that is not ready":                   {[]Vote{idle, notReady}, ActionNone, 1, false},
		"one idle, one without triggers":                    {[]Vote{idle, noTriggers}, ActionNone, 1, false},
		"one idle, one that is busy":                        {[]Vote{idle, busy}, ActionNone, -1, false},
		"one idle, one that abstains":                       {[]Vote{conflicting, idle}, ActionSleep, -1, true},
		"only one that abstains":                            {[]Vote{conflicting}, ActionNone, -1, false},
		"requested of one, not yet of the other":            {[]Vote{scalingDown, idle}, ActionSleep, -1, true},
		"requested of all":                                  {[]Vote{scalingDown, scalingDown}, ActionNone, -1, true},
		"requested of all, one used":                        {[]Vote{scalingDown, requested(wakes)}, ActionWake, 1, false},
		"requested of all, one becomes unknown":             {[]Vote{turned, scalingDown}, ActionKeepAwake, 0, false},
		"requested of one, the other used":                  {[]Vote{scalingDown, active}, ActionKeepAwake, 1, false},
		"requested of one, a new one is not ready":          {[]Vote{scalingDown, notReady}, ActionKeepAwake, 1, false},
		"requested of all, one is busy":                     {[]Vote{scalingDown, requested(busy)}, ActionNone, -1, false},
		"asleep":                                            {[]Vote{asleep, asleep}, ActionNone, -1, true},
		"asleep, one wakes it":                              {[]Vote{asleep, wakes}, ActionWake, 1, false},
		"asleep, one wakes it while another is busy":        {[]Vote{busy, wakes}, ActionWake, 1, false},
		"asleep, one unknown":                               {[]Vote{asleep, asleep}, ActionNone, -1, true},
		"by hand, alone":                                    {[]Vote{byHand}, ActionNone, -1, true},
		"by hand, the other cools down":                     {[]Vote{byHand, cooling}, ActionSleep, -1, true},
		"by hand, the other starts":                         {[]Vote{byHand, starting}, ActionSleep, -1, true},
		"by hand, the other has no triggers":                {[]Vote{byHand, noTriggers}, ActionSleep, -1, true},
		"by hand, the other is used":                        {[]Vote{byHand, active}, ActionKeepAwake, 1, false},
		"by hand, the other unknown":                        {[]Vote{byHand, unknown}, ActionKeepAwake, 1, false},
		"by hand, the other is busy":                        {[]Vote{byHand, busy}, ActionNone, -1, false},
		"by hand through one that abstains":                 {[]Vote{{Abstains: true, SleepRequested: true, ByHand: true}, cooling}, ActionNone, 1, false},
		"one idle, the other idle in a dry run":             {[]Vote{idle, dryIdle}, ActionNone, 1, false},
		"asleep, one in a dry run would wake it":            {[]Vote{asleep, dryWakes}, ActionNone, 1, false},
		"by hand, the other in a dry run":                   {[]Vote{byHand, dryIdle}, ActionSleep, -1, true},
		"the watch of one is behind: it still seems to run": {[]Vote{asleep, idle}, ActionSleep, -1, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got, want := Combine(test.votes), (CombinedDecision{test.action, test.by, test.agreed}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// Whatever the other votes are, a target never sleeps while one ElastiService that
// does not abstain disagrees.
func TestCombineNeverSleepsAgainstOne(t *testing.T) {
	against := []Vote{
		says(ActionNone, v1alpha1.ReasonTriggerActive), says(ActionWake, v1alpha1.ReasonTriggerActive), says(ActionNone, v1alpha1.ReasonTriggerUnknown),
		says(ActionNone, v1alpha1.ReasonTraffic), says(ActionNone, v1alpha1.ReasonOutsideEnabledPeriod), says(ActionNone, v1alpha1.ReasonNotReady),
		says(ActionNone, v1alpha1.ReasonTargetUnknown), {Pending: true},
	}
	others := []Vote{says(ActionSleep, v1alpha1.ReasonIdle), says(ActionNone, v1alpha1.ReasonAsleep), requested(says(ActionNone, v1alpha1.ReasonSleepRequested)), requestedByHand(), {Abstains: true}}
	for _, vote := range against {
		for _, one := range others {
			for _, other := range others {
				for _, votes := range [][]Vote{{vote, one, other}, {one, vote, other}, {one, other, requested(vote)}} {
					if combined := Combine(votes); combined.Agreed || combined.Action == ActionSleep {
						t.Errorf("%+v leads to %+v", votes, combined)
					}
				}
			}
		}
	}
}

func TestTimesInTheFutureCountAsFirstSeen(t *testing.T) {
	future := testNow.Add(time.Hour)
	seen := &v1alpha1.ElastiService{}
	seen.Status.LastActivityTime = ptr.To(metav1.NewTime(future))
	seen.Status.LastScaledUpTime = ptr.To(metav1.NewTime(testNow.Add(-time.Hour)))
	seen.Status.Activity = []v1alpha1.ResolverActivity{{Resolver: "a", ReportTime: metav1.NewMicroTime(future), LastRequestTime: ptr.To(metav1.NewMicroTime(future))}}

	first := boundTimes(seen, nil, nil, testNow)
	if got := first.Status.LastActivityTime.Time; !got.Equal(testNow) {
		t.Errorf("the last activity counts as of %s, want %s", got, testNow)
	}
	if got := first.Status.LastScaledUpTime; !got.Equal(seen.Status.LastScaledUpTime) {
		t.Errorf("a time in the past became %s", got)
	}
	if !seen.Status.LastActivityTime.Time.Equal(future) {
		t.Error("what was watched was modified")
	}

	// Another change does not make it a new activity.
	later := testNow.Add(10 * time.Minute)
	changed := seen.DeepCopy()
	changed.Status.Replicas = 5
	changed.Status.Activity = append([]v1alpha1.ResolverActivity{{Resolver: "b", ReportTime: metav1.NewMicroTime(later)}}, changed.Status.Activity...)
	second := boundTimes(changed, seen, first, later)
	for what, got := range map[string]time.Time{
		"activity": second.Status.LastActivityTime.Time,
		"report":   second.Status.Activity[1].ReportTime.Time,
		"request":  second.Status.Activity[1].LastRequestTime.Time,
	} {
		if !got.Equal(testNow) {
			t.Errorf("after another change the last %s counts as of %s, want %s", what, got, testNow)
		}
	}
	// Nor does the clock when it comes to that time.
	third := boundTimes(changed, seen, first, future.Add(time.Minute))
	if got := third.Status.LastActivityTime.Time; !got.Equal(testNow) {
		t.Errorf("once it is not in the future any more the last activity counts as of %s, want %s", got, testNow)
	}
	past := changed.DeepCopy()
	past.Status.LastActivityTime, past.Status.Activity = ptr.To(metav1.NewTime(later)), nil
	if boundTimes(past, seen, first, future) != past {
		t.Error("an ElastiService without a time that is bounded was copied")
	}
}

// Each time that a decision depends on is bounded, whichever of them is ahead.
func TestEachTimeInTheFutureIsBounded(t *testing.T) {
	future, later := testNow.Add(time.Hour), testNow.Add(10*time.Minute)
	atTime := func(field func(*v1alpha1.ElastiServiceStatus) **metav1.Time) func(*v1alpha1.ElastiService) *time.Time {
		return func(elastiService *v1alpha1.ElastiService) *time.Time {
			at := field(&elastiService.Status)
			if *at == nil {
				*at = &metav1.Time{}
			}
			return &(*at).Time
		}
	}
	atReport := func(field func(*v1alpha1.ResolverActivity) *metav1.MicroTime) func(*v1alpha1.ElastiService) *time.Time {
		return func(elastiService *v1alpha1.ElastiService) *time.Time {
			if elastiService.Status.Activity == nil {
				elastiService.Status.Activity = []v1alpha1.ResolverActivity{{Resolver: "a", LastRequestTime: &metav1.MicroTime{}}}
			}
			return &field(&elastiService.Status.Activity[0]).Time
		}
	}
	for name, of := range map[string]func(*v1alpha1.ElastiService) *time.Time{
		"creation":       func(elastiService *v1alpha1.ElastiService) *time.Time { return &elastiService.CreationTimestamp.Time },
		"scaled up":      atTime(func(status *v1alpha1.ElastiServiceStatus) **metav1.Time { return &status.LastScaledUpTime }),
		"activity":       atTime(func(status *v1alpha1.ElastiServiceStatus) **metav1.Time { return &status.LastActivityTime }),
		"slept":          atTime(func(status *v1alpha1.ElastiServiceStatus) **metav1.Time { return &status.SleptTime }),
		"requested":      atTime(func(status *v1alpha1.ElastiServiceStatus) **metav1.Time { return &status.SleepRequestedTime }),
		"report":         atReport(func(reported *v1alpha1.ResolverActivity) *metav1.MicroTime { return &reported.ReportTime }),
		"observed since": atReport(func(reported *v1alpha1.ResolverActivity) *metav1.MicroTime { return &reported.ObservedSince }),
		"request":        atReport(func(reported *v1alpha1.ResolverActivity) *metav1.MicroTime { return reported.LastRequestTime }),
	} {
		t.Run(name, func(t *testing.T) {
			watched := &v1alpha1.ElastiService{}
			*of(watched) = future
			first := boundTimes(watched, nil, nil, testNow)
			if got := *of(first); !got.Equal(testNow) {
				t.Errorf("it counts as %s, want %s", got, testNow)
			}
			if got := *of(boundTimes(watched.DeepCopy(), watched, first, later)); !got.Equal(testNow) {
				t.Errorf("after another change it counts as %s, want %s", got, testNow)
			}
			if got := *of(boundTimes(watched.DeepCopy(), watched, first, future.Add(time.Hour))); !got.Equal(testNow) {
				t.Errorf("once it is not in the future any more it counts as %s, want %s", got, testNow)
			}
			setBack := testNow.Add(-time.Hour)
			if got := *of(boundTimes(watched.DeepCopy(), watched, first, setBack)); !got.Equal(setBack) {
				t.Errorf("after the clock was set back it counts as %s, want %s", got, setBack)
			}
		})
	}
}
