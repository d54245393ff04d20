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
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/fairqueue"
)

const (
	// The pauses between the attempts for one ElastiService: 50, 100, 200 ms …
	// up to 30 s, so that one that cannot be helped costs little.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
	// urgentInARow is how many urgent keys overtake one that is not.
	urgentInARow = 8
)

// queue holds the keys of ElastiServices that are to be synced. One key is never
// worked on twice at a time. Urgent keys overtake the others: when the
// resolvers change, every sleeping Service is written, and a switch of a mode
// must not wait for them. Each namespace gets its turn: pods of one whose readiness
// flaps behind thousands of Services delay their own.
type queue struct {
	workqueue.TypedRateLimitingInterface[types.NamespacedName]
	priorities *priorityQueue
}

func newQueue(clock clock.WithTicker) *queue {
	priorities := newPriorityQueue()
	inner := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[types.NamespacedName]{Clock: clock, Queue: priorities})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Clock: clock, Queue: inner})
	return &queue{
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, lastRetry),
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Clock: clock, DelayingQueue: delaying}),
		priorities: priorities,
	}
}

// AddUrgent adds a key before all that are not urgent.
func (q *queue) AddUrgent(key types.NamespacedName) {
	q.priorities.markUrgent(key)
	q.Add(key)
}

// priorityQueue orders keys by urgency, then by the turns of their namespaces, then by
// arrival. The workqueue never pushes a key that is in it already, and calls Touch
// instead.
type priorityQueue struct {
	mu sync.Mutex
	// urgent are the keys that go first when they are pushed or touched next.
	urgent map[types.NamespacedName]bool
	// first and second hold the keys that wait, inARow is how many of first have
	// overtaken those of second.
	first, second *fairqueue.Queue
	inARow        int
}

func newPriorityQueue() *priorityQueue {
	return &priorityQueue{urgent: map[types.NamespacedName]bool{}, first: fairqueue.New(), second: fairqueue.New()}
}

func (p *priorityQueue) markUrgent(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.urgent[key] = true
}

// Touch moves a key that waits to the front when it became urgent.
func (p *priorityQueue) Touch(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.urgent[key] && p.second.Has(key) {
		p.second.Remove(key)
		p.first.Push(key)
	}
	delete(p.urgent, key)
}

// Push adds a key.
func (p *priorityQueue) Push(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.urgent[key] {
		delete(p.urgent, key)
		p.first.Push(key)
		return
	}
	p.second.Push(key)
}

// Len returns the number of keys.
func (p *priorityQueue) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.first.Len() + p.second.Len()
}

// Pop removes the next key. There must be one.
func (p *priorityQueue) Pop() types.NamespacedName {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.second.Len() == 0 {
		p.inARow = 0
		return p.first.Pop()
	}
	if p.first.Len() == 0 || p.inARow >= urgentInARow {
		p.inARow = 0
		return p.second.Pop()
	}
	p.inARow++
	return p.first.Pop()
}
