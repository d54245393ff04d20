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
	"slices"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

func numbered(number int) types.NamespacedName {
	return types.NamespacedName{Namespace: shop, Name: strconv.Itoa(number)}
}

func TestUrgentKeysOvertake(t *testing.T) {
	queue := newQueue(clock.RealClock{})
	defer queue.ShutDown()
	for number := range 5 {
		queue.Add(numbered(number))
	}
	queue.AddUrgent(numbered(3))
	queue.AddUrgent(numbered(9))
	queue.AddUrgent(numbered(3))
	if got := queue.Len(); got != 6 {
		t.Errorf("%d keys, want 6", got)
	}
	var got []types.NamespacedName
	for range 6 {
		key, _ := queue.Get()
		got = append(got, key)
		queue.Done(key)
	}
	want := []types.NamespacedName{numbered(3), numbered(9), numbered(0), numbered(1), numbered(2), numbered(4)}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestUrgentKeyThatIsWorkedOnComesBackFirst(t *testing.T) {
	queue := newQueue(clock.RealClock{})
	defer queue.ShutDown()
	queue.Add(numbered(1))
	working, _ := queue.Get()
	queue.Add(numbered(2))
	queue.AddUrgent(working)
	queue.Done(working)
	if next, _ := queue.Get(); next != working {
		t.Errorf("got %v", next)
	}
}

// A pod whose readiness flaps, behind a thousand Services of a tenant, makes a thousand
// urgent keys each time.
func TestANamespaceWithManyKeysDelaysItsOwn(t *testing.T) {
	queue := newQueue(clock.RealClock{})
	defer queue.ShutDown()
	in := func(namespace string, number int) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: strconv.Itoa(number)}
	}
	for number := range 1000 {
		queue.Add(in("crowd", number))
		queue.AddUrgent(in("crowd", number+1000))
	}
	queue.Add(in(shop, 1))
	queue.AddUrgent(in(shop, 2))
	place := map[types.NamespacedName]int{}
	for i := range 2002 {
		key, _ := queue.Get()
		place[key] = i
		queue.Done(key)
	}
	if urgent := place[in(shop, 2)]; urgent > 1 {
		t.Errorf("%d others came before an urgent key", urgent)
	}
	if other := place[in(shop, 1)]; other > 2*(urgentInARow+1) {
		t.Errorf("%d others came before a key that is not urgent", other)
	}
}
