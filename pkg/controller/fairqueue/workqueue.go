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
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

const (
	// urgentInARow is how many urgent keys overtake one that is not.
	urgentInARow = 8
	// namespaceShare is which part of the workers may work for one namespace.
	namespaceShare = 2
	// replaceAfter is how long a worker may take for a key before another one takes
	// its place. What it waits for then is a server that does not respond, or an
	// admission webhook that is slow. It is the time of the network: the real time,
	// whatever the clock.
	replaceAfter = time.Second
)

// WorkQueue is a workqueue with workers. One key is never worked on twice at a time.
// Urgent keys overtake the others, and namespaces take turns.
//
// What hangs in one namespace does not keep the workers from the others: half of them
// at most, hanging or not, work for one namespace, and one that hangs is replaced. So a
// key of a namespace that has none in work finds a worker, whatever others do, within
// the time after which workers are replaced. It is safe for concurrent use.
type WorkQueue[K comparable] struct {
	workqueue.TypedRateLimitingInterface[K]
	keys *keys[K]
}

// WorkQueueOptions configure a WorkQueue. All fields but Waiting are required.
type WorkQueueOptions[K comparable] struct {
	// Clock is the time of delayed keys.
	Clock clock.WithTicker
	// NamespaceOf returns the namespace of a key.
	NamespaceOf func(K) string
	// The pauses between the attempts for one key double from FirstRetry to LastRetry.
	FirstRetry, LastRetry time.Duration
	// Waiting is called with the number of keys that wait, whenever that has changed. It
	// is called with a lock held, and must not block.
	Waiting func(keys int)
}

// NewWorkQueue returns an empty queue. It must be shut down, which Run does.
func NewWorkQueue[K comparable](options WorkQueueOptions[K]) *WorkQueue[K] {
	keys := newKeys(options.NamespaceOf)
	if options.Waiting != nil {
		keys.report = options.Waiting
	}
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{Clock: options.Clock, Queue: keys})
	return &WorkQueue[K]{
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[K](options.FirstRetry, options.LastRetry),
			workqueue.TypedRateLimitingQueueConfig[K]{Clock: options.Clock, DelayingQueue: delaying}),
		keys: keys,
	}
}

// AddUrgent adds a key before all that are not urgent.
func (q *WorkQueue[K]) AddUrgent(key K) { q.keys.add(key, true) }

// Run works on keys until ctx ends, then shuts the queue down, and returns when
// everything that it started has ended. work must return soon after ctx has ended.
// Workers that were replaced, because they take long, come on top of the number of
// workers. A queue is run once.
func (q *WorkQueue[K]) Run(ctx context.Context, workers int, work func(context.Context, K)) {
	q.keys.setLimit(max(1, workers/namespaceShare))
	var running sync.WaitGroup
	defer running.Wait()
	defer q.ShutDown()
	for range workers {
		running.Go(func() { q.work(ctx, &running, work) })
	}
	<-ctx.Done()
}

// work is one worker. It ends when the queue is shut down, or when it was replaced.
func (q *WorkQueue[K]) work(ctx context.Context, running *sync.WaitGroup, work func(context.Context, K)) {
	for {
		key, shutdown := q.Get()
		if shutdown {
			return
		}
		replaced := false
		if ctx.Err() == nil {
			started := make(chan struct{})
			timer := time.AfterFunc(replaceAfter, func() {
				running.Go(func() { q.work(ctx, running, work) })
				close(started)
			})
			work(ctx, key)
			if replaced = !timer.Stop(); replaced {
				// Not to end before the other one counts as running.
				<-started
			}
		}
		q.Done(key)
		if replaced {
			return
		}
	}
}

// keys are those that wait and those that are in work. It is a workqueue that orders
// keys by urgency, then by the round robin of their namespaces, then by arrival, and holds
// back those of namespaces that have enough keys in work. It is safe for concurrent use.
type keys[K comparable] struct {
	namespaceOf func(K) string
	// report is called with the number of keys that wait.
	report func(keys int)

	mu sync.Mutex
	// takeable is signaled for each key that a worker may take.
	takeable *sync.Cond
	// first and second hold the keys that wait, inARow is how many of first have
	// overtaken those of second.
	first, second *Queue[K]
	inARow        int
	// inWork are the keys in work, with what they have to come back as.
	inWork map[K]requeue
	// count is the number of keys that each namespace has in work, limit how many it
	// may have. Zero: any number.
	count    map[string]int
	limit    int
	shutDown bool
}

// requeue is whether a key waits again after the work on it.
type requeue int

const (
	requeueNone requeue = iota
	requeueNormal
	requeueUrgent
)

var _ workqueue.TypedInterface[string] = &keys[string]{}

func newKeys[K comparable](namespaceOf func(K) string) *keys[K] {
	k := &keys[K]{
		namespaceOf: namespaceOf,
		report:      func(int) {},
		first:       New(namespaceOf),
		second:      New(namespaceOf),
		inWork:      map[K]requeue{},
		count:       map[string]int{},
	}
	k.takeable = sync.NewCond(&k.mu)
	return k
}

func (k *keys[K]) setLimit(limit int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.limit = limit
}

// Add adds a key that is not urgent.
func (k *keys[K]) Add(key K) { k.add(key, false) }

func (k *keys[K]) add(key K, urgent bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before, inWork := k.inWork[key]
	switch {
	case k.shutDown, k.first.Has(key):
	case inWork && urgent:
		k.inWork[key] = requeueUrgent
	case inWork:
		k.inWork[key] = max(before, requeueNormal)
	case urgent:
		k.second.Remove(key)
		k.push(k.first, key)
	case !k.second.Has(key):
		k.push(k.second, key)
	}
}

// push has a key wait. It must be called with mu held.
func (k *keys[K]) push(to *Queue[K], key K) {
	to.Push(key)
	k.report(k.waiting())
	k.takeable.Signal()
}

// Len returns the number of keys that wait.
func (k *keys[K]) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.waiting()
}

// waiting returns the number of keys that wait. It must be called with mu held.
func (k *keys[K]) waiting() int { return k.first.Len() + k.second.Len() }

// Get waits for a key that a worker may take, and takes it. Done must be called
// with it.
func (k *keys[K]) Get() (key K, shutdown bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.first.Ready()+k.second.Ready() == 0 {
		if k.shutDown {
			return key, true
		}
		k.takeable.Wait()
	}
	key = k.next()
	k.report(k.waiting())
	k.inWork[key] = requeueNone
	namespace := k.namespaceOf(key)
	if k.count[namespace]++; k.count[namespace] == k.limit {
		k.first.Hold(namespace)
		k.second.Hold(namespace)
	}
	return key, false
}

// next removes the key that goes next. It must be called with mu held.
func (k *keys[K]) next() K {
	if k.second.Ready() == 0 {
		k.inARow = 0
		return k.first.Pop()
	}
	if k.first.Ready() == 0 || k.inARow >= urgentInARow {
		k.inARow = 0
		return k.second.Pop()
	}
	k.inARow++
	return k.first.Pop()
}

// Done records that the work on a key is done. The key waits again when it was added
// meanwhile.
func (k *keys[K]) Done(key K) {
	k.mu.Lock()
	defer k.mu.Unlock()
	namespace := k.namespaceOf(key)
	if k.count[namespace] == k.limit {
		k.first.Release(namespace)
		k.second.Release(namespace)
		k.takeable.Signal()
	}
	if k.count[namespace]--; k.count[namespace] <= 0 {
		delete(k.count, namespace)
	}
	again := k.inWork[key]
	delete(k.inWork, key)
	switch again {
	case requeueNormal:
		k.push(k.second, key)
	case requeueUrgent:
		k.push(k.first, key)
	}
}

// ShutDown has Get report it once no key is left that a worker may take. What is added
// from then on is dropped.
func (k *keys[K]) ShutDown() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shutDown = true
	k.takeable.Broadcast()
}

// ShutDownWithDrain is ShutDown: nothing that is left has to be worked on.
func (k *keys[K]) ShutDownWithDrain() { k.ShutDown() }

// ShuttingDown reports whether the queue is shut down.
func (k *keys[K]) ShuttingDown() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shutDown
}
