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

// Package liveness finds the connections whose peers are gone without a word,
// such as with their node, and closes them.
//
// The kernel asks a peer that has nothing to acknowledge whether it is there
// (TCP keep-alive). For one that has, its own limit is either a quarter of an
// hour or, with TCP_USER_TIMEOUT, also one for peers that are there and only do
// not read. A peer that answers, be it that it has no room for more, lives as
// long as it likes.
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
	// Interval is the time between two looks at all connections.
	Interval = 5 * time.Second
	// Limit is how long a peer may acknowledge nothing of what it was sent.
	Limit = 30 * time.Second
	// minRepeated is how often something must have been sent again by then: a
	// peer that has been without room for long is asked every two minutes.
	minRepeated = 2
)

// Options are what a Watch is made of.
type Options struct {
	// Closed is called with each connection that was closed. Optional.
	Closed func(*net.TCPConn)
	// Interval and Limit default to the constants.
	Interval, Limit time.Duration
	// Tasks runs what is done for a connection, so that a panic there ends that
	// connection only. Optional.
	Tasks *task.Runner
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// Ask defaults to asking the kernel.
	Ask func(*net.TCPConn) (socket.Unacknowledged, error)
}

// Watch watches connections. It is safe for concurrent use.
type Watch struct {
	options Options

	mu sync.Mutex
	// since is from when on the peer of each connection is known to have
	// acknowledged nothing; the zero time when it has nothing to acknowledge.
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
	if options.Ask == nil {
		options.Ask = ask
	}
	return &Watch{options: options, since: map[*net.TCPConn]time.Time{}}
}

func ask(conn *net.TCPConn) (socket.Unacknowledged, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return socket.Unacknowledged{}, err
	}
	return socket.AskUnacknowledged(raw)
}

// Add has a connection watched until it is closed, by whoever.
func (w *Watch) Add(conn *net.TCPConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since[conn] = time.Time{}
}

// Count returns how many connections are watched; some may be closed already.
func (w *Watch) Count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.since)
}

// Run looks at all connections now and then, until ctx ends.
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

// check looks at all connections once.
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
	state, err := w.options.Ask(conn)
	if err != nil {
		// It is closed.
		w.forget(conn)
		return
	}
	if !w.gone(conn, state) {
		return
	}
	w.forget(conn)
	klog.FromContext(ctx).V(2).Info("Closed a connection whose peer is gone", "peer", conn.RemoteAddr().String(),
		"silentFor", state.SinceAcknowledged)
	end(conn)
	if w.options.Closed != nil {
		w.options.Closed(conn)
	}
}

// end resets a connection: nothing of what was written will arrive.
func end(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	conn.Close()
}

func (w *Watch) forget(conn *net.TCPConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, conn)
}

// gone notes what is known of a connection now, and reports whether its peer is
// gone.
func (w *Watch) gone(conn *net.TCPConn, state socket.Unacknowledged) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.options.Clock.Now()
	since := w.since[conn]
	switch acknowledged := now.Add(-state.SinceAcknowledged); {
	case !state.Outstanding:
		w.since[conn] = time.Time{}
		return false
	case since.IsZero():
		// What it was sent may have been sent just now, however long it was idle.
		w.since[conn] = now
		return false
	case acknowledged.After(since):
		w.since[conn] = acknowledged
		return false
	}
	return now.Sub(since) >= w.options.Limit && state.Repeated >= minRepeated
}
