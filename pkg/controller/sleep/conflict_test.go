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
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestBackoffDoubles(t *testing.T) {
	for _, test := range []struct {
		cooldown    time.Duration
		shortSleeps int
		want        time.Duration
	}{
		{time.Minute, 1, time.Minute},
		{time.Minute, 2, 2 * time.Minute},
		{time.Minute, 4, 8 * time.Minute},
		{time.Minute, 30, maxBackoff},
		{7 * 24 * time.Hour, 1, 7 * 24 * time.Hour},
		{7 * 24 * time.Hour, 5, 7 * 24 * time.Hour},
		{time.Second, 1 << 20, maxBackoff},
	} {
		if got := backoff(test.cooldown, test.shortSleeps, maxBackoff); got != test.want {
			t.Errorf("after %d short sleeps with a cooldown of %s: %s, want %s", test.shortSleeps, test.cooldown, got, test.want)
		}
	}
}

// sleepsWithin waits until sleep of the target is requested, for at most a duration,
// and scales it to zero. It returns how long that took, zero if it was not requested.
func (f *fixture) sleepsWithin(duration time.Duration) time.Duration {
	started := time.Now()
	for time.Since(started) < duration {
		if f.get("shop").Status.SleepRequestedTime != nil {
			f.update("shop", func(elastiService *v1alpha1.ElastiService) {
				elastiService.Status.SleepRequestedTime, elastiService.Status.Replicas, elastiService.Status.ReadyReplicas = nil, 0, 0
				elastiService.Status.SleptTime = ptr.To(metav1.Now())
			})
			return time.Since(started)
		}
		pass(time.Second)
	}
	return 0
}

// scaledUpBy does what the other controller does when another client scales the
// sleeping target up.
func (f *fixture) scaledUpBy(by string, slept time.Duration) {
	pass(slept)
	f.scheduler.ScaledUp(types.NamespacedName{Namespace: "shop", Name: "shop"}, by, slept)
	f.update("shop", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Status.Replicas, elastiService.Status.ReadyReplicas, elastiService.Status.SleptTime = 2, 2, nil
	})
}

func (f *fixture) conflict() metav1.Condition {
	if found := meta.FindStatusCondition(f.get("shop").Status.Conditions, v1alpha1.ConditionScalingConflict); found != nil {
		return *found
	}
	return metav1.Condition{}
}

// A target that another client scales up stays awake for a cooldown, and for longer
// and longer when that happens each time that it sleeps.
func TestSchedulerBacksOffFromAScalingConflict(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", nil)
		f.sleepsWithin(time.Hour)
		f.scaledUpBy("their-operator", time.Second)
		var took []time.Duration
		for range 4 {
			if got := f.conflict(); (got.Status == metav1.ConditionTrue) != (len(took) >= 1) {
				t.Errorf("after %d sleeps: %+v", len(took)+1, got)
			}
			took = append(took, f.sleepsWithin(24*time.Hour))
			f.scaledUpBy("their-operator", time.Second)
			pass(time.Second)
		}
		if took[0] < testCooldown || took[0] > testCooldown+3*testInterval {
			t.Errorf("after the first time it slept again in %s, want the cooldown of %s", took[0], testCooldown)
		}
		for i := 1; i < len(took); i++ {
			if want := testCooldown << i; took[i] < want-2*time.Second || took[i] > want+3*testInterval {
				t.Errorf("pause %d took %s, want %s", i, took[i], want)
			}
		}
		if got := f.conflict(); got.Reason != v1alpha1.ReasonScaledUpByOther || !strings.Contains(got.Message, "their-operator") {
			t.Errorf("the condition is %+v", got)
		}

		// A sleep that is not short ends the conflict.
		f.sleepsWithin(24 * time.Hour)
		pass(shortSleep + 2*testInterval)
		if got := f.conflict(); got.Status != metav1.ConditionFalse || got.Reason != v1alpha1.ReasonConflictOver {
			t.Errorf("after a long sleep the condition is %+v", got)
		}
	})
}

func TestSchedulerSeesNoScalingConflictIn(t *testing.T) {
	for name, test := range map[string]func(f *fixture){
		"long sleeps": func(f *fixture) {
			for range 3 {
				f.sleepsWithin(time.Hour)
				f.scaledUpBy("kubectl", shortSleep)
			}
		},
		"an edit in between": func(f *fixture) {
			f.sleepsWithin(time.Hour)
			f.scaledUpBy("kubectl", time.Second)
			f.update("shop", func(elastiService *v1alpha1.ElastiService) { elastiService.Generation++ })
			f.sleepsWithin(time.Hour)
			f.scaledUpBy("kubectl", time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				f.create("shop", nil)
				test(f)
				pass(testInterval)
				if got := f.conflict(); got.Status == metav1.ConditionTrue {
					t.Errorf("got %+v", got)
				}
				if f.sleepsWithin(testCooldown+3*testInterval) == 0 {
					t.Error("did not sleep after the next cooldown")
				}
			})
		})
	}
}

// A restart does not make the pauses short again.
func TestSchedulerRestoresAConflictFromTheStatus(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", func(elastiService *v1alpha1.ElastiService) {
			elastiService.Status.Conditions = append(elastiService.Status.Conditions,
				metav1.Condition{Type: v1alpha1.ConditionScalingConflict, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonScaledUpByOther})
		})
		if took := f.sleepsWithin(24 * time.Hour); took < 2*testCooldown-time.Second {
			t.Errorf("slept after %s, want two cooldowns", took)
		}
	})
}

func TestDryRunIsShownInTheStatus(t *testing.T) {
	inBubble(t, func(options *Options) { options.DryRun = true }, func(t *testing.T, f *fixture) {
		reason := func() string {
			if found := meta.FindStatusCondition(f.get("shop").Status.Conditions, v1alpha1.ConditionDryRun); found != nil && found.Status == metav1.ConditionTrue {
				return found.Reason
			}
			return ""
		}
		f.create("shop", nil)
		pass(2 * testInterval)
		if got := reason(); got != v1alpha1.ReasonNoAction {
			t.Errorf("in the cooldown the reason is %q", got)
		}
		pass(testCooldown)
		if got := reason(); got != v1alpha1.ReasonWouldSleep {
			t.Errorf("after the cooldown the reason is %q", got)
		}
		f.scale("shop", 0)
		f.trigger.always(active)
		pass(2 * testInterval)
		if got := reason(); got != v1alpha1.ReasonWouldWake {
			t.Errorf("asleep and active, the reason is %q", got)
		}
		f.writesSince()
		pass(time.Hour)
		if writes := f.writesSince(); writes > 4 {
			t.Errorf("%d writes in an hour without changes", writes)
		}
		f.want(t)
	})
}
