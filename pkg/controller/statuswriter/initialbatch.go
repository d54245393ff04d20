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
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/fairqueue"
)

// A client that creates a few ElastiServices observes their first statuses at once. A
// client that creates hundreds in a row must not wait for the disk and the processor
// that as many statuses take: the rest of those are written when no more are created,
// and this many a second until then.
const (
	firstStatusesAtOnce    = 10
	firstStatusesPerSecond = 10
	// quietPeriod is how long no ElastiService must have been added for the batch to
	// count as complete.
	quietPeriod = 100 * time.Millisecond
)

// initialBatch holds ElastiServices that have no status yet, and admits them to the
// queue of statuses at a limited rate, fairly among namespaces: a client that keeps
// creating them delays those of its own namespaces. It is safe for concurrent use.
type initialBatch struct {
	clock   clock.WithTicker
	limiter flowcontrol.PassiveRateLimiter
	// admit is called with each ElastiService that may have its status written,
	// once or more.
	admit func(types.NamespacedName)
	// added has a token when an ElastiService has begun to wait.
	added chan struct{}

	mu sync.Mutex
	// waiting are the ElastiServices that wait.
	waiting *fairqueue.Queue[types.NamespacedName]
	// arrived is whether any was added since the last tick.
	arrived bool
}

func newInitialBatch(clock clock.WithTicker, admit func(types.NamespacedName)) *initialBatch {
	return &initialBatch{
		clock:   clock,
		limiter: flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(firstStatusesPerSecond, firstStatusesAtOnce, clock),
		admit:   admit,
		added:   make(chan struct{}, 1),
		waiting: fairqueue.New(fairqueue.NamespaceOf),
	}
}

// add admits an ElastiService now or later. An ElastiService that waits already keeps waiting.
func (b *initialBatch) add(key types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting.Has(key) {
		return
	}
	b.arrived = true
	if b.waiting.Len() == 0 && b.limiter.TryAccept() {
		b.admit(key)
		return
	}
	b.waiting.Push(key)
	select {
	case b.added <- struct{}{}:
	default:
	}
}

// has reports whether an ElastiService waits.
func (b *initialBatch) has(key types.NamespacedName) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting.Has(key)
}

// run admits the ElastiServices that wait, until ctx ends.
func (b *initialBatch) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.added:
			b.admitAll(ctx)
		}
	}
}

// admitAll admits ElastiServices until none waits any more.
func (b *initialBatch) admitAll(ctx context.Context) {
	ticker := b.clock.NewTicker(quietPeriod)
	defer ticker.Stop()
	for b.anyWaiting() {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			b.admitSome()
		}
	}
}

func (b *initialBatch) anyWaiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting.Len() > 0
}

// admitSome admits all when none was added since the last tick, and otherwise as
// many as the rate allows.
func (b *initialBatch) admitSome() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.waiting.Len() > 0 && (!b.arrived || b.limiter.TryAccept()) {
		b.admit(b.waiting.Pop())
	}
	b.arrived = false
}
