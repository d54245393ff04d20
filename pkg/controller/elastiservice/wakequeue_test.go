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
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A namespace in which thousands of targets sleep does not delay the wakes of others when
// there are no resolvers.
func TestEachNamespaceHasItsTurnToBeWoken(t *testing.T) {
	queue, now := newWakeQueue(2, func(int) {}), time.Unix(0, 0)
	for i := range 1000 {
		queue.add(types.NamespacedName{Namespace: "crowd", Name: fmt.Sprint(i)})
	}
	cart := types.NamespacedName{Namespace: shop, Name: "cart"}
	queue.add(cart)
	queue.add(cart)
	admitted, next := queue.admit(now)
	if len(admitted) != 2 || !slices.Contains(admitted, cart) || !queue.isAdmitted(cart) || next <= 0 {
		t.Fatalf("admitted %v, next in %s", admitted, next)
	}
	if again, _ := queue.admit(now); len(again) > 0 {
		t.Errorf("admitted %v at the same time", again)
	}
	if later, _ := queue.admit(now.Add(next)); len(later) != 1 {
		t.Errorf("admitted %v when the time had come", later)
	}
}

func TestOnlyWhatWaitsIsAdmittedToWake(t *testing.T) {
	queue, now := newWakeQueue(1, func(int) {}), time.Unix(0, 0)
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: shop, Name: name} }
	for _, name := range []string{"deleted", "cart", "basket"} {
		queue.add(key(name))
	}
	queue.remove(key("deleted"))
	if admitted, _ := queue.admit(now); !slices.Equal(admitted, []types.NamespacedName{key("cart")}) {
		t.Errorf("admitted %v", admitted)
	}
	// A target whose wake failed stays admitted.
	queue.add(key("cart"))
	if !queue.isAdmitted(key("cart")) {
		t.Error("it is not admitted any more")
	}
	for _, name := range []string{"cart", "basket"} {
		queue.remove(key(name))
	}
	if admitted, next := queue.admit(now.Add(time.Hour)); len(admitted) > 0 || next != 0 || queue.waiting.Len() > 0 || len(queue.admitted) > 0 {
		t.Errorf("admitted %v, next in %s, with nothing left that waits", admitted, next)
	}
}
