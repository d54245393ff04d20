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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
)

// cartGRPC is another ElastiService of the Deployment "cart", with a Service of its
// own.
func cartGRPC() *v1alpha1.ElastiService {
	elastiService := cartElastiService()
	elastiService.Name, elastiService.UID, elastiService.Spec.Service = "cart-grpc", "cart-grpc-uid", "cart-grpc"
	return elastiService
}

// newSharedTarget is a cluster with an awake target that has two ElastiServices.
func newSharedTarget(t *testing.T) (*cluster, *stumblingScaling) {
	t.Helper()
	c, stumbling := newScaleDown(t, nil)
	service := cartService()
	service.Name, service.UID, service.Spec.ClusterIP = "cart-grpc", "cart-grpc-service", "10.96.0.11"
	c.create(service)
	c.setEndpoints(shop, "cart-grpc", "10.1.0.1", "10.1.0.2")
	c.create(cartGRPC())
	return c, stumbling
}

// startAwake runs a controller and waits until both serve.
func (c *cluster) startAwake() {
	c.t.Helper()
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.eventuallyMode("cart-grpc", v1alpha1.ModeServe)
}

func (c *cluster) eventuallyReplicas(want int32) {
	c.t.Helper()
	c.eventually(func() string {
		if replicas := c.scaling.replicas(c.t, "cart"); replicas != want {
			return fmt.Sprintf("%d replicas, there are %d", want, replicas)
		}
		return ""
	})
}

// sync has the controller sync an ElastiService once more, and waits for that.
func (c *cluster) sync(name string) {
	c.t.Helper()
	generation := c.elastiService(name).Generation + 1
	c.edit(name, func(elastiService *v1alpha1.ElastiService) { elastiService.Generation = generation })
	c.eventually(func() string {
		if c.elastiService(name).Status.ObservedGeneration != generation {
			return "another sync of " + name
		}
		return ""
	})
}

// One of them alone does not put the target to sleep, and both have their resolvers in
// the path before it goes to zero.
func TestSharedTargetIsScaledWhenEachHasResolvers(t *testing.T) {
	c, stumbling := newSharedTarget(t)
	var exposed atomic.Int32
	stumbling.toZero = func(next func() error) error {
		if len(c.resolverSlices("cart")) == 0 || len(c.resolverSlices("cart-grpc")) == 0 {
			exposed.Add(1)
		}
		return next()
	}
	c.startAwake()
	c.requestSleep("cart")
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	for range 3 {
		c.sync("cart")
	}
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Fatalf("one alone scaled the target to %d", replicas)
	}
	c.requestSleep("cart-grpc")
	c.eventuallyReplicas(0)
	if exposed.Load() > 0 {
		t.Error("the target was scaled to zero without resolvers in the path of each Service")
	}
	for _, name := range []string{"cart", "cart-grpc"} {
		c.eventually(func() string {
			if c.elastiService(name).Status.SleepRequestedTime != nil {
				return "the request of " + name + " to be fulfilled"
			}
			return ""
		})
		c.sync(name)
		c.eventuallyMode(name, v1alpha1.ModeProxy)
	}
}

// One names the kind, the other the resource, which is not the regular plural of it.
func TestSharedTargetOfAnIrregularKindIsScaledWhenEachHasResolvers(t *testing.T) {
	c, _ := newSharedTarget(t)
	c.scaling.serveKind("Rollout", "deployments")
	c.scaling.serveKind("deployments", "deployments")
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Kind = "Rollout" })
	c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Kind = "deployments" })
	c.startAwake()
	c.requestSleep("cart")
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	for range 3 {
		c.sync("cart")
	}
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Fatalf("one alone scaled the target to %d", replicas)
	}
	c.requestSleep("cart-grpc")
	c.eventuallyReplicas(0)
}

// A worker that sees the target at zero while another one still scales it leaves its
// request to that one, which takes a request that is removed for a wake.
func TestSharedTargetIsNotWokenByOneThatSeesItAtZeroFirst(t *testing.T) {
	c, stumbling := newSharedTarget(t)
	const later = 1 << 10
	var scaled, removing atomic.Bool
	var wakes atomic.Int32
	stumbling.toZero = func(next func() error) error {
		defer scaled.Store(true)
		return next()
	}
	stumbling.wake = func(next func() error) error {
		wakes.Add(1)
		return next()
	}
	c.beforeStatus = func(status *v1alpha1.ElastiServiceStatus) {
		if !scaled.Load() || status.SleepRequestedTime != nil || !removing.CompareAndSwap(false, true) {
			return
		}
		// The one that does not scale the target syncs meanwhile.
		for _, name := range []string{"cart", "cart-grpc"} {
			c.edit(name, func(elastiService *v1alpha1.ElastiService) { elastiService.Generation = later })
		}
		c.eventually(func() string {
			for _, name := range []string{"cart", "cart-grpc"} {
				if status := c.elastiService(name).Status; status.ObservedGeneration == later && status.Replicas == 0 {
					return ""
				}
			}
			return "the other one to see the target at zero"
		})
	}
	c.startAwake()
	c.requestSleep("cart-grpc")
	c.requestSleep("cart")
	c.eventually(func() string {
		if c.elastiService("cart").Status.SleepRequestedTime != nil || c.elastiService("cart-grpc").Status.SleepRequestedTime != nil {
			return "both requests to be fulfilled"
		}
		return ""
	})
	c.sync("cart")
	c.sync("cart-grpc")
	if replicas := c.scaling.replicas(t, "cart"); replicas != 0 || wakes.Load() != 0 {
		t.Errorf("nothing woke the target: it has %d replicas, and was woken %d times", replicas, wakes.Load())
	}
}

// The scheduler may see that one request is removed and the other one is not yet, and
// take that back as it does after a wake.
func TestSharedTargetIsNotWokenWhenItsOtherRequestIsTakenBackHalfway(t *testing.T) {
	c, stumbling := newSharedTarget(t)
	var scaled, removing atomic.Bool
	var wakes atomic.Int32
	stumbling.toZero = func(next func() error) error {
		defer scaled.Store(true)
		return next()
	}
	stumbling.wake = func(next func() error) error {
		wakes.Add(1)
		return next()
	}
	c.beforeStatus = func(status *v1alpha1.ElastiServiceStatus) {
		if !scaled.Load() || status.SleepRequestedTime != nil || !removing.CompareAndSwap(false, true) {
			return
		}
		for _, name := range []string{"cart", "cart-grpc"} {
			c.edit(name, func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
		}
	}
	c.startAwake()
	c.requestSleep("cart-grpc")
	c.requestSleep("cart")
	c.eventuallyEvent(v1alpha1.ReasonSlept)
	c.sync("cart")
	c.sync("cart-grpc")
	if replicas := c.scaling.replicas(t, "cart"); replicas != 0 || wakes.Load() != 0 {
		t.Errorf("no client woke the target: it has %d replicas, and was woken %d times", replicas, wakes.Load())
	}
}

// The target may be awake again before any watch shows that it was at zero. Its
// endpoints count again when the grace of its former pods has ended.
func TestSharedTargetServesAgainAfterItsPodsWereReplaced(t *testing.T) {
	c, stumbling := newSharedTarget(t)
	stumbling.toZero = func(func() error) error { return nil }
	c.startAwake()
	for _, name := range []string{"cart", "cart-grpc"} {
		c.setEndpoints(shop, name)
		c.eventuallyMode(name, v1alpha1.ModeProxy)
	}
	c.requestSleep("cart-grpc")
	c.requestSleep("cart")
	c.eventuallyEvent(v1alpha1.ReasonSlept)
	for _, name := range []string{"cart", "cart-grpc"} {
		c.sync(name)
		c.setEndpoints(shop, name, "10.1.0.3")
	}
	for _, name := range []string{"cart", "cart-grpc"} {
		c.eventuallyMode(name, v1alpha1.ModeServe)
	}
}

func TestSharedTargetStaysUpWhenOneIsWoken(t *testing.T) {
	for _, moment := range []string{"before", "after"} {
		t.Run(moment, func(t *testing.T) {
			c, stumbling := newSharedTarget(t)
			// The wake subresource does this to an ElastiService whose target is up.
			wake := func() {
				c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
			}
			if moment == "after" {
				stumbling.toZero = func(next func() error) error { defer wake(); return next() }
			} else {
				stumbling.pause = func(next func() error) error { wake(); return next() }
			}
			c.startAwake()
			c.requestSleep("cart-grpc")
			c.requestSleep("cart")
			if moment == "after" {
				c.eventuallyEvent(v1alpha1.ReasonSleepCalledOff)
			}
			c.eventually(func() string {
				if moment == "before" {
					// What the scheduler does when one is not requested to sleep any more.
					c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
						if c.elastiService("cart-grpc").Status.SleepRequestedTime == nil {
							elastiService.Status.SleepRequestedTime = nil
						}
					})
				}
				switch {
				case c.elastiService("cart").Status.SleepRequestedTime != nil || c.elastiService("cart-grpc").Status.SleepRequestedTime != nil:
					return "both requests to be removed"
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

// One that the watch does not know yet, or whose request was taken back a moment ago,
// is found in the storage.
func TestSharedTargetIsCheckedInTheStorage(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.ElastiService){
		"a new one":                          nil,
		"one that is not requested to sleep": func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil },
	} {
		t.Run(name, func(t *testing.T) {
			c, stumbling := newSharedTarget(t)
			stumbling.toZero = func(next func() error) error {
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
	c, stumbling := newScaleDown(t, nil)
	var attempts atomic.Int32
	stumbling.toZero = func(next func() error) error {
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
	c.eventuallyResumed(stumbling)
	if attempts.Load() != 1 {
		t.Errorf("it was tried %d times to scale the target to zero", attempts.Load())
	}
}

// The target is woken between the check and the scaling: what is scaled is the target as
// it was before the check.
func TestScaleToZeroIsForTheTargetAsItWasBeforeTheCheck(t *testing.T) {
	c, stumbling := newScaleDown(t, nil)
	var checks atomic.Int32
	c.elasti.PrependReactor("list", "elastiservices", func(action clienttesting.Action) (bool, runtime.Object, error) {
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
	stumbling.toZero = func(next func() error) error {
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
	c.eventuallyResumed(stumbling)
}

// A conflict is no completed scale-down: everything is checked again, when the watch has
// the change, and the target is scaled when that is still requested.
func TestScaleToZeroIsTriedAgainAfterAConflict(t *testing.T) {
	c, stumbling := newScaleDown(t, nil)
	var attempts atomic.Int32
	stumbling.toZero = func(next func() error) error {
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
	c, stumbling := newScaleDown(t, nil)
	// Ten of them would take longer than the test waits.
	c.options.ConvergenceTime = 2 * quickness * time.Second
	var attempts atomic.Int32
	stumbling.toZero = func(next func() error) error {
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

// The last one restores the target; each before it wakes it, for what its resolvers
// hold, and leaves the autoscaler to the others.
func TestDeletionOfOneOfSeveralWakesTheTarget(t *testing.T) {
	c, _ := newSharedTarget(t)
	c.setDeployment("cart", 0, 0)
	c.setEndpoints(shop, "cart")
	c.setEndpoints(shop, "cart-grpc")
	c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
	})
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyMode("cart-grpc", v1alpha1.ModeProxy)
	now := metav1.Now()
	c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) { elastiService.DeletionTimestamp = &now })
	c.eventuallyReplicas(2)
	if len(c.resolverSlices("cart-grpc")) == 0 {
		t.Error("the resolvers left before the target was ready")
	}
	c.setEndpoints(shop, "cart-grpc", "10.1.0.1")
	c.eventually(func() string {
		if len(c.resolverSlices("cart-grpc")) > 0 {
			return "the resolvers to leave"
		}
		return ""
	})
}

// One whose Service another ElastiService has does not hold up the others.
func TestSharedTargetIgnoresOneWithoutAService(t *testing.T) {
	c, _ := newSharedTarget(t)
	c.edit("cart-grpc", takeServiceOfCart)
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.eventuallyCondition("cart-grpc", v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonServiceTaken)
	c.requestSleep("cart")
	c.eventuallyReplicas(0)
}

// One whose Service cannot have resolvers does.
func TestSharedTargetIsNotScaledWithoutResolversForEach(t *testing.T) {
	c, _ := newSharedTarget(t)
	c.create(externalService("cart-grpc"))
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart-grpc")
	c.requestSleep("cart")
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	for range 3 {
		c.sync("cart")
	}
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("scaled to %d", replicas)
	}
}

// One that waits for another one scales the target as soon as it need not.
func TestSharedTargetIsScaledWhenTheOneWithoutResolversChanges(t *testing.T) {
	for name, change := range map[string]func(*cluster){
		"it can have resolvers": func(c *cluster) {
			service := cartService()
			service.Name, service.UID, service.Spec.ClusterIP = "cart-grpc", "cart-grpc-service", "10.96.0.11"
			c.create(service)
		},
		"it does not exist any more": func(c *cluster) { c.remove("cart-grpc") },
		"it names another target": func(c *cluster) {
			c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Name = "basket" })
		},
		"it names a Service of another one": func(c *cluster) { c.edit("cart-grpc", takeServiceOfCart) },
		"another one takes its Service": func(c *cluster) {
			older := cartGRPC()
			older.Name, older.UID, older.Spec.ScaleTargetRef.Name = "older", "older-uid", "basket"
			older.CreationTimestamp = metav1.Unix(1000, 0)
			c.create(older)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, stumbling := newSharedTarget(t)
			c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) { elastiService.CreationTimestamp = metav1.Unix(2000, 0) })
			c.setDeployment("basket", 1, 1)
			c.create(externalService("cart-grpc"))
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeServe)
			c.requestSleep("cart-grpc")
			c.requestSleep("cart")
			c.eventually(stumbling.pausing)
			c.sync("cart")
			change(c)
			c.eventuallyReplicas(0)
		})
	}
}

// pausing returns nothing when the autoscaler is paused: what agrees waits for the
// others then.
func (s *stumblingScaling) pausing() string {
	if !s.isPaused() {
		return "the autoscaler to be paused"
	}
	return ""
}

// Nothing is polled for as long as one of them cannot have resolvers.
func TestSharedTargetIsNotPolledWhileOneHasNoResolvers(t *testing.T) {
	t.Parallel()
	c, stumbling := newSharedTarget(t)
	now := clocktesting.NewFakeClock(time.Now())
	c.options.Clock = now
	var syncs atomic.Int32
	c.options.Requests = func(key types.NamespacedName, _ target.PodRequests) {
		if key.Name == "cart" {
			syncs.Add(1)
		}
	}
	// untilThen has time pass until check returns nothing.
	untilThen := func(check func() string) {
		c.eventually(func() string {
			now.Step(50 * time.Millisecond)
			return check()
		})
	}
	c.createOther()
	c.create(externalService("cart-grpc"))
	c.start()
	for _, name := range []string{"cart", "cart-grpc", "other"} {
		untilThen(func() string {
			if c.elastiService(name).Status.ObservedGeneration == 0 {
				return "the first status of " + name
			}
			return ""
		})
	}
	c.requestSleep("cart-grpc")
	c.requestSleep("cart")
	untilThen(stumbling.pausing)
	c.sync("cart")
	before := syncs.Load()
	const steps = 100
	for range steps {
		now.Step(time.Second)
		// What was due by then is before it in the queue.
		c.sync("other")
	}
	if polled := syncs.Load() - before; polled > steps/10 {
		t.Errorf("it was synced %d times in %d s", polled, steps)
	}
	c.remove("cart-grpc")
	untilThen(func() string {
		if replicas := c.scaling.replicas(t, "cart"); replicas != 0 {
			return fmt.Sprintf("0 replicas, there are %d", replicas)
		}
		return ""
	})
}

// Who deletes an ElastiService, or gives it another target, right after the target was
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
		s.agree(resources.TargetKey{Namespace: shop, Name: fmt.Sprintf("former-%d", i)}, moving, now)
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

// A previous target that another ElastiService has stays at zero only if that one has
// resolvers in the path of a Service.
func TestPreviousTargetStaysAsleepOnlyWhileResolversOfAnotherElastiServiceStandInForIt(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*cluster)
		want   int32
	}{
		"it does":                 {func(*cluster) {}, 0},
		"its Service is deleted":  {func(c *cluster) { c.deleteService("cart-grpc") }, 2},
		"another one has it":      {func(c *cluster) { c.edit("cart-grpc", takeServiceOfCart) }, 2},
		"it is being deleted":     {func(c *cluster) { c.markDeleted("cart-grpc", 0) }, 2},
		"its Service is external": {func(c *cluster) { c.create(externalService("cart-grpc")) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			c, stumbling := newSharedTarget(t)
			var resumed atomic.Int32
			stumbling.resume = func(next func() error) error {
				resumed.Add(1)
				return next()
			}
			c.edit("cart-grpc", func(elastiService *v1alpha1.ElastiService) {
				elastiService.Spec.Autoscaler = c.elastiService("cart").Spec.Autoscaler
			})
			c.setDeployment("cart", 0, 0)
			c.setEndpoints(shop, "cart")
			c.setEndpoints(shop, "cart-grpc")
			c.setDeployment("basket", 2, 2)
			test.change(c)
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			c.sync("cart")
			resumed.Store(0)
			c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
				elastiService.Spec.ScaleTargetRef.Name, elastiService.Spec.Autoscaler = "basket", nil
			})
			c.sync("cart")
			if replicas := c.scaling.replicas(t, "cart"); replicas != test.want {
				t.Errorf("the previous target has %d replicas, want %d", replicas, test.want)
			}
			if test.want == 0 && resumed.Load() != 0 {
				t.Error("the autoscaler that another ElastiService has was resumed")
			}
		})
	}
}

func takeServiceOfCart(elastiService *v1alpha1.ElastiService) {
	elastiService.Spec.Service = "cart"
	elastiService.CreationTimestamp = metav1.Now()
}

// externalService is a Service that resolvers cannot stand in for.
func externalService(name string) *corev1.Service {
	service := cartService()
	service.Name, service.UID = name, types.UID(name+"-service")
	service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}
	return service
}
