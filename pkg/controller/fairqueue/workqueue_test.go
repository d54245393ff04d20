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
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

func in(namespace string, number int) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: strconv.Itoa(number)}
}

func newTestQueue() *WorkQueue[types.NamespacedName] {
	return NewWorkQueue(WorkQueueOptions[types.NamespacedName]{
		Clock: clock.RealClock{}, NamespaceOf: NamespaceOf, FirstRetry: time.Millisecond, LastRetry: time.Second,
	})
}

// workers run a queue in a bubble. The keys of namespaces that hang stay in work.
type workers struct {
	*WorkQueue[types.NamespacedName]
	hangs   func(namespace string) bool
	release chan struct{}

	mu            sync.Mutex
	counts        counts
	byNamespace   map[string]int
	done          []types.NamespacedName
	stop          context.CancelFunc
	stopped       chan struct{}
	timeOfOneWork time.Duration
}

// counts are how many keys are in work, how many were at most, and of one namespace.
type counts struct{ inWork, most, mostOfOne int }

func runWorkers(t *testing.T, count int, hangs func(namespace string) bool) *workers {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &workers{
		WorkQueue: newTestQueue(), hangs: hangs, release: make(chan struct{}), byNamespace: map[string]int{},
		stop: cancel, stopped: make(chan struct{}),
	}
	go func() {
		defer close(w.stopped)
		w.Run(ctx, count, w.work)
	}()
	t.Cleanup(func() {
		cancel()
		<-w.stopped
	})
	return w
}

func (w *workers) count(namespace string, by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts.inWork += by
	w.byNamespace[namespace] += by
	w.counts.most, w.counts.mostOfOne = max(w.counts.most, w.counts.inWork), max(w.counts.mostOfOne, w.byNamespace[namespace])
}

func (w *workers) counted() counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts
}

func (w *workers) doneCount() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.done)
}

// takeFromNow has each key take a time from now on, and counts most anew.
func (w *workers) takeFromNow(each time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timeOfOneWork, w.counts.most = each, 0
}

func (w *workers) timeOfWork() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.timeOfOneWork
}

func (w *workers) work(ctx context.Context, key types.NamespacedName) {
	w.count(key.Namespace, 1)
	defer w.count(key.Namespace, -1)
	if w.hangs(key.Namespace) {
		select {
		case <-ctx.Done():
		case <-w.release:
		}
	}
	<-time.After(w.timeOfWork())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = append(w.done, key)
}

func (w *workers) isDone(key types.NamespacedName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.done, key)
}

func crowd(namespace string) bool { return namespace != "shop" }

// A namespace in which everything hangs, such as behind a slow admission webhook, holds
// half of the workers.
func TestHangingWorkOfANamespaceLeavesWorkersToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := runWorkers(t, 4, crowd)
		for number := range 100 {
			w.Add(in("crowd", number))
			w.AddUrgent(in("crowd", number+100))
		}
		synctest.Wait()
		w.Add(in("shop", 1))
		synctest.Wait()
		if !w.isDone(in("shop", 1)) {
			t.Error("a key of another namespace waits for a worker")
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if counted := w.counted(); counted.mostOfOne != 2 || counted.inWork != 2 {
			t.Errorf("%d keys of one namespace were in work together, %d are now, want 2 of 4", counted.mostOfOne, counted.inWork)
		}
		close(w.release)
		synctest.Wait()
		if done := w.doneCount(); done != 201 || w.Len() != 0 {
			t.Errorf("%d keys are done, %d left", done, w.Len())
		}
	})
}

// However many namespaces hang, another one finds a worker.
func TestNamespaceWithoutWorkersFindsOneWhateverOthersHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const namespaces = 50
		w := runWorkers(t, 4, crowd)
		for namespace := range namespaces {
			for number := range 10 {
				w.Add(in("crowd-"+strconv.Itoa(namespace), number))
			}
		}
		synctest.Wait()
		if counted := w.counted(); counted.inWork != 4 {
			t.Fatalf("%d keys are in work, want 4", counted.inWork)
		}
		for !w.isDone(in("shop", 1)) && w.counted().inWork < 2*namespaces {
			w.Add(in("shop", 1))
			<-time.After(replaceAfter)
			synctest.Wait()
		}
		if !w.isDone(in("shop", 1)) {
			t.Error("the other namespace had no turn although workers were replaced")
		}
		for w.counted().inWork < 2*namespaces {
			<-time.After(replaceAfter)
			synctest.Wait()
		}
		w.Add(in("shop", 2))
		<-time.After(replaceAfter)
		synctest.Wait()
		if counted := w.counted(); !w.isDone(in("shop", 2)) || counted.mostOfOne != 2 {
			t.Errorf("the other namespace waits while %d keys hang, %d of one namespace", counted.inWork, counted.mostOfOne)
		}

		// Afterwards there are as many workers as before.
		close(w.release)
		synctest.Wait()
		if done := w.doneCount(); done < 10*namespaces+2 || w.Len() != 0 {
			t.Errorf("%d keys are done, %d left", done, w.Len())
		}
		w.takeFromNow(replaceAfter / 2)
		for number := range 100 {
			w.Add(in("later-"+strconv.Itoa(number), number))
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if counted := w.counted(); counted.most != 4 || w.Len() != 0 {
			t.Errorf("%d keys were in work together, want 4, and %d are left", counted.most, w.Len())
		}
	})
}

func TestUrgentKeysOvertake(t *testing.T) {
	queue := newTestQueue()
	defer queue.ShutDown()
	numbered := func(number int) types.NamespacedName { return in("shop", number) }
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
	queue := newTestQueue()
	defer queue.ShutDown()
	queue.Add(in("shop", 1))
	working, _ := queue.Get()
	queue.Add(in("shop", 2))
	queue.AddUrgent(working)
	queue.Done(working)
	if next, _ := queue.Get(); next != working {
		t.Errorf("got %v", next)
	}
}

// A pod whose readiness flaps, behind a thousand Services of a tenant, makes a thousand
// urgent keys each time.
func TestANamespaceWithManyKeysDelaysItsOwn(t *testing.T) {
	queue := newTestQueue()
	defer queue.ShutDown()
	for number := range 1000 {
		queue.Add(in("crowd", number))
		queue.AddUrgent(in("crowd", number+1000))
	}
	queue.Add(in("shop", 1))
	queue.AddUrgent(in("shop", 2))
	place := map[types.NamespacedName]int{}
	for i := range 2002 {
		key, _ := queue.Get()
		place[key] = i
		queue.Done(key)
	}
	if urgent := place[in("shop", 2)]; urgent > 1 {
		t.Errorf("%d others came before an urgent key", urgent)
	}
	if other := place[in("shop", 1)]; other > 2*(urgentInARow+1) {
		t.Errorf("%d others came before a key that is not urgent", other)
	}
}

func TestQueueReportsHowManyKeysWait(t *testing.T) {
	var reported []int
	q := NewWorkQueue(WorkQueueOptions[types.NamespacedName]{
		Clock: clock.RealClock{}, NamespaceOf: NamespaceOf, FirstRetry: time.Millisecond, LastRetry: time.Second,
		Waiting: func(keys int) { reported = append(reported, keys) },
	})
	defer q.ShutDown()
	q.Add(in("shop", 1))
	q.Add(in("shop", 1))
	q.Add(in("shop", 2))
	q.AddUrgent(in("shop", 1))
	key, _ := q.Get()
	q.Add(key)
	q.Done(key)
	if want := []int{1, 2, 2, 1, 2}; !slices.Equal(reported, want) {
		t.Errorf("reported %v, want %v", reported, want)
	}
}
