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
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/schedule"
)

// Users match on the reasons of Sleeping: whatever is observed, a decision has one of those
// that are listed. That of a decision to sleep is replaced by how it is carried out.
func TestDecisionsHaveListedReasons(t *testing.T) {
	random, nights := rand.New(rand.NewPCG(1, 3)), mustParse(t, "0 0 * * *", "1h")
	found := map[string]bool{}
	for range 20_000 {
		o := randomObservation(random, nights)
		decision := Decide(o)
		found[decision.Reason] = true
		if decision.Action != ActionSleep && !slices.Contains(v1alpha1.SleepingReasons(), decision.Reason) {
			t.Fatalf("the reason %q of %+v is not listed", decision.Reason, o)
		}
	}
	if len(found) < 14 {
		t.Errorf("only %d reasons were found: %v", len(found), found)
	}
}

func randomObservation(random *rand.Rand, nights *schedule.Period) Observation {
	happens := func() bool { return random.IntN(4) == 0 }
	o := idleLongEnough()
	o.Triggers = nil
	for range random.IntN(3) {
		o.Triggers = append(o.Triggers, []evaluators.Result{idle, idle, active, unknown}[random.IntN(4)])
	}
	o.ReplicasKnown = random.IntN(10) > 0
	o.Replicas = random.Int32N(3)
	o.SleepRequested, o.ByHand = happens(), happens()
	o.TrafficOpen, o.TrafficOpenUnknown = happens(), happens()
	if happens() {
		o.LastActivity = testNow.Add(-time.Minute)
	}
	if happens() {
		o.UnreadySince = testNow.Add(-time.Minute)
	}
	if happens() {
		o.Obstacle = "no resolver is ready"
	}
	if happens() {
		o.Failure = failure{count: 1, cause: "denied", until: testNow.Add(time.Minute)}
	}
	if happens() {
		o.EnabledPeriod = nights
	}
	return o
}

// What is listed is what docs/sleep.md explains.
func TestListedReasonsAreExplained(t *testing.T) {
	page, err := os.ReadFile("../../../docs/sleep.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| reason of `Sleeping` | |\n| --- | --- |\n")
	if !found {
		t.Fatal("docs/sleep.md has no table of the reasons of Sleeping")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var explained []string
	for row := range strings.Lines(table) {
		for _, reason := range regexp.MustCompile("`([A-Za-z]+)`").FindAllStringSubmatch(strings.SplitN(row, "|", 3)[1], -1) {
			explained = append(explained, reason[1])
		}
	}
	listed := v1alpha1.SleepingReasons()
	slices.Sort(explained)
	slices.Sort(listed)
	if !slices.Equal(explained, listed) {
		t.Errorf("explained are %q, listed %q", explained, listed)
	}
}
