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
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Sleep is not requested over and over of a target that must not be put to sleep.
func TestNoSleepIsRequestedOfATargetThatMustNotSleep(t *testing.T) {
	for _, test := range []struct {
		name       string
		conditions []metav1.Condition
		want       string
	}{
		{"compatible", []metav1.Condition{{Type: v1alpha1.ConditionTargetCompatible, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCompatible}}, ""},
		{"of no consequence", []metav1.Condition{{Type: v1alpha1.ConditionTargetCompatible, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoReadinessProbe, Message: "it listens late"}}, ""},
		{"volumes", []metav1.Condition{{Type: v1alpha1.ConditionTargetCompatible, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonVolumesDeletedAtZero, Message: "its volumes"}}, "its volumes"},
		{"not known", nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			elastiService := &v1alpha1.ElastiService{Status: v1alpha1.ElastiServiceStatus{
				Conditions: append(test.conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}),
			}}
			s := &Scheduler{clock: clock.RealClock{}}
			if got := s.observe(&subject{elastiService: elastiService}).Obstacle; got != test.want {
				t.Errorf("the obstacle is %q, want %q", got, test.want)
			}
		})
	}
}

// Such a target is no less available asleep, and its futile starts end.
func TestATargetThatCannotStartMaySleep(t *testing.T) {
	for reason, forbidden := range map[string]bool{
		v1alpha1.ReasonImageNotPulled:  false,
		v1alpha1.ReasonPodsNotCreated:  false,
		v1alpha1.ReasonNoReadyResolver: true,
	} {
		ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: "the message of Ready"}
		if got := obstacle([]metav1.Condition{ready}); (got != "") != forbidden {
			t.Errorf("%s: the obstacle is %q, want one: %t", reason, got, forbidden)
		}
	}
}

// The last activity before the clock was set back is no use until the clock is there again,
// nor once more when it is.
func TestTimesFromBeforeTheClockWasSetBackDoNotMove(t *testing.T) {
	clock, cluster := clocktesting.NewFakeClock(testNow), &fakeCluster{}
	s, err := New(Options{Clock: clock, Sleeper: cluster, Waker: cluster, Reporter: cluster, Recorder: events.NewFakeRecorder(1)})
	if err != nil {
		t.Fatal(err)
	}
	watched := &v1alpha1.ElastiService{}
	watched.Status.LastActivityTime = ptr.To(metav1.NewTime(testNow))
	s.Changed(nil, watched)
	setBack := testNow.Add(-time.Hour)
	clock.SetTime(setBack)
	for range 10 {
		members, _, _ := s.snapshots(s.options.TargetKeys.Of(watched))
		if got := s.observe(&members[0].state).LastActivity; !got.Equal(setBack) {
			t.Errorf("at %s the last activity counts as of %s, want %s", clock.Now(), got, setBack)
		}
		clock.Step(10 * time.Minute)
		changed := watched.DeepCopy()
		changed.Status.Replicas++
		s.Changed(watched, changed)
		watched = changed
	}
}
