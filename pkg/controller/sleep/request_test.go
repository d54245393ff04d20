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

// confirms reports whether the target of an ElastiService may be scaled to zero.
func (f *fixture) confirms(name string) bool {
	key := new(resources.TargetKeys).Of(f.get(name))
	for range 3 {
		if f.scheduler.ConfirmIdle(key, func() {}) {
			return true
		}
		pass(confirmMaxAge / 10)
		synctest.Wait()
	}
	return false
}

// edit changes the spec of an ElastiService.
func (f *fixture) edit(name string, change func(*v1alpha1.ElastiServiceSpec)) {
	f.update(name, func(elastiService *v1alpha1.ElastiService) {
		elastiService.Generation++
		change(&elastiService.Spec)
	})
}

// A request for sleep is carried out a while after the decision for it: what begins the
// cooldown again does so until then.
func TestWhatBeginsTheCooldownAgainEndsARequestForSleep(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(f *fixture)
		stays   bool
	}{
		"nothing": {func(*fixture) {}, true},
		"traffic that only resolvers in the path see": {func(f *fixture) {
			f.update("shop", func(elastiService *v1alpha1.ElastiService) {
				now := metav1.NowMicro()
				elastiService.Status.Activity = []v1alpha1.ResolverActivity{{Resolver: "a", ReportTime: now, ObservedSince: now, LastRequestTime: &now}}
				elastiService.Status.LastActivityTime = ptr.To(metav1.Now())
			})
		}, true},
		"another target": {func(f *fixture) {
			f.edit("shop", func(spec *v1alpha1.ElastiServiceSpec) { spec.ScaleTargetRef.Name = "green" })
		}, false},
		"a longer cooldown": {func(f *fixture) {
			f.edit("shop", func(spec *v1alpha1.ElastiServiceSpec) { spec.CooldownPeriod = ptr.To[int32](7 * 24 * 3600) })
		}, false},
		"no triggers any more": {func(f *fixture) {
			f.edit("shop", func(spec *v1alpha1.ElastiServiceSpec) { spec.Triggers = nil })
		}, false},
		"a pod that is not ready": {func(f *fixture) {
			f.update("shop", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.ReadyReplicas = 0 })
		}, false},
		"a pod that becomes ready": {func(f *fixture) {
			f.update("shop", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.ReadyReplicas = 0 })
			f.scale("shop", 1)
		}, false},
		"a server that is busy for a while": {func(f *fixture) {
			f.trigger.says(func(context.Context, string) (evaluators.Result, error) { return evaluators.Result{}, queries.ErrBusy })
			pass((maxMissedSyncs + 1) * testInterval)
			f.trigger.always(idle)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				f.create("shop", nil)
				f.awaitRequest(t, "shop")
				f.want(t, "sleep shop")
				test.happens(f)
				if got := f.confirms("shop"); got != test.stays {
					t.Errorf("it may be scaled to zero: %t, want %t", got, test.stays)
				}
				pass(2 * lastBusyPause)
				if test.stays {
					f.want(t)
				} else {
					f.want(t, "keep shop")
				}
			})
		})
	}
}

// A change of the leader costs no cooldown when nothing was missed, and what may have been
// missed costs one. A user's request waits for no cooldown.
func TestARequestFromBeforeAChangeOfTheLeader(t *testing.T) {
	const decided = v1alpha1.ReasonSleepRequested
	for name, test := range map[string]struct {
		by       string
		age      time.Duration
		reported string
		edited   bool
		stays    bool
	}{
		"made a moment ago":                        {v1alpha1.CallerServer, testInterval, decided, false, true},
		"made before an outage":                    {v1alpha1.CallerServer, 2 * time.Hour, decided, false, false},
		"before an edit":                           {v1alpha1.CallerServer, testInterval, decided, true, false},
		"that was about to be removed":             {v1alpha1.CallerServer, testInterval, v1alpha1.ReasonTriggerUnknown, false, false},
		"of a version that recorded no client":     {"", 2 * time.Hour, decided, false, false},
		"of a user, made before an outage":         {"user alice", 2 * time.Hour, decided, false, true},
		"of a user, before an edit":                {"user alice", testInterval, decided, true, true},
		"of a user, made while nothing was synced": {"user alice", testInterval, v1alpha1.ReasonCoolingDown, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				created := metav1.Now()
				pass(24 * time.Hour)
				f.create("shop", func(elastiService *v1alpha1.ElastiService) {
					elastiService.CreationTimestamp = created
					elastiService.Status.SleepRequestedTime = ptr.To(metav1.NewTime(time.Now().Add(-test.age)).Rfc3339Copy())
					elastiService.Status.SleepRequestedBy = test.by
					elastiService.Status.Conditions = append(elastiService.Status.Conditions, metav1.Condition{
						Type: v1alpha1.ConditionSleeping, Status: metav1.ConditionFalse, Reason: test.reported, ObservedGeneration: elastiService.Generation,
					})
					if test.edited {
						elastiService.Generation++
					}
				})
				if got := f.confirms("shop"); got != test.stays {
					t.Errorf("it may be scaled to zero: %t, want %t", got, test.stays)
				}
				pass(testInterval)
				if test.stays {
					f.want(t)
				} else {
					f.want(t, "keep shop")
				}
			})
		})
	}
}

// The ElastiServices of a target whose own cooldowns have not ended sleep with the request
// of a user through another one, for as long as there is one.
func TestARequestOfAUserCountsForTheOthersOfTheTargetWhileItLasts(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.createBoth()
		pass(time.Minute)
		f.update("grpc", func(elastiService *v1alpha1.ElastiService) {
			elastiService.Status.SleepRequestedTime, elastiService.Status.SleepRequestedBy = ptr.To(metav1.Now()), "user alice"
		})
		pass(scaleDownCheck)
		f.want(t, "sleep http")
		if !f.confirms("http") {
			t.Error("the target may not be scaled to zero")
		}
		if got := f.sleeping("http"); got.Reason != v1alpha1.ReasonSharedTarget || !strings.HasPrefix(got.Message, requestedThroughOther) {
			t.Errorf("Sleeping of the one that cools down is %+v", got)
		}
		f.edit("grpc", func(spec *v1alpha1.ElastiServiceSpec) { spec.ScaleTargetRef.Name = "green" })
		if f.confirms("http") {
			t.Error("the target may be scaled to zero before the cooldown of the only one that it has")
		}
	})
}

// The replica that takes a request may have a clock that is behind the scheduler's.
func TestARequestThatFollowsAWakeCountsWhateverItsClockSays(t *testing.T) {
	for name, test := range map[string]struct {
		first, second func(f *fixture)
		counts        bool
	}{
		"woken, then requested": {wakeShop, requestBehind, true},
		"requested, then woken": {requestBehind, wakeShop, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, f *fixture) {
				pass(24 * time.Hour)
				f.create("shop", func(elastiService *v1alpha1.ElastiService) {
					elastiService.Status.Replicas, elastiService.Status.ReadyReplicas = 0, 0
				})
				pass(time.Minute)
				test.first(f)
				pass(10 * time.Second)
				test.second(f)
				if got := f.confirms("shop"); got != test.counts {
					t.Errorf("it may be scaled to zero: %t, want %t", got, test.counts)
				}
			})
		})
	}
}

func wakeShop(f *fixture) { f.scale("shop", 3) }

// requestBehind requests sleep by the clock of a replica that is behind.
func requestBehind(f *fixture) {
	f.update("shop", func(elastiService *v1alpha1.ElastiService) {
		behind := metav1.NewTime(time.Now().Add(-30 * time.Second)).Rfc3339Copy()
		elastiService.Status.SleepRequestedTime, elastiService.Status.SleepRequestedBy = &behind, "user alice"
	})
}

// Users read what keeps a request from being carried out.
func TestSleepingSaysWhyARequestForSleepWaits(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", nil)
		f.awaitRequest(t, "shop")
		ready := func(status metav1.ConditionStatus) {
			f.update("shop", func(elastiService *v1alpha1.ElastiService) {
				meta.SetStatusCondition(&elastiService.Status.Conditions, metav1.Condition{
					Type: v1alpha1.ConditionReady, Status: status, Reason: v1alpha1.ReasonNoReadyResolver, Message: "no resolver is ready",
				})
			})
			pass(messageDelay + testInterval)
		}
		ready(metav1.ConditionFalse)
		if got := f.sleeping("shop"); got.Reason != v1alpha1.ReasonSleepRequested || !strings.HasSuffix(got.Message, "cannot be put to sleep: no resolver is ready") {
			t.Errorf("while no resolver is ready, Sleeping is %+v", got)
		}
		ready(metav1.ConditionTrue)
		if got := f.sleeping("shop"); got.Reason != v1alpha1.ReasonSleepRequested || got.Message != "the target is being put to sleep" {
			t.Errorf("once one is, Sleeping is %+v", got)
		}
		f.want(t, "sleep shop")
	})
}
