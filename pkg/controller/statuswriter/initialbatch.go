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

package statuswriter

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
)

// Who creates a few ElastiServices sees their first statuses at once. Who
// creates hundreds in a row is not to wait for the disk and the processor that
// as many statuses take: the rest of those are written when no more come, and
// this many a second until then.
const (
	firstStatusesAtOnce    = 10
	firstStatusesPerSecond = 10
	// quietPeriod is how long nothing new came when no more is expected.
	quietPeriod = 100 * time.Millisecond
)

// initialBatch are ElastiServices that have no status yet. They pass on to where
// statuses are written, not all at the same time. It is safe for concurrent use.
type initialBatch struct {
	clock   clock.WithTicker
	limiter flowcontrol.PassiveRateLimiter
	// admit is called with each that may have its status written, once or more.
	admit func(types.NamespacedName)
	// came has a token when one has begun to wait.
	came chan struct{}

	mu sync.Mutex
	// waiting are those that wait, in the order in which they came.
	waiting []types.NamespacedName
	waits   sets.Set[types.NamespacedName]
	// arrived is whether any came since the last look.
	arrived bool
}

func newInitialBatch(clock clock.WithTicker, pass func(types.NamespacedName)) *initialBatch {
	return &initialBatch{
		clock:   clock,
		limiter: flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(firstStatusesPerSecond, firstStatusesAtOnce, clock),
		admit:   pass,
		came:    make(chan struct{}, 1),
		waits:   sets.New[types.NamespacedName](),
	}
}

// add lets one pass now or later. One that waits already goes on waiting.
func (n *initialBatch) add(key types.NamespacedName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waits.Has(key) {
		return
	}
	n.arrived = true
	if len(n.waiting) == 0 && n.limiter.TryAccept() {
		n.admit(key)
		return
	}
	n.waiting = append(n.waiting, key)
	n.waits.Insert(key)
	select {
	case n.came <- struct{}{}:
	default:
	}
}

// has reports whether one waits.
func (n *initialBatch) has(key types.NamespacedName) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.waits.Has(key)
}

// run lets those pass that wait, until ctx ends.
func (n *initialBatch) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.came:
			n.admitAll(ctx)
		}
	}
}

// admitAll returns when none waits any more.
func (n *initialBatch) admitAll(ctx context.Context) {
	looks := n.clock.NewTicker(quietPeriod)
	defer looks.Stop()
	for n.anyWaiting() {
		select {
		case <-ctx.Done():
			return
		case <-looks.C():
			n.admitSome()
		}
	}
}

func (n *initialBatch) anyWaiting() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.waiting) > 0
}

// admitSome lets all pass when none came since the last look, and otherwise
// as many as the rate allows.
func (n *initialBatch) admitSome() {
	n.mu.Lock()
	defer n.mu.Unlock()
	passed := 0
	for ; passed < len(n.waiting) && (!n.arrived || n.limiter.TryAccept()); passed++ {
		n.waits.Delete(n.waiting[passed])
		n.admit(n.waiting[passed])
	}
	n.waiting = n.waiting[passed:]
	if len(n.waiting) == 0 {
		n.waiting = nil
	}
	n.arrived = false
}
