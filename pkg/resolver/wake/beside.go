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

package wake

import (
	"maps"
	"sync"
	"time"

	"k8s.io/client-go/util/flowcontrol"
)

const (
	// besideDelay is how long a call may be without a response, at least, before another
	// one is made beside it. A connection to the API server leads to any of its replicas, also
	// to one on a node that died, until the control plane has noticed.
	besideDelay = 300 * time.Millisecond
	// While quickBeside of them, or more, are without a response too, the delay is
	// maxBesideDelay: perhaps no replica responds, and the first one that does is to be
	// called soon after, with few calls until then.
	quickBeside = 5
	// Where calls usually take longer than besideDelay, the delay is slowFactor times as long
	// as they do, and maxBesideDelay at most.
	slowFactor     = 3
	maxBesideDelay = 2 * time.Second
	// The usual time of a call is a moving average, of which a call is one part in so many.
	// One that is faster counts more: slow wakes of one tenant do not make the API server a
	// busy one for the others.
	fasterParts, slowerParts = 2, 8
	// A call counts as slower than usual by slowest at most: a single one that hung for
	// seconds says nothing of the API server.
	slowest = 300 * time.Millisecond
	// reservePeriod is how often a namespace may make such a call whatever the others do.
	reservePeriod = time.Second
)

// Beside decides when the wakers of one resolver make a call beside another one of which
// there is no response yet. An API server that does not respond to some calls, such as to
// those that reach a replica whose node died, responds to the others as fast as ever. One
// that is only busy is slow to respond to all of them, and more calls would make it slower.
// It is safe for concurrent use.
type Beside struct {
	// limiter limits these calls in number, for all wakers together, save for those that
	// are reserved.
	limiter flowcontrol.PassiveRateLimiter

	mu sync.Mutex
	// reserved has the time of the last reserved call of each namespace, those of the last
	// reservePeriod only.
	reserved map[string]time.Time
	// usual is how long calls that succeeded have taken, as a moving average.
	usual time.Duration
}

// NewBeside returns what one resolver needs.
func NewBeside() *Beside {
	const perSecond, atOnce = 20, 20
	return &Beside{limiter: flowcontrol.NewTokenBucketPassiveRateLimiter(perSecond, atOnce)}
}

// accept reports whether a call for a namespace may be made now. Each namespace has one
// in a reservePeriod that others cannot take: many wakes of one tenant may hang at once,
// and a single one of another is not to wait for them.
func (b *Beside) accept(namespace string, now time.Time) bool {
	return b.takeReserved(namespace, now) || b.limiter.TryAccept()
}

func (b *Beside) takeReserved(namespace string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last, ok := b.reserved[namespace]; ok && now.Sub(last) < reservePeriod {
		return false
	}
	maps.DeleteFunc(b.reserved, func(_ string, last time.Time) bool { return now.Sub(last) >= reservePeriod })
	if b.reserved == nil {
		b.reserved = map[string]time.Time{}
	}
	b.reserved[namespace] = now
	return true
}

// delay returns for how long the calls in progress may be without a response.
func (b *Beside) delay(inProgress int) time.Duration {
	if inProgress > quickBeside {
		return maxBesideDelay
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return min(max(besideDelay, slowFactor*b.usual), maxBesideDelay)
}

// succeeded records how long a call has taken that succeeded.
func (b *Beside) succeeded(took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	parts := time.Duration(slowerParts)
	if took < b.usual {
		parts = fasterParts
	}
	b.usual += min(took-b.usual, slowest) / parts
}
