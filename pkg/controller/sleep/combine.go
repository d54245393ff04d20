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

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Vote is the decision of one ElastiService about its target.
type Vote struct {
	// Name is the name of the ElastiService.
	Name string
	// Decision is what would be done if the target had no other ElastiService.
	Decision Decision
	// Abstains is true when the vote does not count: another ElastiService has the
	// Service.
	Abstains bool
	// Pending is true when the triggers could not be evaluated now. Decision is not
	// set then.
	Pending bool
	// DryRun is true when its decisions are not carried out.
	DryRun bool
	// SleepRequested is true while sleep of the target is requested, ByHand when a
	// user requested it.
	SleepRequested, ByHand bool
}

// CombinedDecision is what the ElastiServices of one target decide together.
type CombinedDecision struct {
	Action Action
	// By is the index of the vote that wakes the target or keeps it awake, -1
	// when there is none.
	By int
	// Agreed is true when every vote lets the target sleep, or it sleeps.
	Agreed bool
}

// Combine combines the votes of the ElastiServices of a target into one decision: it is
// woken when one of them decides that, and put to sleep when all of them agree. When
// one does not agree any more, the requests for sleep are canceled.
func Combine(votes []Vote) CombinedDecision {
	byHand, requested, waiting := false, 0, 0
	for _, vote := range votes {
		if vote.SleepRequested && !vote.Abstains {
			requested++
			byHand = byHand || vote.ByHand
		}
	}
	keeper, present, sleep := -1, 0, false
	for i, vote := range votes {
		switch {
		case vote.Abstains:
			continue
		case vote.Pending:
			waiting++
		case vote.Decision.Action == ActionWake && !vote.DryRun:
			return CombinedDecision{Action: ActionWake, By: i}
		case !vote.agrees(byHand) && keeper < 0:
			keeper = i
		}
		present++
		sleep = sleep || !vote.SleepRequested && !vote.asleep()
	}
	switch {
	case keeper >= 0 && requested > 0:
		return CombinedDecision{Action: ActionKeepAwake, By: keeper}
	case keeper >= 0 || waiting > 0 || present == 0:
		return CombinedDecision{Action: ActionNone, By: keeper}
	case sleep:
		return CombinedDecision{Action: ActionSleep, By: -1, Agreed: true}
	default:
		return CombinedDecision{Action: ActionNone, By: -1, Agreed: true}
	}
}

func (v Vote) asleep() bool { return v.Decision.Reason == v1alpha1.ReasonAsleep }

// agrees reports whether an ElastiService allows that the target sleeps. A request for
// sleep by a user overrides cooldowns, but neither use of the target nor unknown
// triggers.
func (v Vote) agrees(byHand bool) bool {
	if v.DryRun {
		// Decisions of a dry run are not carried out: they do not put a target to
		// sleep.
		return byHand || v.asleep()
	}
	switch v.Decision.Reason {
	case v1alpha1.ReasonIdle, v1alpha1.ReasonSleepRequested, v1alpha1.ReasonAsleep:
		return true
	case v1alpha1.ReasonCoolingDown, v1alpha1.ReasonStarting, v1alpha1.ReasonBackingOff, v1alpha1.ReasonNoTriggers:
		return byHand
	default:
		return false
	}
}

// requestedThroughOther is for users of an ElastiService whose own cooldown has not ended.
const requestedThroughOther = "sleep was requested through another ElastiService of the target"

// keptAwakeBy returns for users which ElastiService keeps a target awake, and why.
func keptAwakeBy(name, why string) string {
	return fmt.Sprintf("kept awake by ElastiService %s: %s", name, why)
}
