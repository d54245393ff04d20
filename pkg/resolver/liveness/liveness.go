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

// Package liveness closes connections whose peers are dead without having closed
// them, such as after the failure of a node.
//
// TCP keep-alive detects a dead peer that has nothing to acknowledge. For a peer
// that has, the kernel retransmits for about a quarter of an hour, and
// TCP_USER_TIMEOUT also closes the connections of peers that are alive and do not
// read. A peer that acknowledges anything, including with a zero window, is alive.
//
// It knows nothing of what a connection carries. Begin with Watch.
package liveness

import (
	"context"
	"net"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

const (
	// Interval is the time between two checks of all connections.
	Interval = 5 * time.Second
	// Limit is how long sent bytes may stay unacknowledged.
	Limit = 30 * time.Second
	// minRepeated is the least number of retransmissions and window probes of a
	// dead peer. After a long time the kernel sends a peer with a zero window one
	// probe every two minutes.
	minRepeated = 2
)

// Options configure a Watch.
type Options struct {
	// Closed is called with each connection that was closed. Optional.
	Closed func(*net.TCPConn)
	// Interval and Limit default to the constants.
	Interval, Limit time.Duration
	// Tasks runs the check of each connection, so that a panic ends that connection
	// only. Optional.
	Tasks *task.Runner
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// ReadState returns the state of a connection. Defaults to that of the kernel.
	ReadState func(*net.TCPConn) (socket.Unacknowledged, error)
}

// Watch watches connections. It is safe for concurrent use.
type Watch struct {
	options Options

	mu sync.Mutex
	// since is the time since which the peer of a connection has acknowledged
	// nothing. It is zero when the peer has nothing to acknowledge.
	since map[*net.TCPConn]time.Time
}

// New returns a Watch of no connections.
func New(options Options) *Watch {
	if options.Interval == 0 {
		options.Interval = Interval
	}
	if options.Limit == 0 {
		options.Limit = Limit
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.ReadState == nil {
		options.ReadState = readState
	}
	return &Watch{options: options, since: map[*net.TCPConn]time.Time{}}
}

func readState(conn *net.TCPConn) (socket.Unacknowledged, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return socket.Unacknowledged{}, err
	}
	return socket.ReadUnacknowledged(raw)
}

// Add watches a connection until it is closed.
func (w *Watch) Add(conn *net.TCPConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since[conn] = time.Time{}
}

// Count returns the number of watched connections, some of which may be closed.
func (w *Watch) Count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.since)
}

// Run checks all connections periodically, until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	ticker := w.options.Clock.NewTicker(w.options.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			w.check(ctx)
		}
	}
}

// check checks all connections once.
func (w *Watch) check(ctx context.Context) {
	w.mu.Lock()
	all := make([]*net.TCPConn, 0, len(w.since))
	for conn := range w.since {
		all = append(all, conn)
	}
	w.mu.Unlock()
	for _, conn := range all {
		w.options.Tasks.Run(func() { w.forget(conn); end(conn) }, func() { w.checkOne(ctx, conn) })
	}
}

func (w *Watch) checkOne(ctx context.Context, conn *net.TCPConn) {
	state, err := w.options.ReadState(conn)
	if err != nil {
		// The connection is closed.
		w.forget(conn)
		return
	}
	if !w.dead(conn, state) {
		return
	}
	w.forget(conn)
	klog.FromContext(ctx).V(2).Info("Closed the connection of a dead peer", "peer", conn.RemoteAddr().String(),
		"silentFor", state.SinceAcknowledged)
	end(conn)
	if w.options.Closed != nil {
		w.options.Closed(conn)
	}
}

// end resets a connection, because the peer will not receive what was written.
func end(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	conn.Close()
}

func (w *Watch) forget(conn *net.TCPConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, conn)
}

// dead records the state of a connection and reports whether its peer is dead.
func (w *Watch) dead(conn *net.TCPConn, state socket.Unacknowledged) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.options.Clock.Now()
	since := w.since[conn]
	switch acknowledged := now.Add(-state.SinceAcknowledged); {
	case !state.Outstanding:
		w.since[conn] = time.Time{}
		return false
	case since.IsZero():
		// The bytes may have been sent just now, however long the connection was idle.
		w.since[conn] = now
		return false
	case acknowledged.After(since):
		w.since[conn] = acknowledged
		return false
	}
	return now.Sub(since) >= w.options.Limit && state.Repeated >= minRepeated
}
