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

// Package stream forwards bytes between a client and a pod without parsing them: TLS,
// databases, WebSocket after the upgrade, and every other protocol but HTTP.
//
// It knows nothing of wakes and of how a pod becomes ready: it waits in the queue of the
// service (package hold). Begin with Server.
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
	// flushTime is how long the bytes written to one side may take to arrive before a
	// reset of the other side is passed on.
	flushTime = time.Second
	// flushInterval is the interval at which that is checked.
	flushInterval = 5 * time.Millisecond
	// plainCopySize is the buffer size where splice(2) is not used.
	plainCopySize = 32 << 10
)

// errPanicked ends a connection when the function that forwards its bytes panicked.
var errPanicked = errors.New("forwarding its bytes panicked")

// Joined is the result of Join.
type Joined struct {
	// AToB and BToA are the numbers of bytes in each direction.
	AToB, BToA int64
	// ABroke and BBroke are the error of a connection that broke. At most one of them
	// is set, that of the first.
	ABroke, BBroke error
}

// Join forwards bytes between two connections until both directions have ended. The end
// of one direction is passed on while the other continues. A connection that breaks, by
// a reset or because its peer is dead, ends both: the bytes that it had sent are passed
// on, and then the other one is reset. A panic, which tasks contains, ends both as well.
// The caller closes the connections. The memory of an idle connection is that of two
// goroutines, because the kernel moves the bytes between TCP connections.
//
// Ahead is called before any bytes are forwarded from a to b, while the other direction
// is forwarded already. Its error breaks a when it matches hold.ErrClientGone or is a
// *socket.ReadError, and b otherwise. Optional.
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
	// The goroutine must not outlive Join, also after a panic.
	tasks.Run(panicked, func() { result.BToA = j.carry(a, b, &j.aBroke, &j.bBroke) })
	<-done
	result.ABroke, result.BBroke = j.aBroke, j.bBroke
	if result.ABroke != nil || result.BBroke != nil {
		resetBoth(a, b, result.BBroke != nil)
	}
	return result
}

// sent records the result of ahead, and reports whether more can be forwarded to b. Ahead
// may have cleared the read deadline of a that the other direction set when b broke.
func (j *joining) sent(b socket.Conn, err error) bool {
	var reading *socket.ReadError
	switch {
	case errors.Is(err, hold.ErrClientGone), errors.As(err, &reading):
		j.broke(&j.aBroke, &j.bBroke, err)
		// The same as when a breaks later.
		_ = b.SetReadDeadline(past)
	case err != nil:
		j.broke(&j.bBroke, &j.aBroke, err)
	}
	return err == nil && !j.isBroken(&j.bBroke)
}

// joining is the state that both directions share.
type joining struct {
	mu             sync.Mutex
	aBroke, bBroke error
}

// broke records the error of a connection, unless the other one broke before: then this
// one was closed because of the other.
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

// carry copies src to dst until src ends, and returns the number of bytes.
func (j *joining) carry(dst, src socket.Conn, dstBroke, srcBroke *error) int64 {
	n, err := carryOne(dst, src)
	var reading *socket.ReadError
	switch {
	case errors.As(err, &reading):
		j.broke(srcBroke, dstBroke, reading.Err)
		// Nothing can be written to src either, so that the other direction ends.
		// SetReadDeadline fails only when dst is broken too.
		_ = dst.SetReadDeadline(past)
	case err != nil:
		// The other direction passes on the bytes that dst had sent before it broke, and
		// then ends.
		j.broke(dstBroke, srcBroke, err)
	case j.isBroken(srcBroke):
		// The end of src is that of a broken connection, whose error a write has
		// received.
	default:
		if err := dst.CloseWrite(); err != nil {
			j.broke(dstBroke, srcBroke, err)
			_ = dst.SetReadDeadline(past)
		}
	}
	return n
}

// carryOne copies src to dst with move, where both are TCP connections.
func carryOne(dst, src socket.Conn) (int64, error) {
	to, toTCP := dst.(*socket.TCP)
	from, fromTCP := src.(*socket.TCP)
	if toTCP && fromTCP {
		return move(to, from)
	}
	return plainCopy(dst, src)
}

// plainCopy is move without splice(2).
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
			return copied, ended(&socket.ReadError{Err: err})
		}
	}
}

// resetBoth resets both connections, the reading one only once its peer has received
// the bytes that the broken one had sent.
func resetBoth(a, b socket.Conn, aFirstReads bool) {
	reader := b
	if aFirstReads {
		reader = a
	}
	flush(reader)
	a.Reset()
	b.Reset()
}

// flush waits until the peer has acknowledged all written bytes, for flushTime at most.
// The bytes that the peer sends are not read, because they would be lost anyway.
func flush(conn socket.Conn) {
	deadline := time.Now().Add(flushTime)
	for conn.Unsent() > 0 && time.Now().Before(deadline) {
		<-time.After(flushInterval)
	}
}

// ended returns nil when err is the end of the connection that is read, and err
// otherwise.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
