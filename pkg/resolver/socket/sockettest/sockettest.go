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

// Package sockettest has connections in memory that behave as TCP connections
// do: with a window, half-closes and resets. They work in the bubbles of
// testing/synctest, where no time passes that nothing waits for.
//
// It knows nothing of what the bytes are. Begin with Pipe.
package sockettest

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// window is how many bytes an end takes that are not read. It is small so that
// tests see writers wait.
const window = 4 << 10

// Conn is one end of a connection in memory. It implements socket.Conn and net.Conn.
type Conn struct {
	address net.Addr
	peer    *Conn

	// mu and changed are shared by both ends; all below is guarded by mu.
	mu      *sync.Mutex
	changed *sync.Cond

	// arrived are the bytes that were not read yet, received counts all.
	arrived  []byte
	received uint64
	// finished is true when the end of the stream has arrived behind them.
	finished bool
	// reset is true when a reset has arrived.
	reset bool
	// closedWrite and closed are true when this end is.
	closedWrite, closed     bool
	readTimeout, writeLimit deadline
}

// Pipe returns two ends of a connection.
func Pipe() (*Conn, *Conn) {
	var mu sync.Mutex
	changed := sync.NewCond(&mu)
	end := func(host byte) *Conn {
		return &Conn{address: &net.TCPAddr{IP: net.IPv4(192, 0, 2, host), Port: 1024 + int(host)}, mu: &mu, changed: changed}
	}
	a, b := end(1), end(2)
	a.peer, b.peer = b, a
	return a, b
}

// deadline is a time that may pass while something waits.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (c *Conn) setDeadline(d *deadline, at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = at
	if wait := time.Until(at); !at.IsZero() && wait > 0 {
		d.timer = time.AfterFunc(wait, c.changed.Broadcast)
	}
	c.changed.Broadcast()
	return nil
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// SetReadDeadline implements socket.Conn.
func (c *Conn) SetReadDeadline(at time.Time) error { return c.setDeadline(&c.readTimeout, at) }

// SetWriteDeadline implements socket.Conn.
func (c *Conn) SetWriteDeadline(at time.Time) error { return c.setDeadline(&c.writeLimit, at) }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(at time.Time) error {
	return errors.Join(c.SetReadDeadline(at), c.SetWriteDeadline(at))
}

// await waits until done, with mu held, and fails when that is no use any more.
func (c *Conn) await(d *deadline, done func() bool) error {
	for {
		switch {
		case c.closed:
			return net.ErrClosed
		case d.passed():
			return os.ErrDeadlineExceeded
		case done():
			return nil
		}
		c.changed.Wait()
	}
}

// ReadLent implements socket.Conn.
func (c *Conn) ReadLent(lender socket.Lender) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.await(&c.readTimeout, c.readable); err != nil {
		return 0, err
	}
	n, err := c.take(lender.Lend())
	if n == 0 {
		lender.TakeBack()
	}
	return n, err
}

// Read implements socket.Conn.
func (c *Conn) Read(data []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.await(&c.readTimeout, c.readable); err != nil {
		return 0, err
	}
	return c.take(data)
}

// take reads, with mu held, what is readable.
func (c *Conn) take(data []byte) (int, error) {
	switch {
	case len(c.arrived) > 0:
		n := copy(data, c.arrived)
		c.arrived = c.arrived[n:]
		c.changed.Broadcast()
		return n, nil
	case c.finished:
		return 0, io.EOF
	}
	return 0, os.NewSyscallError("read", syscall.ECONNRESET)
}

func (c *Conn) readable() bool { return len(c.arrived) > 0 || c.finished || c.reset }

// Write implements socket.Conn.
func (c *Conn) Write(data []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	written := 0
	for written < len(data) {
		err := c.await(&c.writeLimit, func() bool {
			return c.reset || c.closedWrite || c.peer.closed || len(c.peer.arrived) < window
		})
		switch {
		case err != nil:
			return written, err
		case c.reset || c.closedWrite:
			return written, os.NewSyscallError("write", syscall.EPIPE)
		case c.peer.closed:
			// The kernel takes the bytes, and that of the peer responds with a reset.
			c.reset = true
			c.changed.Broadcast()
			return len(data), nil
		}
		n := min(len(data)-written, window-len(c.peer.arrived))
		c.peer.arrived = append(c.peer.arrived, data[written:written+n]...)
		c.peer.received += uint64(n)
		written += n
		c.changed.Broadcast()
	}
	return written, nil
}

// CopyFrom implements socket.Conn.
func (c *Conn) CopyFrom(source socket.Conn, n int64) (int64, error) {
	return io.CopyN(struct{ io.Writer }{c}, source, n)
}

// CloseWrite implements socket.Conn.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.reset {
		return net.ErrClosed
	}
	c.closedWrite, c.peer.finished = true, true
	c.changed.Broadcast()
	return nil
}

// Close implements socket.Conn.
func (c *Conn) Close() error { return c.end(false) }

// Reset implements socket.Conn.
func (c *Conn) Reset() { _ = c.end(true) }

func (c *Conn) end(reset bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	for _, d := range []*deadline{&c.readTimeout, &c.writeLimit} {
		if d.timer != nil {
			d.timer.Stop()
		}
	}
	c.closed = true
	if reset || len(c.arrived) > 0 {
		c.peer.reset = true
	} else {
		c.peer.finished = true
	}
	c.changed.Broadcast()
	return nil
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.address }

// RemoteAddr implements socket.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.peer.address }

func (c *Conn) wait(done func() bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.await(&c.readTimeout, done)
}

// WaitClosed implements socket.Conn.
func (c *Conn) WaitClosed() error { return c.wait(func() bool { return c.finished || c.reset }) }

// WaitReset implements socket.Conn.
func (c *Conn) WaitReset() error {
	return c.wait(func() bool { return c.reset || c.finished && c.closedWrite })
}

// WaitReadable implements socket.Conn.
func (c *Conn) WaitReadable() error { return c.wait(c.readable) }

// Unread implements socket.Conn.
func (c *Conn) Unread() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.arrived)
}

// Unsent implements socket.Conn. What was written has arrived.
func (c *Conn) Unsent() int { return 0 }

// Idle implements socket.Conn.
func (c *Conn) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && !c.readable()
}

// Finished implements socket.Conn.
func (c *Conn) Finished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed || c.reset || c.finished
}

// Broken implements socket.Conn.
func (c *Conn) Broken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed || c.reset
}

// Acknowledged implements socket.Conn.
func (c *Conn) Acknowledged() (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, errors.New("the connection is closed")
	}
	return c.peer.received, nil
}
