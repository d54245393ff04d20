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
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
)

// onShop makes an ElastiService one of the Deployment "shop".
func onShop(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Name = "shop" }

// createBoth creates the ElastiServices "http" and "grpc" of one target.
func (f *fixture) createBoth() {
	f.create("http", onShop)
	f.create("grpc", func(elastiService *v1alpha1.ElastiService) {
		onShop(elastiService)
		// Another spelling of the same.
		elastiService.Spec.ScaleTargetRef.APIVersion, elastiService.Spec.ScaleTargetRef.Kind = "apps/v1beta2", "deployments"
	})
}

// saysOf makes the trigger of one ElastiService return a result, and all others idle.
func (f *fixture) saysOf(name string, result evaluators.Result) {
	f.trigger.says(func(_ context.Context, of string) (evaluators.Result, error) {
		if of == name {
			return result, nil
		}
		return idle, nil
	})
}

func (f *fixture) sleeping(name string) metav1.Condition {
	if found := meta.FindStatusCondition(f.get(name).Status.Conditions, v1alpha1.ConditionSleeping); found != nil {
		return *found
	}
	return metav1.Condition{}
}

// Users read in Sleeping why a target is awake, from the start.
func TestSleepingIsThereBeforeTheFirstDecision(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.trigger.says(func(context.Context, string) (evaluators.Result, error) { return evaluators.Result{}, queries.ErrBusy })
		f.create("http", onShop)
		pass(2 * testInterval)
		if got := f.sleeping("http"); got.Status != metav1.ConditionUnknown || got.Reason != v1alpha1.ReasonDecisionPending {
			t.Errorf("got %+v before the first decision", got)
		}
		f.trigger.always(active)
		pass(2 * testInterval)
		if got := f.sleeping("http"); got.Status != metav1.ConditionFalse || got.Reason != v1alpha1.ReasonTriggerActive {
			t.Errorf("got %+v after it", got)
		}
	})
}

// All ElastiServices of a target report its last wake, through whichever of them it
// was.
func TestSleepingNamesTheLastWakeOfTheTarget(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.createBoth()
		f.trigger.always(active)
		pass(2 * testInterval)
		want := func(text string) {
			t.Helper()
			for _, name := range []string{"http", "grpc"} {
				if got := f.sleeping(name); !strings.HasSuffix(got.Message, text) {
					t.Errorf("%s says %q, want it to end with %q", name, got.Message, text)
				}
			}
		}
		f.update("http", func(elastiService *v1alpha1.ElastiService) {
			elastiService.Status.LastWake = &v1alpha1.WakeRecord{Time: metav1.NewTime(time.Now()).Rfc3339Copy(), By: "user alice", Reason: "traffic is held"}
		})
		pass(2 * batchingDelay)
		want(" by user alice: traffic is held")
		// It is written once.
		f.writesSince()
		pass(5 * testInterval)
		if writes := f.writesSince(); writes > 0 {
			t.Errorf("%d writes although nothing changes", writes)
		}
		f.scheduler.ScaledUp(resources.KeyOf(f.get("grpc")), "kubectl", time.Hour)
		pass(2 * batchingDelay)
		want(" by kubectl")
		pass(time.Second)
		f.scheduler.Woken(new(resources.TargetKeys).Of(f.get("grpc")), "no resolver is ready")
		pass(2 * batchingDelay)
		want(" by elasti-apiserver: no resolver is ready")
		if last := f.get("http").Status.LastWake; last == nil || last.Reason != "no resolver is ready" {
			t.Errorf("the status has %+v", last)
		}
	})
}

// awaitRequest waits until sleep is requested through an ElastiService.
func (f *fixture) awaitRequest(t *testing.T, name string) {
	t.Helper()
	for range int((3 * testCooldown).Seconds()) {
		if f.get(name).Status.SleepRequestedTime != nil {
			return
		}
		pass(time.Second)
	}
	t.Fatalf("sleep was not requested through %s", name)
}

func TestSharedTargetSleepsWhenAllSayIdle(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.createBoth()
		f.saysOf("grpc", active)
		pass(3 * testCooldown)
		f.want(t)
		if got := f.sleeping("http"); got.Reason != v1alpha1.ReasonSharedTarget || !strings.Contains(got.Message, "ElastiService grpc: a trigger is active") {
			t.Errorf("http is awake because of %+v", got)
		}
		if got := f.sleeping("grpc"); got.Status != metav1.ConditionFalse || got.Reason != v1alpha1.ReasonTriggerActive {
			t.Errorf("grpc is awake because of %+v", got)
		}
		f.trigger.always(idle)
		f.awaitRequest(t, "http")
		f.want(t, "sleep grpc", "sleep http")
		f.scaleDown("grpc")
		f.scaleDown("http")
		pass(testInterval)
		for _, name := range []string{"http", "grpc"} {
			if got := f.sleeping(name); got.Status != metav1.ConditionTrue || got.Reason != v1alpha1.ReasonAsleep {
				t.Errorf("%s sleeps: %+v", name, got)
			}
		}
		f.saysOf("http", active)
		pass(2 * testInterval)
		f.want(t, "wake http")
	})
}

func TestSharedTargetStaysAwakeWhenOneTurns(t *testing.T) {
	for name, test := range map[string]struct {
		turn func(f *fixture)
		want []string
	}{
		"active": {func(f *fixture) { f.saysOf("http", active) }, []string{"keep grpc", "wake http"}},
		// Missing data never scales anything down, also when it is missing last.
		"unknown": {func(f *fixture) { f.saysOf("http", unknown) }, []string{"keep grpc", "keep http"}},
		"used": {func(f *fixture) {
			f.update("http", func(elastiService *v1alpha1.ElastiService) {
				elastiService.Status.Activity = []v1alpha1.ResolverActivity{{Resolver: "a", ReportTime: metav1.NowMicro(), ObservedSince: metav1.NowMicro(), Open: 1}}
			})
		}, []string{"keep grpc", "keep http"}},
		"woken": {func(f *fixture) {
			f.update("http", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
		}, []string{"keep grpc"}},
		"deleted": {func(f *fixture) {
			f.update("http", func(elastiService *v1alpha1.ElastiService) {
				elastiService.DeletionTimestamp, elastiService.Finalizers = ptr.To(metav1.Now()), []string{v1alpha1.Finalizer}
			})
		}, []string{"keep grpc"}},
		"joined by one that is not ready": {func(f *fixture) {
			f.create("new", func(elastiService *v1alpha1.ElastiService) {
				onShop(elastiService)
				elastiService.Status.Conditions = nil
			})
		}, []string{"keep grpc", "keep http"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				f.createBoth()
				f.awaitRequest(t, "http")
				f.want(t, "sleep grpc", "sleep http")
				test.turn(f)
				pass(scaleDownCheck)
				f.want(t, test.want...)
			})
		})
	}
}

// A request by hand overrides the cooldowns of the others, but not their use.
func TestSharedTargetIsPutToSleepByHand(t *testing.T) {
	byHand := func(elastiService *v1alpha1.ElastiService) {
		elastiService.Status.SleepRequestedTime, elastiService.Status.SleepRequestedBy = ptr.To(metav1.Now()), "user alice"
	}
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.createBoth()
		pass(time.Minute)
		f.update("grpc", byHand)
		f.want(t, "sleep http")
	})
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.createBoth()
		f.saysOf("http", active)
		pass(time.Minute)
		f.update("grpc", byHand)
		f.want(t, "keep grpc")
	})
}

// An ElastiService that cannot be evaluated now delays a sleep, and no wake.
func TestSharedTargetIsWokenWhileTheServerOfOneIsBusy(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.createBoth()
		pass(time.Minute)
		f.scale("http", 0)
		f.scale("grpc", 0)
		f.trigger.says(func(_ context.Context, name string) (evaluators.Result, error) {
			if name == "http" {
				return active, nil
			}
			return evaluators.Result{}, queries.ErrBusy
		})
		pass(2 * testInterval)
		synctest.Wait()
		if replicas := f.get("http").Status.Replicas; replicas == 0 {
			t.Error("was not woken")
		}
	})
}

func TestSharedTargetIsReported(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.createBoth()
		f.create("other", nil)
		pass(2 * testInterval)
		for name, others := range map[string]string{"http": "grpc", "grpc": "http", "other": ""} {
			status := f.get(name).Status
			condition := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionTargetShared)
			if got := strings.Join(status.TargetSharedWith, ","); got != others || (condition != nil) != (others != "") {
				t.Errorf("%s is shared with %q, %+v", name, got, condition)
			}
		}
		f.delete("grpc")
		pass(2 * time.Second)
		if status := f.get("http").Status; len(status.TargetSharedWith) > 0 || meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionTargetShared) != nil {
			t.Errorf("the last one is still shared: %+v", status)
		}
		f.writesSince()
		pass(time.Hour)
		if writes := f.writesSince(); writes > 2 {
			t.Errorf("%d writes in an hour in which nothing happened but the ends of two cooldowns", writes)
		}
	})
}

// One names the kind, the other the resource, which is not the regular plural of it.
// That is known only when discovery has returned it.
func TestElastiServicesOfAnIrregularKindDecideTogether(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("http", func(elastiService *v1alpha1.ElastiService) {
			onShop(elastiService)
			elastiService.Spec.ScaleTargetRef.Kind = "Ox"
		})
		f.create("grpc", func(elastiService *v1alpha1.ElastiService) {
			onShop(elastiService)
			elastiService.Spec.ScaleTargetRef.Kind = "oxen"
		})
		f.saysOf("grpc", active)
		ref := f.get("http").Spec.ScaleTargetRef
		f.scheduler.options.TargetKeys.Learn(&ref, "oxen")
		pass(testCooldown + 3*testInterval)
		f.want(t)
		if got := f.sleeping("http"); got.Reason != v1alpha1.ReasonSharedTarget {
			t.Errorf("Sleeping of the one that is idle is %+v", got)
		}
	})
}

// All must agree on fresh data right before the target is scaled.
func TestConfirmIdle(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.createBoth()
		key := new(resources.TargetKeys).Of(f.get("http"))
		var retried atomic.Int32
		confirm := func() bool {
			before := retried.Load()
			for range 3 {
				if f.scheduler.ConfirmIdle(key, func() { retried.Add(1) }) {
					return true
				}
				synctest.Wait()
			}
			if retried.Load() == before {
				t.Error("retry was not called")
			}
			return false
		}
		if confirm() {
			t.Error("confirmed before sleep was requested")
		}
		f.awaitRequest(t, "http")
		if !confirm() {
			t.Error("not confirmed though all are idle")
		}
		pass(confirmMaxAge + time.Millisecond)
		f.saysOf("grpc", unknown)
		if confirm() {
			t.Error("confirmed though one is unknown")
		}
		f.want(t, "sleep grpc", "sleep http", "keep grpc", "keep http")
	})
}

// A start that takes longer than the cooldown is not put to sleep over and over.
func TestTheCooldownBeginsWhenTheTargetIsReady(t *testing.T) {
	ready := func(replicas int32) func(*v1alpha1.ElastiService) {
		return func(elastiService *v1alpha1.ElastiService) { elastiService.Status.ReadyReplicas = replicas }
	}
	const cooldown = 20 * time.Second
	inBubble(t, func(options *Options) { options.PollingInterval = time.Second }, func(t *testing.T, f *fixture) {
		f.create("shop", func(elastiService *v1alpha1.ElastiService) {
			elastiService.Spec.CooldownPeriod = ptr.To(int32(cooldown.Seconds()))
			elastiService.Status.ReadyReplicas = 0
		})
		pass(2 * time.Minute)
		f.want(t)
		if got := f.sleeping("shop"); got.Reason != v1alpha1.ReasonStarting {
			t.Errorf("while it starts, it is awake because of %+v", got)
		}
		f.update("shop", ready(1))
		pass(cooldown - time.Second)
		f.want(t)
		pass(3 * time.Second)
		f.want(t, "sleep shop")
		f.scaleDown("shop")

		// A target that never becomes ready is put to sleep in the end.
		f.update("shop", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.Replicas = 1 })
		pass(startTimeout - time.Second)
		f.want(t)
		pass(3 * time.Second)
		f.want(t, "sleep shop")
	})
}

// A clock that was ahead when it wrote does not keep a target awake until then.
func TestActivityOfTheFutureKeepsNoTargetAwake(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", func(elastiService *v1alpha1.ElastiService) {
			elastiService.Status.LastActivityTime = ptr.To(metav1.NewTime(time.Now().Add(365 * 24 * time.Hour)))
			elastiService.Status.LastScaledUpTime = elastiService.Status.LastActivityTime
		})
		pass(testCooldown + 2*testInterval)
		f.want(t, "sleep shop")
	})
}

func TestHeldRequestsKeepATargetAwakeWithoutACooldown(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		held := func(open int32) func(*v1alpha1.ElastiService) {
			return func(elastiService *v1alpha1.ElastiService) {
				elastiService.Spec.CooldownPeriod = ptr.To[int32](0)
				elastiService.Status.Activity = []v1alpha1.ResolverActivity{{Resolver: "a", ReportTime: metav1.NowMicro(), ObservedSince: metav1.NowMicro(), Open: open}}
			}
		}
		f.create("shop", held(1))
		for range 120 {
			pass(time.Second)
			f.update("shop", held(1))
		}
		f.want(t)
		f.update("shop", held(0))
		f.awaitRequest(t, "shop")
	})
}
