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

// Package stream carries bytes between a client and a pod without looking at
// them: TLS, databases, WebSocket after the upgrade, anything that is not HTTP.
package stream

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

const (
	// flushTime is how long what was written to one side may take to arrive there
	// before the reset follows that the other side has sent.
	flushTime = time.Second
	// flushInterval is how often that is looked at.
	flushInterval = 5 * time.Millisecond
	// plainCopySize is how much is copied at a time where the kernel moves nothing.
	plainCopySize = 32 << 10
)

// errPanicked is how a connection broke whose bytes were carried by a function
// that panicked.
var errPanicked = errors.New("what carried its bytes panicked")

// Joined is how two connections that were joined have ended.
type Joined struct {
	// AToB and BToA are how many bytes went each way.
	AToB, BToA int64
	// ABroke and BBroke are how a connection broke, rather than ended. At most one
	// of them is set: the first.
	ABroke, BBroke error
}

// Join carries bytes between two connections until both directions have ended.
// The end of one direction is passed on while the other goes on. A connection
// that breaks, by a reset or because its peer is gone, ends both: what it had
// sent before is passed on, and then the other one is reset. So does a panic,
// which tasks contains. The caller closes the connections. While neither side
// sends anything, no memory is kept but two goroutines: the kernel moves the bytes
// between TCP connections.
//
// Ahead is called before anything is carried from a to b, while the other
// direction is carried already. An error of it breaks a when it matches
// hold.ErrClientGone or is one of reading, and otherwise b. Optional.
func Join(tasks *task.Runner, a, b socket.Conn, ahead func() error) Joined {
	j := &joining{}
	var result Joined
	done := make(chan struct{})
	panicked := func() {
		j.broke(&j.aBroke, &j.bBroke, errPanicked)
		a.Reset()
		b.Reset()
	}
	tasks.Go(func() { panicked(); close(done) }, func() {
		if ahead == nil || j.sent(b, ahead()) {
			result.AToB = j.carry(b, a, &j.bBroke, &j.aBroke)
		}
		close(done)
	})
	// The goroutine must not outlive Join, whatever happens.
	tasks.Run(panicked, func() { result.BToA = j.carry(a, b, &j.aBroke, &j.bBroke) })
	<-done
	result.ABroke, result.BBroke = j.aBroke, j.bBroke
	if result.ABroke != nil || result.BBroke != nil {
		resetBoth(a, b, result.BBroke != nil)
	}
	return result
}

// sent notes what became of what goes ahead to b, and reports whether more can be
// carried there.
func (j *joining) sent(b socket.Conn, err error) bool {
	var reading *readError
	switch {
	case errors.Is(err, hold.ErrClientGone), errors.As(err, &reading):
		j.broke(&j.aBroke, &j.bBroke, err)
		// As where a breaks later.
		_ = b.SetReadDeadline(past)
	case err != nil:
		j.broke(&j.bBroke, &j.aBroke, err)
	}
	return err == nil
}

// joining is the state that both directions share.
type joining struct {
	mu             sync.Mutex
	aBroke, bBroke error
}

// broke notes that a connection broke, unless the other one did before: that it
// was given up for the other is no news.
func (j *joining) broke(which, other *error, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if *which == nil && *other == nil {
		*which = err
	}
}

func (j *joining) isBroken(which *error) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return *which != nil
}

// carry copies src to dst until src ends, and returns how much that was.
func (j *joining) carry(dst, src socket.Conn, dstBroke, srcBroke *error) int64 {
	n, err := carryOne(dst, src)
	var reading *readError
	switch {
	case errors.As(err, &reading):
		j.broke(srcBroke, dstBroke, reading.err)
		// Nothing can be written to it either: there is no point in waiting for
		// what the other has to say. It fails only when that is broken too.
		_ = dst.SetReadDeadline(past)
	case err != nil:
		// What it had sent before it broke is still there to be read, and passed on
		// by the other direction, which then sees its end.
		j.broke(dstBroke, srcBroke, err)
	case j.isBroken(srcBroke):
		// It did not end, though reading says so: writing to it has taken the error.
	default:
		if err := dst.CloseWrite(); err != nil {
			j.broke(dstBroke, srcBroke, err)
			_ = dst.SetReadDeadline(past)
		}
	}
	return n
}

// carryOne copies src to dst as move does, with which the kernel does it.
func carryOne(dst, src socket.Conn) (int64, error) {
	to, toTCP := dst.(*socket.TCP)
	from, fromTCP := src.(*socket.TCP)
	if toTCP && fromTCP {
		return move(to.TCPConn, from.TCPConn, from.Broken)
	}
	return plainCopy(dst, src)
}

// plainCopy is move without the kernel.
func plainCopy(dst io.Writer, src io.Reader) (copied int64, err error) {
	buffer := make([]byte, plainCopySize)
	for {
		n, err := src.Read(buffer)
		if n > 0 {
			written, err := dst.Write(buffer[:n])
			copied += int64(written)
			if err != nil {
				return copied, fmt.Errorf("writing: %w", err)
			}
		}
		if err != nil {
			return copied, ended(&readError{err})
		}
	}
}

// resetBoth makes both sides see that the connection broke; a only once it has
// what b had sent before it broke, and the other way round.
func resetBoth(a, b socket.Conn, aFirstReads bool) {
	reader := b
	if aFirstReads {
		reader = a
	}
	flush(reader)
	a.Reset()
	b.Reset()
}

// flush waits until the peer has acknowledged what was written, for a moment.
// Until then what the peer sends is not read: it would be lost anyway.
func flush(conn socket.Conn) {
	deadline := time.Now().Add(flushTime)
	for conn.Unsent() > 0 && time.Now().Before(deadline) {
		<-time.After(flushInterval)
	}
}

// readError is a failure of the side that is read from.
type readError struct{ err error }

// Error implements error.
func (e *readError) Error() string { return "reading: " + e.err.Error() }

// Unwrap returns the cause.
func (e *readError) Unwrap() error { return e.err }

// ended returns nil when err says that the side that is read from has ended, and
// err otherwise.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
