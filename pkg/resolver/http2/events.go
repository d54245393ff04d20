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

package http2

import (
	"net"
	"sync"
	"time"
)

// past is a time that every deadline has passed.
var past = time.Unix(1, 0)

// signals are what the goroutine that reads from a client learns from others.
type signals struct {
	// resolved: the wait of a held stream is over.
	resolved bool
	// podEnded: the connection to the pod has ended.
	podEnded bool
	// podSpoke: the pod has sent its first frame.
	podSpoke bool
	// podAcked: the pod has acknowledged SETTINGS, and others wait for that.
	podAcked bool
	// podGoAway: the pod has reported which streams it does not serve.
	podGoAway bool
	// idle: the last stream of a connection that is to end has ended.
	idle bool
	// draining: the client is to go elsewhere.
	draining bool
}

// events wake the goroutine that reads from a client, by moving the read deadline
// of its connection into the past. It is safe for concurrent use.
type events struct {
	conn net.Conn

	mu      sync.Mutex
	pending signals
	// deadline is the one that is set.
	deadline time.Time
}

func (e *events) resolve()  { e.signal(signals{resolved: true}) }
func (e *events) endPod()   { e.signal(signals{podEnded: true}) }
func (e *events) speak()    { e.signal(signals{podSpoke: true}) }
func (e *events) acked()    { e.signal(signals{podAcked: true}) }
func (e *events) goAway()   { e.signal(signals{podGoAway: true}) }
func (e *events) idle()     { e.signal(signals{idle: true}) }
func (e *events) drain()    { e.signal(signals{draining: true}) }
func (s signals) any() bool { return s != signals{} }

func (e *events) signal(what signals) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pending.resolved = e.pending.resolved || what.resolved
	e.pending.podEnded = e.pending.podEnded || what.podEnded
	e.pending.podSpoke = e.pending.podSpoke || what.podSpoke
	e.pending.podAcked = e.pending.podAcked || what.podAcked
	e.pending.podGoAway = e.pending.podGoAway || what.podGoAway
	e.pending.idle = e.pending.idle || what.idle
	e.pending.draining = e.pending.draining || what.draining
	e.deadline = past
	// It fails only when the connection is closed, which wakes the reader too.
	_ = e.conn.SetReadDeadline(past)
}

// take returns the signals since the last call.
func (e *events) take() signals {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.pending
	e.pending = signals{}
	return now
}

// arm sets when the reader is to wake at the latest, unless a signal is
// pending.
func (e *events) arm(deadline time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pending.any() || e.deadline.Equal(deadline) {
		return
	}
	e.deadline = deadline
	_ = e.conn.SetReadDeadline(deadline)
}

// latest returns the deadline that is set.
func (e *events) latest() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.deadline
}
