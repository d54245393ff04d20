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
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
)

func TestSchedulerFullCycle(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", nil)
		pass(testCooldown)
		f.want(t)
		pass(testInterval + time.Second)
		f.want(t, "sleep shop")
		f.scaleDown("shop")
		pass(time.Hour)
		f.want(t)

		f.scale("shop", 1) // A request woke it.
		pass(testCooldown - time.Second)
		f.want(t)
		pass(time.Second + testInterval)
		f.want(t, "sleep shop")
		f.scaleDown("shop")

		f.trigger.always(active)
		pass(testInterval + testInterval/2)
		f.want(t, "wake shop")
		pass(time.Hour)
		f.want(t)
		f.trigger.always(idle)
		pass(testCooldown - testInterval)
		f.want(t)
		pass(3 * testInterval)
		f.want(t, "sleep shop")
		f.scaleDown("shop")
		f.delete("shop")
		before := len(f.trigger.evaluations("shop"))
		pass(time.Hour)
		if more := len(f.trigger.evaluations("shop")) - before; more > 0 {
			t.Errorf("evaluated %d times after it was deleted", more)
		}
	})
}

// Activity while the resolvers are being put into the path cancels the scale-down.
func TestSchedulerKeepsATargetAwakeThatIsUsedDuringItsScaleDown(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", nil)
		for f.get("shop").Status.SleepRequestedTime == nil {
			pass(time.Second)
		}
		f.want(t, "sleep shop")
		f.trigger.always(active)
		pass(scaleDownCheck)
		f.want(t, "wake shop")
	})
}

// Sleep is not requested with each sync of a target that cannot be put to sleep.
func TestSchedulerRequestsSleepAgainAfterACooldown(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", nil)
		for f.get("shop").Status.SleepRequestedTime == nil {
			pass(time.Second)
		}
		f.want(t, "sleep shop")
		f.update("shop", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
		pass(testCooldown - time.Second)
		f.want(t)
		pass(2 * testInterval)
		f.want(t, "sleep shop")
	})
}

// A result may be an interval old: triggers are evaluated again before a target sleeps.
func TestSchedulerEvaluatesAgainBeforeSleep(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		var second bool
		f.trigger.says(func(context.Context, string) (evaluators.Result, error) {
			if created := f.trigger.evaluations("shop")[0]; time.Since(created) >= testCooldown {
				if second {
					return active, nil
				}
				second = true
			}
			return idle, nil
		})
		f.create("shop", nil)
		pass(testCooldown + 2*testInterval)
		f.want(t)
		if !second {
			t.Error("was not evaluated again")
		}
	})
}

func TestSchedulerHasATimerForEach(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		for i := range 100 {
			f.create(fmt.Sprint(i), func(elastiService *v1alpha1.ElastiService) {
				elastiService.Spec.CooldownPeriod = ptr.To[int32](86400)
			})
		}
		pass(time.Hour)
		synctest.Wait()
		firsts := map[time.Time]bool{}
		for i := range 100 {
			times := f.trigger.evaluations(fmt.Sprint(i))
			firsts[times[0]] = true
			for j := 1; j < len(times); j++ {
				if pause := times[j].Sub(times[j-1]); pause < testInterval || pause > testInterval+testInterval/10 {
					t.Fatalf("evaluated after %s, want %s and up to a tenth more", pause, testInterval)
				}
			}
		}
		if len(firsts) < 90 {
			t.Errorf("100 ElastiServices have only %d times of the first evaluation: they do not spread", len(firsts))
		}
		if writes := f.writesSince(); writes != 100 {
			t.Errorf("%d writes for 100 ElastiServices, want one for each: nothing changed", writes)
		}
	})
}

// Evaluations that hang take workers, as many as there are queries of their servers at
// a time; a busy server takes none.
func TestSchedulerBusyServerDelaysOnlyItsOwn(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.trigger.says(func(_ context.Context, name string) (evaluators.Result, error) {
			if name != "other" {
				return evaluators.Result{}, queries.ErrBusy
			}
			return active, nil
		})
		for i := range 50 {
			f.create(fmt.Sprint(i), nil)
		}
		f.create("other", nil)
		pass(10 * testInterval)
		synctest.Wait()
		if times := len(f.trigger.evaluations("other")); times < 9 {
			t.Errorf("evaluated %d times in 10 intervals while others are busy", times)
		}
		f.trigger.always(idle)
		pass(testCooldown)
		f.want(t)
	})
}

func TestSchedulerMissingDataRestartsTheCooldown(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", nil)
		pass(testCooldown - testInterval)
		f.trigger.always(unknown)
		pass(2 * testInterval)
		f.want(t)
		condition := f.get("shop").Status.Conditions[2]
		if condition.Status != metav1.ConditionFalse || condition.Reason != v1alpha1.ReasonNoData || condition.Message != "triggers[0] (fake): "+unknown.Message {
			t.Errorf("got the condition %+v", condition)
		}
		f.trigger.always(idle)
		pass(testCooldown)
		f.want(t)
		if condition := f.get("shop").Status.Conditions[2]; condition.Status != metav1.ConditionTrue {
			t.Errorf("got the condition %+v", condition)
		}
		pass(2 * testInterval)
		f.want(t, "sleep shop")
	})
}

func TestSchedulerEditedTriggersRestartTheCooldown(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", nil)
		pass(testCooldown)
		f.update("shop", func(elastiService *v1alpha1.ElastiService) {
			elastiService.Generation++
			elastiService.Spec.Triggers = append(elastiService.Spec.Triggers, v1alpha1.ScaleTrigger{Type: "fake"})
		})
		pass(testCooldown - time.Second)
		f.want(t)
		pass(2 * testInterval)
		f.want(t, "sleep shop")
	})
}

func TestSchedulerTriggersThatNothingEvaluates(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", func(elastiService *v1alpha1.ElastiService) {
			elastiService.Spec.Triggers = append(elastiService.Spec.Triggers, v1alpha1.ScaleTrigger{Type: "weather"})
		})
		pass(2 * testCooldown)
		f.want(t)
		if condition := f.get("shop").Status.Conditions[2]; condition.Reason != v1alpha1.ReasonNotSupported {
			t.Errorf("got the condition %+v", condition)
		}
	})
}

func TestSchedulerDryRun(t *testing.T) {
	for name, test := range map[string]struct {
		options func(*Options)
		object  func(*v1alpha1.ElastiService)
	}{
		"of all": {options: func(options *Options) { options.DryRun = true }},
		"of one": {object: func(elastiService *v1alpha1.ElastiService) {
			elastiService.Annotations = map[string]string{v1alpha1.AnnotationDryRun: "true"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, test.options, func(t *testing.T, f *fixture) {
				f.create("shop", test.object)
				pass(3 * testCooldown)
				f.want(t)
				f.scale("shop", 0)
				f.trigger.always(active)
				pass(testCooldown)
				f.want(t)
				close(f.recorder.Events)
				var recorded []string
				for event := range f.recorder.Events {
					recorded = append(recorded, event)
				}
				if want := []string{
					"Normal WouldSleep dry run: every trigger has been idle for 15m0s",
					"Normal WouldWake dry run: a trigger is active: at least 1",
				}; !slices.Equal(recorded, want) {
					t.Errorf("recorded %q, want %q", recorded, want)
				}
			})
		})
	}
}

func TestSchedulerReportsActivity(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.trigger.always(active)
		f.create("shop", nil)
		pass(2 * time.Hour)
		if writes := f.writesSince(); writes > 10 {
			t.Errorf("%d writes in two hours of constant use, want one each %s", writes, activityRefresh)
		}
		lastActive := f.trigger.evaluations("shop")[len(f.trigger.evaluations("shop"))-1]
		f.trigger.always(idle)
		pass(testCooldown / 2)
		if writes := f.writesSince(); writes != 1 {
			t.Errorf("%d writes after it turned idle, want one", writes)
		}
		if got := f.get("shop").Status.LastActivityTime; got == nil || !got.Time.Equal(lastActive.Truncate(time.Second)) {
			t.Errorf("got the last activity %v, want %s", got, lastActive)
		}
	})
}

// An ElastiService without triggers is synced when it changes. A report that could not be
// written changes nothing.
func TestReportThatFailedIsMadeAgain(t *testing.T) {
	withoutTriggers := func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.Triggers = nil }
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", withoutTriggers)
		pass(testInterval)
		f.rejectReports(1)
		f.scale("shop", 0)
		pass(3 * testInterval)
		sleeping := meta.FindStatusCondition(f.get("shop").Status.Conditions, v1alpha1.ConditionSleeping)
		if sleeping == nil || sleeping.Status != metav1.ConditionTrue {
			t.Errorf("it is reported as %+v, want that it sleeps", sleeping)
		}
		f.writesSince()
		pass(time.Hour)
		if writes := f.writesSince(); writes != 0 {
			t.Errorf("%d writes of what is reported already", writes)
		}
	})
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	_, err := New(Options{})
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) || len(joined.Unwrap()) != 4 {
		t.Errorf("got %v, want an error for each of four fields", err)
	}
}

// Triggers other than traffic say nothing about connections that are open: a resolver whose
// reports are late may have them still, if it is there.
func TestOpenConnectionsOfAResolverWhoseReportsAreLateKeepATargetAwake(t *testing.T) {
	for name, test := range map[string]struct {
		// ready are the resolvers that are ready then, nil when that is not known.
		ready  []string
		sleeps bool
	}{
		"it is ready":                            {ready: []string{"a", "b"}},
		"it is not known which are ready":        {},
		"it is not there any more, or not ready": {ready: []string{"b"}, sleeps: true},
	} {
		t.Run(name, func(t *testing.T) {
			resolvers := &evaluators.Resolvers{}
			inBubble(t, func(options *Options) { options.Resolvers = resolvers }, func(t *testing.T, f *fixture) {
				f.create("shop", nil)
				for range 3 {
					pass(testInterval)
					f.update("shop", func(elastiService *v1alpha1.ElastiService) {
						elastiService.Status.Activity = []v1alpha1.ResolverActivity{{Resolver: "a", Open: 3, ReportTime: metav1.NowMicro(), ObservedSince: metav1.NowMicro()}}
					})
				}
				if test.ready != nil {
					resolvers.Set(test.ready)
				}
				pass(3 * testCooldown)
				if test.sleeps {
					f.want(t, "sleep shop")
					return
				}
				f.want(t)
				// Its container may have been restarted, and sees no request.
				pass(2 * time.Hour)
				f.want(t, "sleep shop")
			})
		})
	}
}
