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

package activity

import (
	"sync/atomic"
	"time"
)

// Policy says what is reported of a service.
type Policy struct {
	// Report is true when the controller decides by the traffic of the service.
	Report bool
	// KeepAlive is true when reports are sent in each interval, also without traffic.
	KeepAlive bool
	// Interval is the time between two reports.
	Interval time.Duration
}

// never is the age of the last request while there was none.
const never = -1

// Tracker counts the traffic of one service. It is safe for concurrent use.
type Tracker struct {
	// Immutable.
	namespace, name string
	// since is when counting began. All other times are relative to it.
	since time.Time
	// reporter is nil when nothing is reported.
	reporter *Reporter

	// open is how many requests and connections are held or forwarded.
	open atomic.Int64
	// last is when one of them last ended, or never.
	last atomic.Int64
	// armed is true when the next request is reported at once.
	armed  atomic.Bool
	closed atomic.Bool
	policy atomic.Pointer[Policy]

	// Owned by the worker that syncs the tracker.
	reported reported
}

// reported is the last reported state, and the number of failures since.
type reported struct {
	open     bool
	last     int64
	failures int
}

// NewTracker returns a tracker without a reporter.
func NewTracker() *Tracker {
	t := &Tracker{since: time.Now(), reported: reported{last: never}}
	t.last.Store(never)
	t.policy.Store(&Policy{})
	return t
}

// Begin counts a request or connection, until End is called.
func (t *Tracker) Begin() {
	t.open.Add(1)
	if t.armed.Load() && t.armed.CompareAndSwap(true, false) {
		t.reporter.soon(t)
	}
}

// End ends the request or connection that Begin counted.
func (t *Tracker) End() {
	// In this order a reader that sees no open request also sees the time of the end.
	t.last.Store(int64(time.Since(t.since)))
	t.open.Add(-1)
}

// Open returns how many requests and connections are counted now.
func (t *Tracker) Open() int64 { return t.open.Load() }

// Ended reports whether any has ended yet.
func (t *Tracker) Ended() bool { return t.last.Load() != never }

// Needed reports whether the controller decides by the traffic of the service.
func (t *Tracker) Needed() bool { return t.policy.Load().Report }

// Apply sets what is reported. It must not be called concurrently.
func (t *Tracker) Apply(policy Policy) {
	if before := t.policy.Swap(&policy); *before != policy && policy.Report && t.reporter != nil {
		t.reporter.now(t)
	}
}

// Close ends the reports about the service.
func (t *Tracker) Close() {
	t.closed.Store(true)
	t.armed.Store(false)
}

// state is the observed traffic.
type state struct {
	open int64
	last int64
}

func (t *Tracker) state() state {
	// In this order the time of a request that ends in between is in last.
	open := t.open.Load()
	return state{open: open, last: t.last.Load()}
}

// changed reports whether a state differs from the last reported one.
func (t *Tracker) changed(now state) bool {
	return now.open > 0 || t.reported.open || now.last != t.reported.last
}

// arm makes the next request be reported at once. It returns false when there is a
// request already.
func (t *Tracker) arm() (armed bool) {
	t.armed.Store(true)
	return !t.changed(t.state()) || !t.armed.CompareAndSwap(true, false)
}
