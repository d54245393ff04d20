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
	// besideDelay is the least time without a response after which another call is made. A
	// connection may lead to a replica on a failed node until the control plane has noticed
	// the failure.
	besideDelay = 300 * time.Millisecond
	// While quickBeside of them, or more, are without a response too, the delay is
	// maxBesideDelay: perhaps no replica responds, and the first one that does is to be
	// called soon after, with few calls until then.
	quickBeside = 5
	// slowFactor: where calls are usually slow, the delay is this multiple of their usual
	// duration, at most maxBesideDelay.
	slowFactor     = 3
	maxBesideDelay = 2 * time.Second
	// The usual duration is a moving average. A call has the weight 1/fasterParts if it is
	// faster than the average and 1/slowerParts if it is slower, so that slow wakes of one
	// tenant do not delay the calls of others.
	fasterParts, slowerParts = 2, 8
	// A call counts as slower than usual by slowest at most: a single one that hung for
	// seconds says nothing of the API server.
	slowest = 300 * time.Millisecond
	// reservePeriod is how often a namespace may make such a call whatever the others do.
	reservePeriod = time.Second
)

// Beside decides when a waker makes another call while one has no response. It
// distinguishes a failed replica, beside which other calls are fast, from a busy API server,
// which more calls would slow down. It is safe for concurrent use.
type Beside struct {
	// limiter limits these calls in number, for all wakers together, save for those that
	// are reserved.
	limiter flowcontrol.PassiveRateLimiter

	mu sync.Mutex
	// reserved has the time of the last reserved call of each namespace, those of the last
	// reservePeriod only.
	reserved map[string]time.Time
	// usualDuration is the moving average of the durations of calls that succeeded.
	usualDuration time.Duration
}

// NewBeside returns a Beside, which all wakers of a resolver share.
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
	return min(max(besideDelay, slowFactor*b.usualDuration), maxBesideDelay)
}

// succeeded records the duration of a call that succeeded.
func (b *Beside) succeeded(took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	parts := time.Duration(slowerParts)
	if took < b.usualDuration {
		parts = fasterParts
	}
	b.usualDuration += min(took-b.usualDuration, slowest) / parts
}
