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
	turns, now := newWakeTurns(2, func(int) {}), time.Unix(0, 0)
	for i := range 1000 {
		turns.join(types.NamespacedName{Namespace: "crowd", Name: fmt.Sprint(i)})
	}
	cart := types.NamespacedName{Namespace: shop, Name: "cart"}
	turns.join(cart)
	turns.join(cart)
	given, next := turns.give(now)
	if len(given) != 2 || !slices.Contains(given, cart) || !turns.has(cart) || next <= 0 {
		t.Fatalf("given %v, next in %s", given, next)
	}
	if again, _ := turns.give(now); len(again) > 0 {
		t.Errorf("given %v at the same time", again)
	}
	if later, _ := turns.give(now.Add(next)); len(later) != 1 {
		t.Errorf("given %v when the time had come", later)
	}
}

func TestWakeTurnsAreForThoseThatWait(t *testing.T) {
	turns, now := newWakeTurns(1, func(int) {}), time.Unix(0, 0)
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: shop, Name: name} }
	for _, name := range []string{"deleted", "cart", "basket"} {
		turns.join(key(name))
	}
	turns.leave(key("deleted"))
	if given, _ := turns.give(now); !slices.Equal(given, []types.NamespacedName{key("cart")}) {
		t.Errorf("given %v", given)
	}
	// A wake that failed keeps its turn.
	turns.join(key("cart"))
	if !turns.has(key("cart")) {
		t.Error("the turn was lost")
	}
	for _, name := range []string{"cart", "basket"} {
		turns.leave(key(name))
	}
	if given, next := turns.give(now.Add(time.Hour)); len(given) > 0 || next != 0 || turns.waiting.Len() > 0 || len(turns.having) > 0 {
		t.Errorf("given %v, next in %s, with nothing left that waits", given, next)
	}
}
