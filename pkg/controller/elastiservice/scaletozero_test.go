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
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// An ElastiService of the target that is not in the cache yet, or whose request for sleep was
// canceled a moment ago, is found in the storage.
func TestSharedTargetIsCheckedInTheStorage(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.ElastiService){
		"a new one":                          nil,
		"one that is not requested to sleep": func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil },
	} {
		t.Run(name, func(t *testing.T) {
			c, failing := newSharedTarget(t)
			failing.toZero = func(next func() error) error {
				t.Error("the target was scaled to zero")
				return next()
			}
			c.beforeRequestsAreChecked(func() {
				if change == nil {
					third := cartGRPC()
					third.Name, third.UID, third.Spec.Service = "third", "third-uid", "third"
					c.create(third)
				} else {
					c.edit("cart-grpc", change)
				}
			})
			c.startAwake()
			c.requestSleep("cart")
			c.requestSleep("cart-grpc")
			c.eventuallyEvent(v1alpha1.ReasonSleepCalledOff)
			for _, name := range []string{"cart", "cart-grpc"} {
				c.eventuallyMode(name, v1alpha1.ModeServe)
			}
			c.eventuallyReplicas(2)
		})
	}
}

// A controller that stalls after its check does not scale what has changed since.
func TestScaleToZeroIsConditionalOnWhatWasChecked(t *testing.T) {
	c, failing := newScaleDown(t, nil)
	var attempts atomic.Int32
	failing.toZero = func(next func() error) error {
		if attempts.Add(1) == 1 {
			// While it stalls, another client uses the target.
			c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
			c.setDeployment("cart", 3, 2)
		}
		return next()
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyReplicas(3)
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.eventuallyResumed(failing)
	if attempts.Load() != 1 {
		t.Errorf("it was tried %d times to scale the target to zero", attempts.Load())
	}
}

// The target is woken between the check and the scaling: what is scaled is the target as
// it was before the check.
func TestScaleToZeroIsForTheTargetAsItWasBeforeTheCheck(t *testing.T) {
	c, failing := newScaleDown(t, nil)
	var checks atomic.Int32
	informerstest.React(&c.elasti.Fake, "list", "elastiservices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.ListAction).GetListRestrictions().Fields.Empty() || checks.Add(1) > 1 {
			return false, nil, nil
		}
		stored, err := c.stored(types.NamespacedName{Namespace: shop, Name: "cart"}, "cart-uid")
		if err != nil {
			return true, nil, err
		}
		c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
		c.setDeployment("cart", 3, 2)
		return true, &v1alpha1.ElastiServiceList{Items: []v1alpha1.ElastiService{*stored}}, nil
	})
	failing.toZero = func(next func() error) error {
		err := next()
		if err == nil {
			t.Error("a target was scaled to zero that was woken after the check")
		}
		return err
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyReplicas(3)
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.eventuallyResumed(failing)
}

// A conflict is no completed scale-down: everything is checked again, when the watch has
// the change, and the target is scaled when that is still requested.
func TestScaleToZeroIsTriedAgainAfterAConflict(t *testing.T) {
	c, failing := newScaleDown(t, nil)
	var attempts atomic.Int32
	failing.toZero = func(next func() error) error {
		if attempts.Add(1) == 1 {
			c.setDeployment("cart", 3, 2)
		}
		return next()
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyReplicas(0)
	if attempts.Load() != 2 {
		t.Errorf("%d attempts, want 2", attempts.Load())
	}
}

// The status of a target may change all the time, and the resource version with it. Each
// change has it checked again, and none has the drain begin anew.
func TestTargetThatChangesOftenIsPutToSleep(t *testing.T) {
	t.Parallel()
	c, failing := newScaleDown(t, nil)
	// Ten of them would take longer than the test waits.
	c.options.ConvergenceTime = 2 * acceleration * time.Second
	var attempts atomic.Int32
	failing.toZero = func(next func() error) error {
		if attempts.Add(1) <= 20 {
			c.setDeployment("cart", 2, 2)
		}
		return next()
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyReplicas(0)
}

// Nothing is scaled before all have confirmed that it is idle.
func TestScaleDownWaitsUntilIdleIsConfirmed(t *testing.T) {
	c, _ := newScaleDown(t, nil)
	var queried, idle atomic.Bool
	retries := make(chan func(), 100)
	c.options.ConfirmIdle = func(target resources.TargetKey, retry func()) bool {
		if target != new(resources.TargetKeys).Of(cartElastiService()) {
			t.Errorf("queried about %s", target)
		}
		queried.Store(true)
		retries <- retry
		return idle.Load()
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	retry := <-retries
	c.sync("cart")
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 || !queried.Load() {
		t.Fatalf("scaled to %d, queried %v", replicas, queried.Load())
	}
	idle.Store(true)
	retry()
	c.eventuallyReplicas(0)
}

// An ElastiService that is deleted, or given another target, right after its target was
// scaled to zero leaves none to see that it was.
func TestScaleDownsForgetTargetsThatNoElastiServiceHas(t *testing.T) {
	s, now := newScaleDowns(), metav1.Now().Time
	for i := range 10 {
		key := types.NamespacedName{Namespace: shop, Name: fmt.Sprintf("scaled-%d", i)}
		target := resources.TargetKey{Namespace: shop, Name: key.Name}
		s.agree(target, key, now)
		if !s.begin(target, []types.NamespacedName{key}) {
			t.Fatal("the target cannot be scaled")
		}
		s.recordScaled(target, now)
		s.end(target, now)
		moving := types.NamespacedName{Namespace: shop, Name: "moving"}
		s.agree(resources.TargetKey{Namespace: shop, Name: fmt.Sprintf("previous-%d", i)}, moving, now)
		now = now.Add(terminatingGrace)
	}
	if len(s.byTarget) > 4 {
		t.Errorf("%d targets are remembered", len(s.byTarget))
	}
}

func TestScaleDownsForgetTargets(t *testing.T) {
	s, target := newScaleDowns(), new(resources.TargetKeys).Of(cartElastiService())
	now := metav1.Now().Time
	key := resources.KeyOf(cartElastiService())
	s.agree(target, key, now)
	if !s.begin(target, nil) || s.begin(target, nil) {
		t.Error("not one at a time may scale a target")
	}
	if s.withdraw(key, now) {
		t.Error("resolvers may leave while the target is being scaled")
	}
	s.recordScaled(target, now)
	s.end(target, now)
	if s.scaledAt(target, now).IsZero() {
		t.Error("it is not known that the target was scaled")
	}
	s.agree(target, key, now)
	if !s.withdraw(key, now.Add(terminatingGrace)) || len(s.byTarget) > 0 || len(s.targets) > 0 {
		t.Errorf("%d targets are remembered for ever", len(s.byTarget))
	}
}
