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

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/fairqueue"
)

// wakeQueue limits the rate of the wakes of targets that all have to be woken. It is fair
// between namespaces: one with thousands of targets delays its own. It is safe for concurrent
// use.
type wakeQueue struct {
	mu      sync.Mutex
	limiter *rate.Limiter
	// waiting has the ElastiServices whose targets wait to be woken.
	waiting *fairqueue.Queue[types.NamespacedName]
	// admitted has the ElastiServices whose targets may be woken now.
	admitted map[types.NamespacedName]bool
	// report is called with how many wait.
	report func(waiting int)
}

func newWakeQueue(perSecond float64, report func(waiting int)) *wakeQueue {
	return &wakeQueue{
		report:   report,
		limiter:  rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond))),
		waiting:  fairqueue.New(fairqueue.NamespaceOf),
		admitted: map[types.NamespacedName]bool{},
	}
}

// add puts an ElastiService in the queue, unless it waits already or is admitted.
func (w *wakeQueue) add(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.admitted[key] && !w.waiting.Has(key) {
		w.waiting.Push(key)
		w.report(w.waiting.Len())
	}
}

// remove removes an ElastiService, whether it waits or is admitted. It does nothing for any
// other.
func (w *wakeQueue) remove(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting.Remove(key)
	delete(w.admitted, key)
	w.report(w.waiting.Len())
}

// isAdmitted reports whether the target of an ElastiService may be woken now.
func (w *wakeQueue) isAdmitted(key types.NamespacedName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.admitted[key]
}

// admit admits as many of the waiting ElastiServices as the rate allows until now. It returns
// these, and how long until the next one: zero when none waits any more.
func (w *wakeQueue) admit(now time.Time) (admitted []types.NamespacedName, next time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.report(w.waiting.Len()) }()
	for w.waiting.Len() > 0 {
		reservation := w.limiter.ReserveN(now, 1)
		if delay := reservation.DelayFrom(now); delay > 0 {
			reservation.CancelAt(now)
			return admitted, delay
		}
		key := w.waiting.Pop()
		w.admitted[key] = true
		admitted = append(admitted, key)
	}
	return admitted, 0
}
