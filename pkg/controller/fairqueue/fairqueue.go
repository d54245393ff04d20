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

// Package fairqueue orders the ElastiServices, or targets, that wait for something so
// that namespaces take turns, and shares workers so that a namespace whose work hangs leaves
// some to the others.
//
// It knows keys and their namespaces, and nothing of the work. Begin with Queue, and
// with WorkQueue for what shares workers.
package fairqueue

import (
	"container/list"

	"k8s.io/apimachinery/pkg/types"
)

// NamespaceOf returns the namespace of an object.
func NamespaceOf(key types.NamespacedName) string { return key.Namespace }

// Queue is a round robin over namespaces: a namespace with many keys delays only its own.
// A key that is in it must not be pushed again.
type Queue[K comparable] struct {
	namespaceOf func(K) string
	// lines are the keys of each namespace that has any, roundRobin these namespaces in
	// order, but for those that are held.
	lines      map[string]*line
	roundRobin *list.List
	held       map[string]bool
	// ready is the number of keys of namespaces that are not held.
	ready int
	// elements finds the keys in their lines.
	elements map[K]*list.Element
}

// line has the keys of a namespace, and its position in the round robin, nil while it is
// held.
type line struct {
	keys     *list.List
	position *list.Element
}

// New returns an empty queue. namespaceOf returns the namespace of a key.
func New[K comparable](namespaceOf func(K) string) *Queue[K] {
	return &Queue[K]{
		namespaceOf: namespaceOf,
		lines:       map[string]*line{},
		roundRobin:  list.New(),
		held:        map[string]bool{},
		elements:    map[K]*list.Element{},
	}
}

// Push adds a key that is not in the queue.
func (q *Queue[K]) Push(key K) {
	namespace := q.namespaceOf(key)
	of, ok := q.lines[namespace]
	if !ok {
		of = &line{keys: list.New()}
		q.lines[namespace] = of
		if !q.held[namespace] {
			of.position = q.roundRobin.PushBack(namespace)
		}
	}
	q.elements[key] = of.keys.PushBack(key)
	if of.position != nil {
		q.ready++
	}
}

// Has reports whether a key is in the queue.
func (q *Queue[K]) Has(key K) bool { return q.elements[key] != nil }

// Len returns the number of keys, those of held namespaces among them.
func (q *Queue[K]) Len() int { return len(q.elements) }

// Ready returns the number of keys of namespaces that are not held.
func (q *Queue[K]) Ready() int { return q.ready }

// Pop removes the next key and returns it. One must be ready.
func (q *Queue[K]) Pop() K {
	of := q.lines[q.roundRobin.Front().Value.(string)]
	q.roundRobin.MoveToBack(of.position)
	key := of.keys.Front().Value.(K)
	q.Remove(key)
	return key
}

// Remove removes a key, if it is in the queue.
func (q *Queue[K]) Remove(key K) {
	element, ok := q.elements[key]
	if !ok {
		return
	}
	delete(q.elements, key)
	namespace := q.namespaceOf(key)
	of := q.lines[namespace]
	of.keys.Remove(element)
	if of.position != nil {
		q.ready--
	}
	if of.keys.Len() > 0 {
		return
	}
	delete(q.lines, namespace)
	if of.position != nil {
		q.roundRobin.Remove(of.position)
	}
}

// Hold excludes a namespace from the round robin until it is released.
func (q *Queue[K]) Hold(namespace string) {
	q.held[namespace] = true
	if of, ok := q.lines[namespace]; ok && of.position != nil {
		q.roundRobin.Remove(of.position)
		of.position = nil
		q.ready -= of.keys.Len()
	}
}

// Release includes a namespace in the round robin again.
func (q *Queue[K]) Release(namespace string) {
	delete(q.held, namespace)
	if of, ok := q.lines[namespace]; ok && of.position == nil {
		of.position = q.roundRobin.PushBack(namespace)
		q.ready += of.keys.Len()
	}
}
