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
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// pollFor polls the targets of ElastiServices for a time, each again and again, and returns
// how often each of them was polled. It must be called in a synctest bubble.
func pollFor(t *testing.T, duration time.Duration, keys []types.NamespacedName) map[types.NamespacedName]int {
	t.Helper()
	c := &Controller{clock: clock.RealClock{}, polls: newPolls(), queue: newQueue(clock.RealClock{}, nil)}
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var mu sync.Mutex
	polled := map[types.NamespacedName]int{}
	for _, key := range keys {
		c.pollTarget(key)
	}
	c.queue.Run(ctx, 4, func(_ context.Context, key types.NamespacedName) {
		if key == nextPolls {
			c.pollTargets()
			return
		}
		mu.Lock()
		polled[key]++
		mu.Unlock()
		c.pollTarget(key)
	})
	return polled
}

// Field case: a kind that is installed later is seen within 2 s. The discovery that is not
// older than another second is the one that counts.
func TestTargetsThatNoWatchReportsAreLookedUpEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var keys []types.NamespacedName
		for i := range pollsPerRound {
			keys = append(keys, types.NamespacedName{Namespace: shop, Name: fmt.Sprint("cart-", i)})
		}
		polled := pollFor(t, time.Minute+pollInterval/2, keys)
		for _, key := range keys {
			if polled[key] != 60 {
				t.Errorf("%s was polled %d times in a minute, want 60", key, polled[key])
			}
		}
	})
}

func TestPollsOfANamespaceAreBoundedAndDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var keys []types.NamespacedName
		for i := range 50 * pollsPerRound {
			keys = append(keys, types.NamespacedName{Namespace: "crowd", Name: fmt.Sprint("cart-", i)})
		}
		single := types.NamespacedName{Namespace: shop, Name: "cart"}
		polled := pollFor(t, time.Minute+pollInterval/2, append(keys, single))
		if polled[single] != 60 {
			t.Errorf("the only one of its namespace was polled %d times in a minute, want 60", polled[single])
		}
		all := 0
		for _, times := range polled {
			all += times
		}
		if all != 60*pollsPerRound {
			t.Errorf("%d targets were polled in a minute, want %d", all, 60*pollsPerRound)
		}
		for _, key := range keys {
			if polled[key] == 0 {
				t.Errorf("%s was not looked up", key)
			}
		}
	})
}

func TestPollsAreLeft(t *testing.T) {
	t.Parallel()
	p := newPolls()
	cart, basket := types.NamespacedName{Namespace: shop, Name: "cart"}, types.NamespacedName{Namespace: shop, Name: "basket"}
	for _, test := range []struct {
		key  types.NamespacedName
		only bool
	}{{cart, true}, {cart, false}, {basket, false}} {
		if only := p.join(test.key); only != test.only {
			t.Errorf("%s is the only one: %t, want %t", test.key, only, test.only)
		}
	}
	p.leave(cart)
	if round, more := p.next(); len(round) != 1 || round[0] != basket || more {
		t.Errorf("the round is %v, and more: %t", round, more)
	}
}

func TestKindThatMayNotBeWatchedIsFollowedByItsScale(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	informerstest.React(&c.dynamic.Fake, "list", "widgets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(widgetsResource.GroupResource(), "", errors.New("no role allows it"))
	})
	c.scaling.serveKind("Widget", "widgets")
	c.setWidget(3)
	// A target that is ready is not inspected.
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.setEndpoints(shop, resources.PrivateServiceName("cart"), "10.1.0.1")
	elastiService := cartElastiService()
	elastiService.Spec.ScaleTargetRef = v1alpha1.ScaleTargetRef{APIVersion: "example.com/v1", Kind: "Widget", Name: "cart"}
	c.create(elastiService)
	c.start()
	for _, replicas := range []int32{3, 1, 2} {
		c.setWidget(replicas)
		c.eventually(func() string {
			if status := c.elastiService("cart").Status; status.Replicas != replicas {
				return fmt.Sprintf("%d replicas in %+v", replicas, status)
			}
			return ""
		})
		// What the write of the status leads to is over.
		c.settled(fmt.Sprint("late-", replicas))
	}
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetFound, metav1.ConditionTrue, v1alpha1.ReasonFound)
}
