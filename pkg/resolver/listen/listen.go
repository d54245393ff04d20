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

// Package listen opens and closes the listeners of a resolver, each without
// disturbing the others.
//
// It knows nothing of what is served on them. Begin with Set.
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localfault"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// Accepting goes on after an error: out of file descriptors, it is worth trying
// again after 5 ms, 10 ms, … 1 s. Connections wait in the backlog meanwhile.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

// A Handler owns an accepted connection. It is called in a goroutine of its own, and returns
// what serves the connection there. Shutdown waits for the Handler and not for that. Nil: there
// is nothing left to serve.
type Handler func(conn *net.TCPConn) (serve func())

// Options are what a Set is made of.
type Options struct {
	// BindAddress is where ports are opened. Empty: all addresses of all families.
	BindAddress string
	// Logger is the base of log lines.
	Logger klog.Logger
	// Faulted is called each time that a fault of this machine keeps a connection
	// from being accepted. Optional.
	Faulted func(*localfault.Error)
}

// Set is the open listeners by port. It is safe for concurrent use.
type Set struct {
	// Immutable.
	options Options

	// accepted is when a connection was accepted last.
	accepted atomic.Pointer[time.Time]

	mu        sync.Mutex
	listeners map[int32]*listener
	closed    bool
	// accepting are the goroutines that accept connections, and the Handlers of those.
	accepting sync.WaitGroup
}

type listener struct {
	tcp *net.TCPListener
	// closing ends the pauses between failures to accept.
	closing context.Context
	close   context.CancelFunc
}

// New returns an empty set.
func New(options Options) *Set {
	return &Set{options: options, listeners: map[int32]*listener{}}
}

// Open listens on a port, and hands each connection to handle. A port that is
// open already is an error.
func (s *Set) Open(port int32, handle Handler) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("opening port %d: the listeners are shut down", port)
	}
	if s.listeners[port] != nil {
		return fmt.Errorf("opening port %d: it is open already", port)
	}
	address := net.JoinHostPort(s.options.BindAddress, strconv.Itoa(int(port)))
	config := net.ListenConfig{KeepAliveConfig: socket.KeepAlive()}
	bound, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return fmt.Errorf("opening port %d: %w", port, err)
	}
	closing, cancel := context.WithCancel(context.Background())
	l := &listener{tcp: bound.(*net.TCPListener), closing: closing, close: cancel}
	s.listeners[port] = l
	s.accepting.Go(func() { s.accept(l, handle, s.options.Logger.WithValues("port", port)) })
	return nil
}

// Address returns where a port is listened on, or nil.
func (s *Set) Address(port int32) net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.listeners[port]; l != nil {
		return l.tcp.Addr()
	}
	return nil
}

// LastAccepted returns when a connection was accepted last, on any port; the
// zero time when none was.
func (s *Set) LastAccepted() time.Time {
	if last := s.accepted.Load(); last != nil {
		return *last
	}
	return time.Time{}
}

// Count returns how many listeners are open.
func (s *Set) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.listeners)
}

// Close stops listening on a port. Accepted connections stay open.
func (s *Set) Close(port int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.listeners[port]; l != nil {
		l.end()
		delete(s.listeners, port)
	}
}

// Shutdown stops listening on all ports for good, and returns when the Handler of the last
// connection has returned.
func (s *Set) Shutdown() {
	s.mu.Lock()
	s.closed = true
	for port, l := range s.listeners {
		l.end()
		delete(s.listeners, port)
	}
	s.mu.Unlock()
	s.accepting.Wait()
}

func (l *listener) end() {
	l.close()
	// The only error is that it is closed already.
	_ = l.tcp.Close()
}

// accept accepts connections until the listener is closed.
func (s *Set) accept(l *listener, handle Handler, logger klog.Logger) {
	pause := firstPause
	for {
		conn, err := l.tcp.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			err = localfault.Classify(err)
			if fault := localfault.Of(err); fault != nil && s.options.Faulted != nil {
				s.options.Faulted(fault)
			}
			if pause == firstPause {
				logger.Error(err, "Failed to accept connections, will retry", "longestPause", lastPause)
			}
			if !l.sleep(pause) {
				return
			}
			pause = min(2*pause, lastPause)
			continue
		}
		if pause != firstPause {
			pause = firstPause
			logger.Info("Connections are accepted again")
		}
		now := time.Now()
		s.accepted.Store(&now)
		s.accepting.Add(1)
		go s.serve(conn, handle)
	}
}

// serve hands an accepted connection to its Handler, and serves it.
func (s *Set) serve(conn *net.TCPConn, handle Handler) {
	if serve := s.handle(conn, handle); serve != nil {
		serve()
	}
}

func (s *Set) handle(conn *net.TCPConn, handle Handler) func() {
	defer s.accepting.Done()
	return handle(conn)
}

// sleep waits, and reports whether the listener is still open then.
func (l *listener) sleep(pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-l.closing.Done():
		return false
	case <-timer.C:
		return true
	}
}
