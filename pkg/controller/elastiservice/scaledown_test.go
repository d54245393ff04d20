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
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target/targettest"
)

// The steps come in the order that loses nothing.
func TestAScaleDownPutsTheResolversInThePathFirst(t *testing.T) {
	c, failing := newScaleDown(t, nil)
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
	failing.pause, failing.toZero = note("pause"), note("scale")
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
	c, failing := newScaleDown(t, nil)
	failing.toZero = func(func() error) error { return nil }
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
	c, failing := newScaleDown(t, nil)
	c.put(c.dynamic.Tracker(), targettest.ScaledObject(shop, "payments", nil, false))
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionAutoscalerFound, metav1.ConditionFalse, v1alpha1.ReasonOtherTarget)
	c.requestSleep("cart")
	c.eventuallyReplicas(0)
	if failing.isPaused() {
		t.Error("the autoscaler of another workload is paused")
	}
}
