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

package http1

import (
	"sync"
	"time"
)

const (
	// endsWithin is how long a pod may take to close a connection that it said it
	// closes.
	endsWithin = time.Second
	// closedFor is how long the kernel keeps the state of a connection that was
	// closed here first, and with it the port that it came from: TIME_WAIT.
	closedFor = time.Minute
	// maxClosed is how many of these there may be. A pod can be reached from no
	// more than some 28,000 ports.
	maxClosed = 8192
)

// setPod replaces the client's connection to a pod and closes the one before. With nil
// it has none.
func (c *conn) setPod(pod *podConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pod != nil {
		c.pod.in.release()
		c.server.closePod(c.pod)
	}
	c.pod = pod
}

// awaitPod waits a moment for a pod to close a connection that it said it closes.
func (c *conn) awaitPod() {
	if c.pod == nil || !c.pod.ends || c.pod.tcp.SetReadDeadline(time.Now().Add(endsWithin)) != nil {
		return
	}
	// However it ends, the connection is closed next.
	_ = c.pod.tcp.WaitClosed()
}

func (s *Server) closePod(pod *podConn) {
	pod.charge.Release()
	if !pod.tcp.Idle() {
		// The pod has closed it, or gets a reset for what it sent unsolicited.
		pod.tcp.Close()
		return
	}
	if s.closed.add(time.Now()) > maxClosed {
		// A reset leaves nothing behind.
		pod.tcp.Reset()
		return
	}
	pod.tcp.Close()
}

// recently counts what happened in the last minute, or a little longer ago.
type recently struct {
	mu sync.Mutex
	// count is how many there were from the time since on, before how many in the minute
	// before that.
	since         time.Time
	count, before int
}

// add counts one more, and returns how many there are.
func (r *recently) add(now time.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch age := now.Sub(r.since); {
	case age >= 2*closedFor:
		r.since, r.count, r.before = now, 0, 0
	case age >= closedFor:
		r.since, r.count, r.before = r.since.Add(closedFor), 0, r.count
	}
	r.count++
	return r.count + r.before
}
