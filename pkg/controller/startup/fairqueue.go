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

package startup

import (
	"container/list"

	"k8s.io/apimachinery/pkg/types"
)

// fairQueue gives each namespace its turn: one with many keys delays its own ones
// only. The workqueue that uses it calls it with its own lock held, and never
// pushes a key that is in it already.
type fairQueue struct {
	// waiting are the keys of each namespace that has any.
	waiting map[string]*list.List
	// turns are the names of these namespaces in the order of their turns.
	turns *list.List
	size  int
}

func newFairQueue() *fairQueue {
	return &fairQueue{waiting: map[string]*list.List{}, turns: list.New()}
}

// Touch does nothing: a key keeps its place.
func (q *fairQueue) Touch(types.NamespacedName) {}

// Push adds a key.
func (q *fairQueue) Push(key types.NamespacedName) {
	keys := q.waiting[key.Namespace]
	if keys == nil {
		keys = list.New()
		q.waiting[key.Namespace] = keys
		q.turns.PushBack(key.Namespace)
	}
	keys.PushBack(key)
	q.size++
}

// Len returns the number of keys.
func (q *fairQueue) Len() int { return q.size }

// Pop removes the key that goes next. There must be one.
func (q *fairQueue) Pop() types.NamespacedName {
	namespace := q.turns.Remove(q.turns.Front()).(string)
	keys := q.waiting[namespace]
	key := keys.Remove(keys.Front()).(types.NamespacedName)
	q.size--
	if keys.Len() > 0 {
		q.turns.PushBack(namespace)
	} else {
		delete(q.waiting, namespace)
	}
	return key
}
