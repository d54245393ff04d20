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
	"io"
	"net"
	"sync"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

const (
	// flushTime is how long what was written to one side may take to arrive there
	// before the reset follows that the other side has sent.
	flushTime = time.Second
	// flushInterval is how often that is looked at.
	flushInterval = 5 * time.Millisecond
)

// Conn is a connection that bytes are carried from and to.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Carry copies src to dst until src ends, and passes the end on; the kernel moves
// the bytes where it can. When either breaks it resets both. It returns how many
// bytes it wrote.
func Carry(dst, src Conn) int64 {
	n, err := carryOne(dst, src)
	if err == nil {
		err = dst.CloseWrite()
	}
	if err != nil {
		// Neither side can be told by half a close: what the other direction
		// still carries would never be asked for.
		for _, conn := range []Conn{dst, src} {
			if tcp, ok := conn.(*net.TCPConn); ok {
				// It fails only when the connection is broken already.
				_ = tcp.SetLinger(0)
			}
			conn.Close()
		}
	}
	return n
}

func carryOne(dst, src Conn) (int64, error) {
	to, toTCP := dst.(*net.TCPConn)
	from, fromTCP := src.(*net.TCPConn)
	if toTCP && fromTCP {
		return move(to, from)
	}
	return io.Copy(dst, src)
}

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
// sent before is passed on, and then the other one is reset. The caller closes
// the connections. While neither side sends anything, no memory is kept but two
// goroutines.
func Join(a, b *net.TCPConn) Joined {
	j := &joining{}
	var other sync.WaitGroup
	var result Joined
	other.Go(func() { result.AToB = j.carry(b, a, &j.bBroke, &j.aBroke) })
	result.BToA = j.carry(a, b, &j.aBroke, &j.bBroke)
	other.Wait()
	result.ABroke, result.BBroke = j.aBroke, j.bBroke
	if result.ABroke != nil || result.BBroke != nil {
		resetBoth(a, b, result.BBroke != nil)
	}
	return result
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
func (j *joining) carry(dst, src *net.TCPConn, dstBroke, srcBroke *error) int64 {
	n, err := move(dst, src)
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

// resetBoth makes both sides see that the connection broke; a only once it has
// what b had sent before it broke, and the other way round.
func resetBoth(a, b *net.TCPConn, aFirstReads bool) {
	reader := b
	if aFirstReads {
		reader = a
	}
	flush(reader)
	for _, conn := range []*net.TCPConn{a, b} {
		// It fails only when the connection is broken already.
		_ = conn.SetLinger(0)
		conn.Close()
	}
}

// flush waits until the peer has acknowledged what was written, for a moment.
// Until then what the peer sends is not read: it would be lost anyway.
func flush(conn *net.TCPConn) {
	deadline := time.Now().Add(flushTime)
	for socket.Unsent(conn) > 0 && time.Now().Before(deadline) {
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
