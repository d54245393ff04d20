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
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestPausesAfterFailuresDouble(t *testing.T) {
	for name, test := range map[string]struct {
		cooldown time.Duration
		failures int
		want     time.Duration
	}{
		"one":                          {time.Minute, 1, time.Minute},
		"two":                          {time.Minute, 2, 2 * time.Minute},
		"four":                         {time.Minute, 4, 8 * time.Minute},
		"many":                         {time.Minute, 100, maxFailurePause},
		"one, with a cooldown of days": {48 * time.Hour, 1, 48 * time.Hour},
		"two, with a cooldown of days": {48 * time.Hour, 2, 48 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			known, now := failure{}, testNow
			for range test.failures {
				now = known.until.Add(time.Second)
				known.record("denied", test.cooldown, now)
			}
			// The end of the scale-down, and another ElastiService of the target, report it too.
			known.record("denied by a policy", test.cooldown, now.Add(time.Second))
			if got := known.until.Sub(now); got != test.want || known.count != test.failures {
				t.Errorf("%d failures, and a pause of %s, want %s", known.count, got, test.want)
			}
			if known.cause != "denied by a policy" {
				t.Errorf("the cause is %q", known.cause)
			}
		})
	}
}

func TestCauseOfAFailureIsBounded(t *testing.T) {
	known := failure{}
	known.record("a"+strings.Repeat("ä", maxCauseBytes), time.Minute, testNow)
	if len(known.cause) > maxCauseBytes+len("…") || strings.ToValidUTF8(known.cause, "") != known.cause {
		t.Errorf("the cause has %d bytes, or is not valid: %q", len(known.cause), known.cause)
	}
}

// failsWithin waits until sleep of "shop" is requested, for at most a duration, and does what
// the other controller does when the target cannot be scaled to zero. It returns how long that
// took, zero if it was not requested.
func (f *fixture) failsWithin(duration time.Duration, cause string) time.Duration {
	started := time.Now()
	for time.Since(started) < duration {
		if f.get("shop").Status.SleepRequestedTime != nil {
			f.scheduler.SleepFailed(f.scheduler.options.TargetKeys.Of(f.get("shop")), cause)
			f.update("shop", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
			return time.Since(started)
		}
		pass(time.Second)
	}
	return 0
}

// A target whose scaling to zero is rejected each time is tried less and less often, and the
// condition says why for as long.
func TestSchedulerBacksOffFromScaleDownsThatFail(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", nil)
		f.failsWithin(time.Hour, "denied by a policy")
		for i := range 4 {
			want := min(testCooldown<<i, maxFailurePause)
			for range 4 {
				pass(want/4 - testInterval/4)
				if got := f.sleeping("shop"); got.Status != metav1.ConditionFalse || got.Reason != v1alpha1.ReasonBackingOff || !strings.Contains(got.Message, "denied by a policy") {
					t.Errorf("after %d failures the condition is %+v", i+1, got)
				}
			}
			took := want - testInterval + f.failsWithin(24*time.Hour, "denied by a policy")
			if took < want-2*time.Second || took > want+3*testInterval {
				t.Errorf("after %d failures it was tried again after %s, want %s", i+1, took, want)
			}
		}

		f.sleepsWithin(24 * time.Hour)
		pass(testInterval)
		f.update("shop", func(elastiService *v1alpha1.ElastiService) {
			elastiService.Status.Replicas, elastiService.Status.ReadyReplicas, elastiService.Status.SleptTime = 2, 2, nil
		})
		pass(testInterval)
		if got := f.sleeping("shop"); got.Reason != v1alpha1.ReasonCoolingDown || strings.Contains(got.Message, "denied") {
			t.Errorf("after it has slept the condition is %+v", got)
		}
		f.failsWithin(time.Hour, "denied again")
		if took := f.failsWithin(24*time.Hour, "denied again"); took < testCooldown-2*time.Second || took > testCooldown+3*testInterval {
			t.Errorf("after it has slept it is tried again after %s, want %s", took, testCooldown)
		}
	})
}

// An edit may have ended what kept the target from being put to sleep.
func TestEditEndsThePauseAfterAFailure(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		f.create("shop", nil)
		for range 3 {
			f.failsWithin(24*time.Hour, "denied")
		}
		f.update("shop", func(elastiService *v1alpha1.ElastiService) { elastiService.Generation++ })
		if took := f.sleepsWithin(24 * time.Hour); took < testCooldown-2*time.Second || took > testCooldown+3*testInterval {
			t.Errorf("after an edit it is put to sleep after %s, want %s", took, testCooldown)
		}
	})
}

// What one ElastiService of a target fails to do, each of them backs off from, and reports.
func TestFailureConcernsAllElastiServicesOfATarget(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		ofShop := func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Name = "shop" }
		f.create("shop", nil)
		f.create("shop-grpc", ofShop)
		f.failsWithin(time.Hour, "denied by a policy")
		f.update("shop-grpc", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
		pass(testInterval)
		for _, name := range []string{"shop", "shop-grpc"} {
			if got := f.sleeping(name); got.Reason != v1alpha1.ReasonBackingOff || !strings.Contains(got.Message, "denied by a policy") {
				t.Errorf("the condition of %s is %+v", name, got)
			}
		}
		// A user who has removed the cause need not wait.
		f.update("shop-grpc", func(elastiService *v1alpha1.ElastiService) {
			elastiService.Status.SleepRequestedTime, elastiService.Status.SleepRequestedBy = ptr.To(metav1.Now()), "user alice"
		})
		pass(testInterval)
		for _, name := range []string{"shop", "shop-grpc"} {
			if f.get(name).Status.SleepRequestedTime == nil {
				t.Errorf("the request for sleep through %s is canceled, or was not made", name)
			}
		}
	})
}

// The condition says that sleep is requested only when it is.
func TestRequestForSleepThatIsRejectedIsReportedAsSuch(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		var rejecting atomic.Bool
		rejecting.Store(true)
		f.beforeSleep = func(elastiService *v1alpha1.ElastiService) error {
			if got := meta.FindStatusCondition(elastiService.Status.Conditions, v1alpha1.ConditionSleeping); got.Reason == v1alpha1.ReasonSleepRequested {
				t.Errorf("before sleep is requested the condition is %+v", got)
			}
			if rejecting.Load() {
				return errors.New("denied by a webhook")
			}
			return nil
		}
		f.create("shop", nil)
		pass(testCooldown + 2*testInterval)
		f.want(t, "sleep shop")
		if got := f.sleeping("shop"); got.Reason != v1alpha1.ReasonBackingOff || !strings.Contains(got.Message, "denied by a webhook") {
			t.Errorf("the condition is %+v", got)
		}
		pass(testCooldown)
		pass(testCooldown)
		f.want(t, "sleep shop")
		rejecting.Store(false)
		pass(2 * testCooldown)
		f.want(t, "sleep shop")
		if got := f.sleeping("shop"); got.Reason != v1alpha1.ReasonSleepRequested || !strings.Contains(got.Message, "denied by a webhook") {
			t.Errorf("the condition is %+v", got)
		}
	})
}
