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

// wakeTurns paces the wakes of targets that all have to be woken. Each namespace gets its
// turn: one with thousands of targets delays its own. It is safe for concurrent use.
type wakeTurns struct {
	mu    sync.Mutex
	pacer *rate.Limiter
	// waiting has those that wait for their turn, having those that have it.
	waiting *fairqueue.Queue[types.NamespacedName]
	having  map[types.NamespacedName]bool
	// report is called with how many wait.
	report func(waiting int)
}

func newWakeTurns(perSecond float64, report func(waiting int)) *wakeTurns {
	return &wakeTurns{
		report:  report,
		pacer:   rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond))),
		waiting: fairqueue.New(fairqueue.NamespaceOf),
		having:  map[types.NamespacedName]bool{},
	}
}

// join has an ElastiService wait for its turn, unless it does or has it.
func (w *wakeTurns) join(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.having[key] && !w.waiting.Has(key) {
		w.waiting.Push(key)
		w.report(w.waiting.Len())
	}
}

// leave ends the waiting of an ElastiService, or its turn. It does nothing for one that
// neither waits nor has it.
func (w *wakeTurns) leave(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting.Remove(key)
	delete(w.having, key)
	w.report(w.waiting.Len())
}

// has reports whether an ElastiService has its turn.
func (w *wakeTurns) has(key types.NamespacedName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.having[key]
}

// give gives those that wait their turns, as many as there may be until now, and returns
// them, and how long until the next one. Zero when none waits any more.
func (w *wakeTurns) give(now time.Time) (given []types.NamespacedName, next time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.report(w.waiting.Len()) }()
	for w.waiting.Len() > 0 {
		reservation := w.pacer.ReserveN(now, 1)
		if delay := reservation.DelayFrom(now); delay > 0 {
			reservation.CancelAt(now)
			return given, delay
		}
		key := w.waiting.Pop()
		w.having[key] = true
		given = append(given, key)
	}
	return given, 0
}
