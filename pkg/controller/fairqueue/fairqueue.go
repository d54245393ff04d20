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

// Package fairqueue orders the ElastiServices that wait for something so that each
// namespace gets its turn.
package fairqueue

import (
	"container/list"

	"k8s.io/apimachinery/pkg/types"
)

// Queue gives each namespace its turn: one with many keys delays its own ones
// only. The workqueue that uses it calls it with its own lock held, and never
// pushes a key that is in it already.
type Queue struct {
	// lines are the keys of each namespace that has any, turns these namespaces in
	// the order of their turns.
	lines map[string]*line
	turns *list.List
	// elements finds the keys in their lines.
	elements map[types.NamespacedName]*list.Element
}

// line has the keys of a namespace, and its element of turns.
type line struct {
	keys *list.List
	turn *list.Element
}

// New returns an empty queue.
func New() *Queue {
	return &Queue{lines: map[string]*line{}, turns: list.New(), elements: map[types.NamespacedName]*list.Element{}}
}

// Touch does nothing: a key keeps its place.
func (q *Queue) Touch(types.NamespacedName) {}

// Push adds a key that is not in the queue.
func (q *Queue) Push(key types.NamespacedName) {
	of, ok := q.lines[key.Namespace]
	if !ok {
		of = &line{keys: list.New(), turn: q.turns.PushBack(key.Namespace)}
		q.lines[key.Namespace] = of
	}
	q.elements[key] = of.keys.PushBack(key)
}

// Has reports whether a key is in the queue.
func (q *Queue) Has(key types.NamespacedName) bool { return q.elements[key] != nil }

// Len returns the number of keys.
func (q *Queue) Len() int { return len(q.elements) }

// Pop removes the key that goes next. There must be one.
func (q *Queue) Pop() types.NamespacedName {
	of := q.lines[q.turns.Front().Value.(string)]
	q.turns.MoveToBack(of.turn)
	key := of.keys.Front().Value.(types.NamespacedName)
	q.Remove(key)
	return key
}

// Remove removes a key, if it is in the queue.
func (q *Queue) Remove(key types.NamespacedName) {
	element, ok := q.elements[key]
	if !ok {
		return
	}
	delete(q.elements, key)
	of := q.lines[key.Namespace]
	of.keys.Remove(element)
	if of.keys.Len() == 0 {
		delete(q.lines, key.Namespace)
		q.turns.Remove(of.turn)
	}
}
