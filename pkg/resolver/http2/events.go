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

// happenings are what the goroutine that reads from a client is told by others.
type happenings struct {
	// settled: the wait of a held stream is over.
	settled bool
	// podEnded: the connection to the pod has ended.
	podEnded bool
	// podSpoke: the pod has sent its first frame.
	podSpoke bool
	// podAcked: the pod has acknowledged SETTINGS, and others wait for that.
	podAcked bool
	// podLeft: the pod has told which streams it does not serve.
	podLeft bool
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
	pending happenings
	// deadline is the one that is set.
	deadline time.Time
}

func (e *events) settle()      { e.tell(happenings{settled: true}) }
func (e *events) endPod()      { e.tell(happenings{podEnded: true}) }
func (e *events) speak()       { e.tell(happenings{podSpoke: true}) }
func (e *events) acked()       { e.tell(happenings{podAcked: true}) }
func (e *events) leave()       { e.tell(happenings{podLeft: true}) }
func (e *events) idle()        { e.tell(happenings{idle: true}) }
func (e *events) drain()       { e.tell(happenings{draining: true}) }
func (h happenings) any() bool { return h != happenings{} }

func (e *events) tell(what happenings) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pending.settled = e.pending.settled || what.settled
	e.pending.podEnded = e.pending.podEnded || what.podEnded
	e.pending.podSpoke = e.pending.podSpoke || what.podSpoke
	e.pending.podAcked = e.pending.podAcked || what.podAcked
	e.pending.podLeft = e.pending.podLeft || what.podLeft
	e.pending.idle = e.pending.idle || what.idle
	e.pending.draining = e.pending.draining || what.draining
	e.deadline = past
	// It fails only when the connection is closed, which wakes the reader too.
	_ = e.conn.SetReadDeadline(past)
}

// take returns what has happened since the last call.
func (e *events) take() happenings {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.pending
	e.pending = happenings{}
	return now
}

// arm sets when the reader is to wake at the latest, unless something has
// happened already.
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
