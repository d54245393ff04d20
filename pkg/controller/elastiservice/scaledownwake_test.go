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

package elastiservice

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestAWakeDuringAScaleDownWins(t *testing.T) {
	for _, moment := range []string{"before pausing", "after pausing", "before scaling", "after scaling"} {
		t.Run(moment, func(t *testing.T) {
			c, failing := newScaleDown(t, nil)
			// What the wake subresource does: the target is awake, so all that is
			// left of it is that sleep is not requested any more.
			wake := func() {
				c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
			}
			before := func(next func() error) error { wake(); return next() }
			after := func(next func() error) error { defer wake(); return next() }
			switch moment {
			case "before pausing":
				failing.pause = before
			case "after pausing":
				failing.pause = after
			case "before scaling":
				failing.toZero = before
			case "after scaling":
				failing.toZero = after
			}
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart")
			c.eventuallyEvent(v1alpha1.ReasonSleepCalledOff)
			c.eventually(func() string {
				switch {
				case c.scaling.replicas(t, "cart") != 2:
					return "the target to be awake"
				case failing.isPaused():
					return "the autoscaler to go on"
				}
				return ""
			})
		})
	}
}

// A request that was removed during the scaling is a wake. One that fails is not
// forgotten with the requests.
func TestAWakeDuringAScaleDownIsTriedUntilItSucceeds(t *testing.T) {
	c, failing := newScaleDown(t, nil)
	failing.toZero = func(next func() error) error {
		defer c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
		return next()
	}
	failing.wake = failsTimes(3)
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyEvent(v1alpha1.ReasonSleepCalledOff)
	c.eventuallyReplicas(2)
}

// What a target is owed is not carried out for another one.
func TestOwedWakeIsForgottenWithItsTarget(t *testing.T) {
	c, failing := newScaleDown(t, nil)
	c.setDeployment("database", 0, 0)
	failing.toZero = func(next func() error) error {
		defer c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
		return next()
	}
	var moved atomic.Bool
	failing.wake = func(next func() error) error {
		if moved.Load() {
			return next()
		}
		defer moved.Store(true)
		c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
			elastiService.Spec.ScaleTargetRef.Name = "database"
			elastiService.Generation++
		})
		return errUnavailable
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	// The controller restores the previous target.
	c.eventuallyReplicas(2)
	for range 3 {
		c.sync("cart")
	}
	if replicas := c.scaling.replicas(t, "database"); replicas != 0 {
		t.Errorf("the next target was scaled to %d", replicas)
	}
}

// A wake of a target that is awake leaves nothing to do but to cancel the request for
// sleep, which the leader would have seen after the scaling.
func TestAWakeIsNotLostWithALeaderThatDiesWhileItScalesToZero(t *testing.T) {
	t.Parallel()
	c, failing := newScaleDown(t, nil)
	_, ctx := ktesting.NewTestContext(t)
	ctx, crash := context.WithCancel(ctx)
	failing.toZero = func(next func() error) error {
		defer crash()
		return errors.Join(next(), context.Canceled)
	}
	failing.resume = func(func() error) error { return context.Canceled }
	stop := c.startWith(ctx)
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	<-ctx.Done()
	stop()
	if replicas := c.scaling.replicas(t, "cart"); replicas != 0 {
		t.Fatalf("the target has %d replicas, want it at zero", replicas)
	}

	c.setDeployment("cart", 0, 0)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Status.SleepRequestedTime = nil
		elastiService.Status.LastWake = &v1alpha1.WakeRecord{Time: metav1.Now().Rfc3339Copy(), By: "user alice", CancelledSleep: true}
	})
	failing.mu.Lock()
	failing.toZero, failing.resume = nil, nil
	failing.mu.Unlock()
	c.options.Clock = clock.RealClock{}
	c.start()
	c.eventuallyReplicas(2)
}

func TestTrafficCancelsAScaleDownWhereItDecides(t *testing.T) {
	used := func(elastiService *v1alpha1.ElastiService) {
		now := metav1.NowMicro()
		last := metav1.NewMicroTime(now.Add(clockSkew / 2))
		elastiService.Status.Activity = []v1alpha1.ResolverActivity{{Resolver: "a", ReportTime: now, ObservedSince: now, LastRequestTime: &last}}
	}
	for triggerType, stays := range map[string]bool{"traffic": true, "prometheus": false} {
		t.Run(triggerType, func(t *testing.T) {
			c, failing := newScaleDown(t, func(elastiService *v1alpha1.ElastiService) {
				elastiService.Spec.Triggers = []v1alpha1.ScaleTrigger{{Type: triggerType}}
			})
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart")
			c.edit("cart", used)
			if stays {
				c.eventuallyEvent(v1alpha1.ReasonSleepCalledOff)
				c.eventuallyAsBefore(failing)
				return
			}
			c.eventuallyEvent(v1alpha1.ReasonSlept)
			c.eventually(func() string {
				if replicas := c.scaling.replicas(t, "cart"); replicas != 0 {
					return fmt.Sprintf("0 replicas, there are %d", replicas)
				}
				return ""
			})
		})
	}
}

// A target at zero is what a user may want.
func TestOnlyALostWakeWakesATargetAtZero(t *testing.T) {
	for name, test := range map[string]struct {
		canceled bool
		scaledBy string
		want     int32
	}{
		"the wake canceled a request":        {true, v1alpha1.FieldManager, 2},
		"the wake canceled no request":       {false, v1alpha1.FieldManager, 0},
		"another client has scaled it since": {true, "kubectl", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.options.Clock = clock.RealClock{}
			c.scaleDeployment(0, test.scaledBy)
			elastiService := cartElastiService()
			elastiService.Status.Replicas = 2
			elastiService.Status.LastWake = &v1alpha1.WakeRecord{Time: metav1.Now().Rfc3339Copy(), By: "user alice", CancelledSleep: test.canceled}
			c.create(elastiService)
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			c.settled("late")
			c.eventuallyReplicas(test.want)
		})
	}
}
