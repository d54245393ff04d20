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
	"strings"
	"sync/atomic"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

func TestAScaleDownThatFailsLeavesEverythingAsItWas(t *testing.T) {
	fails := func(func() error) error { return errUnavailable }
	// The response is lost, what was requested is done.
	doneAll := func(next func() error) error { return errors.Join(next(), errUnavailable) }
	for name, replace := range map[string]func(*failingScaling){
		"pausing fails":                        func(s *failingScaling) { s.pause = fails },
		"pausing is done, its response lost":   func(s *failingScaling) { s.pause = doneAll },
		"scaling fails":                        func(s *failingScaling) { s.toZero = fails },
		"scaling fails, and resuming at first": func(s *failingScaling) { s.toZero, s.resume = fails, failsTimes(3) },
	} {
		t.Run(name, func(t *testing.T) {
			c, failing := newScaleDown(t, nil)
			replace(failing)
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart")
			c.eventuallyEvent(v1alpha1.ReasonSleepFailed)
			c.eventuallyAsBefore(failing)
		})
	}
}

// A policy, a missing permission or a webhook rejects that the target is scaled to zero. What
// decides that it sleeps learns why. Its resolvers are as ready as before.
func TestTheCauseOfAScaleDownThatFailsIsPassedOn(t *testing.T) {
	rejected := apierrors.NewForbidden(deploymentsResource.GroupResource(), "cart", errors.New("denied by a policy"))
	for name, replace := range map[string]func(*failingScaling){
		"pausing": func(s *failingScaling) { s.pause = func(func() error) error { return rejected } },
		"scaling": func(s *failingScaling) { s.toZero = func(func() error) error { return rejected } },
	} {
		t.Run(name, func(t *testing.T) {
			c, failing := newScaleDown(t, nil)
			replace(failing)
			causes := make(chan string, 100)
			c.options.SleepFailed = func(target resources.TargetKey, cause string) {
				if target != new(resources.TargetKeys).Of(cartElastiService()) {
					t.Errorf("reported about %s", target)
				}
				causes <- cause
			}
			c.beforeStatus = func(status *v1alpha1.ElastiServiceStatus) {
				if ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady); ready != nil && ready.Reason == v1alpha1.ReasonWriteFailed {
					t.Errorf("Ready is written as %s: %s", ready.Status, ready.Message)
				}
			}
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart")
			c.eventuallyEvent(v1alpha1.ReasonSleepFailed)
			c.eventuallyAsBefore(failing)
			select {
			case got := <-causes:
				if !strings.Contains(got, "denied by a policy") {
					t.Errorf("the cause is %q", got)
				}
			default:
				t.Error("the cause is not passed on")
			}
		})
	}
}

// The policy that rejects that the target is scaled to zero may reject each write of the
// autoscaler since it was paused, too. The request for sleep ends all the same: the resolvers
// would stay in the path, and the scale-down would begin again after each drain.
func TestAScaleDownIsGivenUpWhereTheAutoscalerRejectsItsEnd(t *testing.T) {
	for name, rejected := range map[string]error{
		"forbidden": apierrors.NewForbidden(deploymentsResource.GroupResource(), "cart", errors.New("denied by a policy")),
		"invalid":   apierrors.NewInvalid(schema.GroupKind{Group: "keda.sh", Kind: "ScaledObject"}, "cart", nil),
	} {
		t.Run(name, func(t *testing.T) {
			c, failing := newScaleDown(t, nil)
			failing.toZero = func(func() error) error { return rejected }
			failing.resume = failing.toZero
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart")
			c.eventuallyEvent(v1alpha1.ReasonSleepFailed)
			c.eventually(func() string {
				if c.elastiService("cart").Status.SleepRequestedTime != nil {
					return "the request for sleep to be given up"
				}
				return ""
			})
			c.eventuallyMode("cart", v1alpha1.ModeServe)
		})
	}
}

// The controller that works after a crash finishes what was begun.
func TestAScaleDownSurvivesACrashAtEachStep(t *testing.T) {
	for _, step := range []string{"pausing", "scaling"} {
		t.Run(step, func(t *testing.T) {
			c, failing := newScaleDown(t, nil)
			_, ctx := ktesting.NewTestContext(t)
			ctx, crash := context.WithCancel(ctx)
			dies := func(next func() error) error {
				defer crash()
				return errors.Join(next(), context.Canceled)
			}
			if step == "pausing" {
				failing.pause = dies
			} else {
				failing.toZero = dies
			}
			// Nothing reaches the API server any more, so nothing is undone either.
			failing.resume = func(func() error) error { return context.Canceled }
			stop := c.startWith(ctx)
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart")
			<-ctx.Done()
			stop()

			failing.mu.Lock()
			failing.pause, failing.toZero, failing.resume = nil, nil, nil
			failing.mu.Unlock()
			c.start()
			c.eventually(func() string {
				switch {
				case c.scaling.replicas(t, "cart") != 0:
					return "the target to sleep"
				case c.elastiService("cart").Status.SleepRequestedTime != nil:
					return "the request to be taken"
				case !failing.isPaused():
					return "the autoscaler to be paused"
				}
				return ""
			})
		})
	}
}

// lostResponse is a scaling that scales to zero, but the response to that is lost, and the
// watch of the target with it: only a read of the scale shows zero.
type lostResponse struct {
	*failingScaling
	zero, unreadable atomic.Bool
	failed, wakes    atomic.Int32
}

func (l *lostResponse) Get(ctx context.Context, target scaling.Target) (*autoscalingv1.Scale, error) {
	scale, err := l.failingScaling.Get(ctx, target)
	switch {
	case err == nil && l.zero.Load() && l.unreadable.Load():
		l.failed.Add(1)
		return nil, errUnavailable
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
			c, failing := newScaleDown(t, nil)
			lost := &lostResponse{failingScaling: failing}
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
	c, failing := newScaleDown(t, nil)
	c.options.ConvergenceTime = time.Millisecond
	store := &readOnlyStatuses{cluster: c}
	c.options.Statuses = store
	var scaled atomic.Int32
	failing.toZero = func(next func() error) error {
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
