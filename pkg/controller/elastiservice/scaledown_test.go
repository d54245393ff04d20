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
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target/targettest"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

var errStumbled = errors.New("the API server stumbled")

// stumblingScaling is a fakeScaling that something comes in between of. Each
// function is called instead, and may call next.
type stumblingScaling struct {
	*fakeScaling

	mu            sync.Mutex
	pause, resume func(next func() error) error
	toZero, wake  func(next func() error) error
}

func (s *stumblingScaling) replaced(of *func(func() error) error, next func() error) error {
	s.mu.Lock()
	replacement := *of
	s.mu.Unlock()
	if replacement == nil {
		return next()
	}
	return replacement(next)
}

func (s *stumblingScaling) PauseAutoscaler(ctx context.Context, namespace string, autoscaler scaling.Autoscaler) error {
	return s.replaced(&s.pause, func() error {
		s.fakeScaling.mu.Lock()
		s.resumed = nil
		s.fakeScaling.mu.Unlock()
		return s.fakeScaling.PauseAutoscaler(ctx, namespace, autoscaler)
	})
}

func (s *stumblingScaling) ResumeAutoscaler(ctx context.Context, namespace string, autoscaler scaling.Autoscaler) error {
	return s.replaced(&s.resume, func() error { return s.fakeScaling.ResumeAutoscaler(ctx, namespace, autoscaler) })
}

func (s *stumblingScaling) KeepAutoscalerAwake(ctx context.Context, namespace string, autoscaler scaling.Autoscaler) error {
	return s.replaced(&s.resume, func() error { return s.fakeScaling.KeepAutoscalerAwake(ctx, namespace, autoscaler) })
}

func (s *stumblingScaling) ScaleToZero(ctx context.Context, target scaling.Target, read *autoscalingv1.Scale) error {
	return s.replaced(&s.toZero, func() error { return s.fakeScaling.ScaleToZero(ctx, target, read) })
}

func (s *stumblingScaling) Wake(ctx context.Context, target scaling.Target, autoscaler scaling.Autoscaler, minimum int32, dryRun bool) (result scaling.Result, err error) {
	err = s.replaced(&s.wake, func() error {
		result, err = s.fakeScaling.Wake(ctx, target, autoscaler, minimum, dryRun)
		return err
	})
	return result, err
}

func (s *stumblingScaling) Restore(ctx context.Context, target scaling.Target, autoscaler scaling.Autoscaler, minimum int32) (result scaling.Result, err error) {
	err = s.replaced(&s.wake, func() error {
		result, err = s.fakeScaling.Restore(ctx, target, autoscaler, minimum)
		return err
	})
	return result, err
}

// isPaused reports whether the autoscaler was paused and not resumed since.
func (s *stumblingScaling) isPaused() bool {
	s.fakeScaling.mu.Lock()
	defer s.fakeScaling.mu.Unlock()
	return len(s.paused) > 0 && len(s.resumed) == 0
}

// eventuallyResumed waits until the autoscaler is not paused.
func (c *cluster) eventuallyResumed(stumbling *stumblingScaling) {
	c.t.Helper()
	c.eventually(func() string {
		if stumbling.isPaused() {
			return "the autoscaler to go on"
		}
		return ""
	})
}

// newScaleDown is a cluster with an awake target that has an autoscaler.
func newScaleDown(t *testing.T, change func(*v1alpha1.ElastiService)) (*cluster, *stumblingScaling) {
	t.Helper()
	c := newCluster(t)
	stumbling := &stumblingScaling{fakeScaling: c.scaling}
	c.options.Scaling = stumbling
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1", "10.1.0.2")
	elastiService := cartElastiService()
	elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
	if change != nil {
		change(elastiService)
	}
	c.create(elastiService)
	return c, stumbling
}

// eventuallyAsBefore waits until a scale-down that failed has left nothing behind.
func (c *cluster) eventuallyAsBefore(stumbling *stumblingScaling) {
	c.t.Helper()
	c.eventually(func() string {
		switch {
		case c.elastiService("cart").Status.SleepRequestedTime != nil:
			return "the request for sleep to be given up"
		case c.scaling.replicas(c.t, "cart") != 2:
			return "the target to be awake"
		case stumbling.isPaused():
			return "the autoscaler to go on"
		}
		return ""
	})
	c.eventuallyMode("cart", v1alpha1.ModeServe)
}

func TestAScaleDownThatFailsLeavesEverythingAsItWas(t *testing.T) {
	fails := func(func() error) error { return errStumbled }
	// The response is lost, what was requested is done.
	doneAll := func(next func() error) error { return errors.Join(next(), errStumbled) }
	for name, stumble := range map[string]func(*stumblingScaling){
		"pausing fails":                        func(s *stumblingScaling) { s.pause = fails },
		"pausing is done, its response lost":   func(s *stumblingScaling) { s.pause = doneAll },
		"scaling fails":                        func(s *stumblingScaling) { s.toZero = fails },
		"scaling fails, and resuming at first": func(s *stumblingScaling) { s.toZero, s.resume = fails, failsTimes(3) },
	} {
		t.Run(name, func(t *testing.T) {
			c, stumbling := newScaleDown(t, nil)
			stumble(stumbling)
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart")
			c.eventuallyEvent(v1alpha1.ReasonSleepFailed)
			c.eventuallyAsBefore(stumbling)
		})
	}
}

// failsTimes fails a few times before it does what it should.
func failsTimes(times int) func(func() error) error {
	return func(next func() error) error {
		if times--; times >= 0 {
			return errStumbled
		}
		return next()
	}
}

func TestAWakeDuringAScaleDownWins(t *testing.T) {
	for _, moment := range []string{"before pausing", "after pausing", "before scaling", "after scaling"} {
		t.Run(moment, func(t *testing.T) {
			c, stumbling := newScaleDown(t, nil)
			// What the wake subresource does: the target is awake, so all that is
			// left of it is that sleep is not requested any more.
			wake := func() {
				c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
			}
			before := func(next func() error) error { wake(); return next() }
			after := func(next func() error) error { defer wake(); return next() }
			switch moment {
			case "before pausing":
				stumbling.pause = before
			case "after pausing":
				stumbling.pause = after
			case "before scaling":
				stumbling.toZero = before
			case "after scaling":
				stumbling.toZero = after
			}
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart")
			c.eventuallyEvent(v1alpha1.ReasonSleepCalledOff)
			c.eventually(func() string {
				switch {
				case c.scaling.replicas(t, "cart") != 2:
					return "the target to be awake"
				case stumbling.isPaused():
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
	c, stumbling := newScaleDown(t, nil)
	stumbling.toZero = func(next func() error) error {
		defer c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
		return next()
	}
	stumbling.wake = failsTimes(3)
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyEvent(v1alpha1.ReasonSleepCalledOff)
	c.eventuallyReplicas(2)
}

// The controller that works after a crash finishes what was begun.
func TestAScaleDownSurvivesACrashAtEachStep(t *testing.T) {
	for _, step := range []string{"pausing", "scaling"} {
		t.Run(step, func(t *testing.T) {
			c, stumbling := newScaleDown(t, nil)
			_, ctx := ktesting.NewTestContext(t)
			ctx, crash := context.WithCancel(ctx)
			dies := func(next func() error) error {
				defer crash()
				return errors.Join(next(), context.Canceled)
			}
			if step == "pausing" {
				stumbling.pause = dies
			} else {
				stumbling.toZero = dies
			}
			// Nothing reaches the API server any more, so nothing is undone either.
			stumbling.resume = func(func() error) error { return context.Canceled }
			stop := c.startWith(ctx)
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart")
			<-ctx.Done()
			stop()

			stumbling.mu.Lock()
			stumbling.pause, stumbling.toZero, stumbling.resume = nil, nil, nil
			stumbling.mu.Unlock()
			c.start()
			c.eventually(func() string {
				switch {
				case c.scaling.replicas(t, "cart") != 0:
					return "the target to sleep"
				case c.elastiService("cart").Status.SleepRequestedTime != nil:
					return "the request to be taken"
				case !stumbling.isPaused():
					return "the autoscaler to be paused"
				}
				return ""
			})
		})
	}
}

// A wake of a target that is awake leaves nothing to do but to cancel the request for
// sleep, which the leader would have seen after the scaling.
func TestAWakeIsNotLostWithALeaderThatDiesWhileItScalesToZero(t *testing.T) {
	t.Parallel()
	c, stumbling := newScaleDown(t, nil)
	_, ctx := ktesting.NewTestContext(t)
	ctx, crash := context.WithCancel(ctx)
	stumbling.toZero = func(next func() error) error {
		defer crash()
		return errors.Join(next(), context.Canceled)
	}
	stumbling.resume = func(func() error) error { return context.Canceled }
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
	stumbling.mu.Lock()
	stumbling.toZero, stumbling.resume = nil, nil
	stumbling.mu.Unlock()
	c.options.Clock = clock.RealClock{}
	c.start()
	c.eventuallyReplicas(2)
}

// lostResponse is a scaling that scales to zero, but the response to that is lost, and the
// watch of the target with it: only a read of the scale shows zero.
type lostResponse struct {
	*stumblingScaling
	zero, unreadable atomic.Bool
	failed, wakes    atomic.Int32
}

func (l *lostResponse) Get(ctx context.Context, target scaling.Target) (*autoscalingv1.Scale, error) {
	scale, err := l.stumblingScaling.Get(ctx, target)
	switch {
	case err == nil && l.zero.Load() && l.unreadable.Load():
		l.failed.Add(1)
		return nil, errStumbled
	case err == nil && l.zero.Load():
		scale.Spec.Replicas = 0
	}
	return scale, err
}

func (l *lostResponse) ScaleToZero(context.Context, scaling.Target, *autoscalingv1.Scale) error {
	l.zero.Store(true)
	return errors.New("http2: client connection lost")
}

func (l *lostResponse) Wake(context.Context, scaling.Target, scaling.Autoscaler, int32, bool) (scaling.Result, error) {
	l.wakes.Add(1)
	l.zero.Store(false)
	return scaling.Result{Replicas: 2, Scaled: true}, nil
}

// A target whose scaling to zero was done, but its response lost, sleeps behind resolvers.
// While its scale cannot be read, they stay, and a wake of that time is not lost.
func TestResolversStayInThePathWhenTheResponseToTheScalingIsLost(t *testing.T) {
	for name, test := range map[string]struct{ unreadable, woken bool }{
		"the scale can be read":             {},
		"the scale can be read later":       {unreadable: true},
		"it is woken before it can be read": {unreadable: true, woken: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, stumbling := newScaleDown(t, nil)
			lost := &lostResponse{stumblingScaling: stumbling}
			lost.unreadable.Store(test.unreadable)
			c.options.Scaling = lost
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart")
			if test.unreadable {
				c.eventually(func() string {
					if lost.failed.Load() < 3 {
						return "the scale to be read again"
					}
					return ""
				})
				if c.elastiService("cart").Status.SleepRequestedTime == nil || len(c.resolverSlices("cart")) == 0 || lost.wakes.Load() > 0 {
					t.Error("the scale-down was given up although the target may be at zero")
				}
			}
			if test.woken {
				c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
				lost.unreadable.Store(false)
				c.eventually(func() string {
					if lost.wakes.Load() == 0 {
						return "the target to be woken"
					}
					return ""
				})
				return
			}
			lost.unreadable.Store(false)
			c.eventuallyEvent(v1alpha1.ReasonSlept)
			if len(c.resolverSlices("cart")) == 0 || !lost.zero.Load() {
				t.Error("the target is at zero, and there is no resolver slice")
			}
			c.eventually(func() string {
				if c.elastiService("cart").Status.SleepRequestedTime != nil {
					return "the request to be removed"
				}
				return ""
			})
		})
	}
}

// readOnlyStatuses rejects writes while it is set, and counts those that would have
// removed a request for sleep.
type readOnlyStatuses struct {
	*cluster
	set     atomic.Bool
	removed atomic.Int32
}

func (r *readOnlyStatuses) UpdateStatus(ctx context.Context, key types.NamespacedName, uid types.UID, change func(*v1alpha1.ElastiService) error) (*v1alpha1.ElastiService, error) {
	if !r.set.Load() {
		return r.cluster.UpdateStatus(ctx, key, uid, change)
	}
	stored, err := r.stored(key, uid)
	if err != nil {
		return nil, err
	}
	requested := stored.Status.SleepRequestedTime != nil
	if err := change(stored); err != nil {
		return nil, err
	}
	if requested && stored.Status.SleepRequestedTime == nil {
		r.removed.Add(1)
	}
	return nil, errors.New("etcdserver: mvcc: database space exceeded")
}

// The storage does not accept writes from when a target is scaled to zero: the request for
// sleep stays, and the wake that comes later cannot remove it either.
func TestARequestForSleepIsCarriedOutOnce(t *testing.T) {
	t.Parallel()
	c, stumbling := newScaleDown(t, nil)
	c.options.ConvergenceTime = time.Millisecond
	store := &readOnlyStatuses{cluster: c}
	c.options.Statuses = store
	var scaled atomic.Int32
	stumbling.toZero = func(next func() error) error {
		store.set.Store(true)
		defer scaled.Add(1)
		return next()
	}
	attempts := func(more int32) {
		t.Helper()
		before := store.removed.Load()
		c.eventually(func() string {
			if store.removed.Load() < before+more && scaled.Load() < 2 {
				return "attempts to remove the request"
			}
			return ""
		})
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	first := metav1.Now()
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = &first })
	attempts(2)
	c.setDeployment("cart", 0, 0)
	c.setEndpoints(shop, "cart")
	attempts(1)
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.3", "10.1.0.4")
	attempts(2)
	store.set.Store(false)
	c.eventually(func() string {
		if c.elastiService("cart").Status.SleepRequestedTime != nil && scaled.Load() < 2 {
			return "the request to be removed"
		}
		return ""
	})
	if scaled.Load() > 1 {
		t.Fatal("the woken target was put to sleep by a request that had been carried out before")
	}
	// The next one is another request, of another second.
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	next := metav1.NewTime(first.Add(time.Second))
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = &next })
	c.eventuallyReplicas(0)
}

func TestTrafficCancelsAScaleDownWhereItDecides(t *testing.T) {
	used := func(elastiService *v1alpha1.ElastiService) {
		now := metav1.NowMicro()
		last := metav1.NewMicroTime(now.Add(time.Hour))
		elastiService.Status.Activity = []v1alpha1.ResolverActivity{{Resolver: "a", ReportTime: now, ObservedSince: now, LastRequestTime: &last}}
	}
	for triggerType, stays := range map[string]bool{"traffic": true, "prometheus": false} {
		t.Run(triggerType, func(t *testing.T) {
			c, stumbling := newScaleDown(t, func(elastiService *v1alpha1.ElastiService) {
				elastiService.Spec.Triggers = []v1alpha1.ScaleTrigger{{Type: triggerType}}
			})
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart")
			c.edit("cart", used)
			if stays {
				c.eventuallyEvent(v1alpha1.ReasonSleepCalledOff)
				c.eventuallyAsBefore(stumbling)
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

// The steps come in the order that loses nothing.
func TestAScaleDownPutsTheResolversInThePathFirst(t *testing.T) {
	c, stumbling := newScaleDown(t, nil)
	var mu sync.Mutex
	var steps []string
	note := func(step string) func(func() error) error {
		return func(next func() error) error {
			mu.Lock()
			defer mu.Unlock()
			slice := len(c.resolverSlices("cart")) > 0
			steps = append(steps, fmt.Sprintf("%s, resolvers in the path: %v", step, slice))
			return next()
		}
	}
	stumbling.pause, stumbling.toZero = note("pause"), note("scale")
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyEvent(v1alpha1.ReasonSlept)
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"pause, resolvers in the path: true", "scale, resolvers in the path: true"}; !slices.Equal(steps, want) {
		t.Errorf("got the steps %q, want %q", steps, want)
	}
}

// A field of the ElastiService says for how long the resolvers are in the path before
// its target goes to zero, whatever the installation says.
func TestConvergenceTimeOfTheElastiServiceIsKeptTo(t *testing.T) {
	t.Parallel()
	c, _ := newScaleDown(t, func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Proxy = &v1alpha1.ProxySpec{ConvergenceSeconds: ptr.To[int32](1)}
	})
	c.options.ConvergenceTime = time.Hour
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyReplicas(0)
}

// The endpoints of pods that have just terminated may still be listed when the leader
// changes.
func TestResolversStayInThePathWhenTheLeaderChangesRightAfterASleep(t *testing.T) {
	t.Parallel()
	c, _ := newScaleDown(t, nil)
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventually(func() string {
		if s := c.elastiService("cart").Status; s.Replicas != 0 || s.SleptTime == nil || s.Mode != v1alpha1.ModeProxy || s.SleepRequestedTime != nil {
			return "the target to sleep"
		}
		return ""
	})
	stop()
	c.setDeployment("cart", 0, 0)
	slept := c.elastiService("cart").Status.SleptTime
	c.start()
	c.eventually(func() string {
		inPath := len(c.resolverSlices("cart")) > 0
		switch asleep := c.options.Clock.Since(slept.Time); {
		case !inPath && asleep < terminatingGrace:
			t.Fatalf("the resolvers left the path %s after the target was put to sleep", asleep)
		case inPath:
			return "the end of the grace"
		}
		return ""
	})
}

// The watch of the target may be behind what a scale-down has done to it: its pods
// still look ready then, but are about to be deleted.
func TestResolversStayInThePathUntilTheTargetIsSeenAtZero(t *testing.T) {
	c, stumbling := newScaleDown(t, nil)
	stumbling.toZero = func(func() error) error { return nil }
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyEvent(v1alpha1.ReasonSlept)
	const edited = 1 << 10
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Generation = edited })
	c.eventually(func() string {
		if c.elastiService("cart").Status.ObservedGeneration != edited {
			return "another sync of it"
		}
		return ""
	})
	if mode := c.elastiService("cart").Status.Mode; mode != v1alpha1.ModeProxy {
		t.Errorf("the mode is %q before the target is seen at zero", mode)
	}
	if len(c.resolverSlices("cart")) == 0 {
		t.Error("the resolvers have left the path")
	}
}

// The ScaledObject that spec.autoscaler names may scale another workload.
func TestAutoscalerOfAnotherWorkloadIsNotPaused(t *testing.T) {
	t.Parallel()
	c, stumbling := newScaleDown(t, nil)
	c.put(c.dynamic.Tracker(), targettest.ScaledObject(shop, "payments", nil, false))
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionAutoscalerFound, metav1.ConditionFalse, v1alpha1.ReasonOtherTarget)
	c.requestSleep("cart")
	c.eventuallyReplicas(0)
	if stumbling.isPaused() {
		t.Error("the autoscaler of another workload is paused")
	}
}
