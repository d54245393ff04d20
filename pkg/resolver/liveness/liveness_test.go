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

package liveness

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns both ends of a connection.
func pair(t *testing.T) (here, there *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	here = resolvertest.Dial(t, listener.Addr().String())
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return here, accepted.(*net.TCPConn)
}

// A step is the state of the kernel after some time, and the expected result.
type step struct {
	after       time.Duration
	outstanding bool
	repeated    int
	// silent is how long ago the peer last acknowledged something.
	silent time.Duration
	dead   bool
}

func TestWhichPeersAreDead(t *testing.T) {
	for name, steps := range map[string][]step{
		"nothing was sent for an hour": {{after: time.Hour, silent: time.Hour}, {after: time.Hour, silent: 2 * time.Hour}},
		"something was sent after an hour": {
			{after: time.Hour, silent: time.Hour, outstanding: true, repeated: 3},
			{after: Limit - time.Second, silent: time.Hour + Limit, outstanding: true, repeated: 7},
			{after: Interval, silent: time.Hour + Limit + Interval},
		},
		"no acknowledgement": {
			{outstanding: true},
			{after: Limit - time.Second, silent: Limit - time.Second, outstanding: true, repeated: 6},
			{after: time.Second, silent: Limit, outstanding: true, repeated: 7, dead: true},
		},
		"an acknowledgement now and then": {
			{outstanding: true},
			{after: Limit - time.Second, silent: Limit - time.Second, outstanding: true, repeated: 6},
			{after: 2 * time.Second, silent: time.Second, outstanding: true},
			{after: Limit - 2*time.Second, silent: Limit - time.Second, outstanding: true, repeated: 6},
			{after: time.Second, silent: Limit, outstanding: true, repeated: 7, dead: true},
		},
		// The kernel sends one window probe every two minutes by now.
		"a reader that has stopped for long": {
			{after: time.Hour, silent: 2 * time.Minute, outstanding: true, repeated: 1},
			{after: Limit, silent: 2*time.Minute + Limit, outstanding: true, repeated: 1},
			{after: time.Minute, silent: time.Second},
			{after: time.Minute, silent: 2 * time.Minute, outstanding: true, repeated: 1},
			{after: 2 * time.Minute, silent: 4 * time.Minute, outstanding: true, repeated: 2, dead: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn, _ := pair(t)
			clock := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
			var now step
			closed := false
			w := New(Options{Clock: clock, Closed: func(*net.TCPConn) { closed = true }, ReadState: func(*net.TCPConn) (socket.Unacknowledged, error) {
				return socket.Unacknowledged{Outstanding: now.outstanding, Repeated: now.repeated, SinceAcknowledged: now.silent}, nil
			}})
			w.Add(conn)
			for i, next := range steps {
				now = next
				clock.Step(next.after)
				w.check(t.Context())
				if closed != next.dead {
					t.Fatalf("step %d: closed is %t", i, closed)
				}
			}
		})
	}
}

func TestClosedConnectionIsForgotten(t *testing.T) {
	conn, _ := pair(t)
	w := New(Options{Closed: func(*net.TCPConn) { t.Error("a closed connection is closed again") }})
	w.Add(conn)
	conn.Close()
	w.check(t.Context())
	if w.Count() != 0 {
		t.Error("a closed connection is still watched")
	}
}

// watch runs a watch with a hundredth of the intervals and counts its checks.
func watch(t *testing.T, conn *net.TCPConn) (checks *atomic.Int64, closed <-chan struct{}) {
	t.Helper()
	checks = &atomic.Int64{}
	ended := make(chan struct{})
	w := New(Options{
		Interval: Interval / 100, Limit: Limit / 100,
		Closed: func(*net.TCPConn) { close(ended) },
		ReadState: func(conn *net.TCPConn) (socket.Unacknowledged, error) {
			checks.Add(1)
			return readState(conn)
		},
	})
	w.Add(conn)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return checks, ended
}

// A peer that does not read has a zero window, and acknowledges window probes.
func TestReaderThatStopsIsNotDead(t *testing.T) {
	here, there := pair(t)
	const size = 32 << 20
	var writing sync.WaitGroup
	writing.Go(func() {
		if _, err := here.Write(make([]byte, size)); err != nil {
			t.Errorf("writing: %v", err)
		}
	})
	defer writing.Wait()
	checks, closed := watch(t, here)
	// Six times the limit.
	resolvertest.Eventually(t, func() bool { return checks.Load() >= 6*int64(Limit/Interval) })
	select {
	case <-closed:
		t.Error("the peer counts as dead")
	default:
	}
	if n, err := io.CopyN(io.Discard, there, size); err != nil {
		t.Errorf("%d bytes of %d arrived: %v", n, size, err)
	}
}

// A peer from which no packet arrives any more, not even a reset, is dead.
func TestUnreachablePeerIsDead(t *testing.T) {
	if !resolvertest.InOwnProcess(t, true) {
		return
	}
	here, there := pair(t)
	_, closed := watch(t, here)
	if _, err := io.WriteString(here, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(there, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	resolvertest.SetLoopback(t, false)
	if _, err := io.WriteString(here, "hello?"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Fatal("the connection was not closed")
	}
	if _, err := here.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is still open")
	}
}

// A panic ends one connection, and the others stay watched.
func TestAPanicEndsOneConnection(t *testing.T) {
	first, other := pair(t)
	second, _ := pair(t)
	var panics atomic.Int32
	w := New(Options{
		Interval: time.Millisecond,
		Tasks:    task.New(func(task.Panic) { panics.Add(1) }),
		ReadState: func(conn *net.TCPConn) (socket.Unacknowledged, error) {
			if conn == first {
				panic("a fault")
			}
			return readState(conn)
		},
	})
	w.Add(first)
	w.Add(second)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	// Copy returns when the connection has ended.
	_, _ = io.Copy(io.Discard, other)
	cancel()
	<-done
	if panics.Load() != 1 || w.Count() != 1 {
		t.Errorf("%d panics, %d connections are watched", panics.Load(), w.Count())
	}
}
