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

package fairqueue

import (
	"slices"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestANamespaceWithManyTargetsDelaysItsOwn(t *testing.T) {
	q := New(NamespaceOf)
	for i := range 100 {
		q.Push(types.NamespacedName{Namespace: "crowd", Name: strconv.Itoa(i)})
	}
	q.Push(types.NamespacedName{Namespace: "shop", Name: "cart"})
	q.Push(types.NamespacedName{Namespace: "bank", Name: "till"})
	var order []string
	for q.Len() > 0 {
		order = append(order, q.Pop().String())
	}
	if want := []string{"crowd/0", "shop/cart", "bank/till", "crowd/1", "crowd/2"}; !slices.Equal(order[:5], want) || len(order) != 102 {
		t.Errorf("%d keys, the first are %v, want %v", len(order), order[:5], want)
	}
	if len(q.lines) > 0 || q.roundRobin.Len() > 0 {
		t.Errorf("%d namespaces are left, %d in the round robin", len(q.lines), q.roundRobin.Len())
	}
}

func TestRemovedKeysLoseTheirTurn(t *testing.T) {
	q := New(NamespaceOf)
	key := func(namespace string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: "cart"}
	}
	for _, namespace := range []string{"shop", "bank", "mill"} {
		q.Push(key(namespace))
	}
	q.Remove(key("bank"))
	q.Remove(key("bank"))
	if q.Has(key("bank")) || !q.Has(key("shop")) || q.Len() != 2 {
		t.Errorf("%d keys are left", q.Len())
	}
	q.Push(key("bank"))
	for _, want := range []string{"shop", "mill", "bank"} {
		if got := q.Pop(); got != key(want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestHeldNamespacesLoseTheirTurns(t *testing.T) {
	q := New(NamespaceOf)
	key := func(namespace, name string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	q.Push(key("shop", "a"))
	q.Push(key("shop", "b"))
	q.Hold("shop")
	q.Hold("bank")
	q.Push(key("shop", "c"))
	q.Push(key("bank", "till"))
	q.Remove(key("shop", "b"))
	if q.Len() != 3 || q.Ready() != 0 {
		t.Errorf("%d keys, %d are ready, while all namespaces are held", q.Len(), q.Ready())
	}
	q.Push(key("mill", "wheel"))
	if got := q.Pop(); got != key("mill", "wheel") {
		t.Errorf("got %s", got)
	}
	q.Release("bank")
	q.Release("shop")
	for _, want := range []types.NamespacedName{key("bank", "till"), key("shop", "a"), key("shop", "c")} {
		if got := q.Pop(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if q.Len() != 0 || q.Ready() != 0 || len(q.lines) > 0 || q.roundRobin.Len() > 0 || len(q.held) > 0 {
		t.Errorf("%d keys are left, %d ready, %d namespaces, %d in the round robin, %d held", q.Len(), q.Ready(), len(q.lines), q.roundRobin.Len(), len(q.held))
	}
}
