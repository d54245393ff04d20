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

package stream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// move copies src to dst until src ends, and returns the number of bytes and the error:
// nil when src has ended, a *readError when reading failed, and another error when
// writing failed.
//
// The kernel moves the bytes through a pipe, which is kept only while there are bytes
// to move. When too many pipes are in use, by connections whose readers have stopped,
// bytes are copied instead. Then only as many are consumed from src as were written to
// dst, so that none wait in memory.
//
// While dst accepts no bytes, src is not read. Broken reports whether src can no longer
// be read, in which case the bytes that it had sent are dropped.
func move(dst, src *net.TCPConn, broken func() bool) (int64, error) {
	m := &mover{to: dst, broken: broken}
	var err error
	if m.src, err = src.SyscallConn(); err != nil {
		return 0, &readError{err}
	}
	if m.dst, err = dst.SyscallConn(); err != nil {
		return 0, err
	}
	defer m.release()
	for {
		if err := m.step(); err != nil {
			return m.moved, ended(err)
		}
	}
}

// mover moves bytes in one direction.
type mover struct {
	src, dst syscall.RawConn
	// to is dst, and deadline its write deadline.
	to       *net.TCPConn
	deadline time.Time
	broken   func() bool
	// pipe is set while there are bytes to move.
	pipe  *pipe
	moved int64
}

const (
	// moveSize bounds the bytes of one system call.
	moveSize = 1 << 20
	// fullTime is how long dst accepts no bytes before src is checked for an error. It
	// may be up to twice as long, as the deadline is not updated each time.
	fullTime = 2 * time.Second
)

// step waits for bytes and moves them. At the end of src it returns io.EOF as a
// *readError.
func (m *mover) step() error {
	n, err := m.receive()
	switch {
	case err != nil:
		return &readError{err}
	case n == copied:
		return m.copy()
	case n == 0:
		return &readError{io.EOF}
	}
	return m.send(n)
}

// copied is what receive returns when there is no pipe.
const copied = -1

// receive waits for bytes and moves them into a pipe. It returns their number, 0 at the
// end of src, and copied when there are bytes and no pipe.
func (m *mover) receive() (n int, err error) {
	var failure error
	waitErr := m.src.Read(func(fd uintptr) bool {
		if m.pipe == nil {
			if m.pipe = pipes.get(); m.pipe == nil {
				n, failure = peek(fd)
				if errors.Is(failure, unix.EAGAIN) {
					return false
				}
				if failure == nil && n > 0 {
					n = copied
				}
				return true
			}
		}
		n, failure = splice(int(fd), m.pipe.write, moveSize)
		if errors.Is(failure, unix.EAGAIN) {
			// The wait may be long, so that the pipe is released.
			m.release()
			return false
		}
		return true
	})
	if waitErr != nil {
		return 0, waitErr
	}
	if failure != nil {
		return 0, os.NewSyscallError("splice", failure)
	}
	return n, nil
}

// send moves n bytes from the pipe to dst.
func (m *mover) send(n int) error {
	for n > 0 {
		var sent int
		var failure error
		err := m.write(func(fd uintptr) bool {
			sent, failure = splice(m.pipe.read, int(fd), n)
			return !errors.Is(failure, unix.EAGAIN)
		})
		if err == nil && failure != nil {
			err = fmt.Errorf("writing: %w", os.NewSyscallError("splice", failure))
		}
		if err != nil {
			// The bytes in the pipe must not reach another connection.
			m.pipe.close()
			m.pipe = nil
			return err
		}
		n -= sent
		m.moved += int64(sent)
	}
	return nil
}

// write calls try whenever dst may accept more bytes, until it returns true. It fails
// with a *readError when src broke meanwhile.
func (m *mover) write(try func(fd uintptr) bool) error {
	waits := func(fd uintptr) bool {
		if try(fd) {
			return true
		}
		if now := time.Now(); m.deadline.Sub(now) < fullTime {
			m.deadline = now.Add(2 * fullTime)
			// It fails only when the connection is closed, which also ends the wait.
			_ = m.to.SetWriteDeadline(m.deadline)
		}
		return false
	}
	for {
		err := m.dst.Write(waits)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("writing: %w", err)
		case m.broken():
			return &readError{os.NewSyscallError("poll", syscall.ECONNRESET)}
		}
		m.deadline = time.Time{}
		if err := m.to.SetWriteDeadline(m.deadline); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
	}
}

// release returns the pipe, which must be empty.
func (m *mover) release() {
	if m.pipe != nil {
		pipes.put(m.pipe)
		m.pipe = nil
	}
}

// splice moves up to n bytes between a socket and a pipe without blocking.
func splice(from, to, n int) (int, error) {
	for {
		moved, err := unix.Splice(from, nil, to, nil, n, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return int(moved), err
	}
}

// peek returns whether there is something to read: 1, or 0 at the end.
func peek(fd uintptr) (int, error) {
	var one [1]byte
	return receiveFrom(fd, one[:], unix.MSG_PEEK)
}

func receiveFrom(fd uintptr, data []byte, flags int) (int, error) {
	for {
		n, _, err := unix.Recvfrom(int(fd), data, flags|unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n, err
	}
}

// copy copies the available bytes, and consumes from src only those that were written to
// dst. It waits for dst without a buffer.
func (m *mover) copy() error {
	if err := m.write(writable); err != nil {
		return err
	}
	buffer := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buffer)
	var n int
	var failure error
	if err := m.src.Control(func(fd uintptr) { n, failure = receiveFrom(fd, buffer[:], unix.MSG_PEEK) }); err != nil {
		return &readError{err}
	}
	if failure != nil || n == 0 {
		// The next step gets the same result and handles it.
		return nil
	}
	var sent int
	if err := m.dst.Control(func(fd uintptr) {
		sent, failure = unix.SendmsgN(int(fd), buffer[:n], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}); err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	if failure != nil && !errors.Is(failure, unix.EAGAIN) && !errors.Is(failure, unix.EINTR) {
		return fmt.Errorf("writing: %w", os.NewSyscallError("sendmsg", failure))
	}
	if sent <= 0 {
		return nil
	}
	m.moved += int64(sent)
	if err := m.src.Control(func(fd uintptr) { _, failure = receiveFrom(fd, buffer[:sent], 0) }); err != nil {
		return &readError{err}
	}
	return nil
}

// writable reports whether a write to a socket would not block, also because it fails.
func writable(fd uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for {
		n, err := unix.Poll(poll, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err != nil || n > 0
	}
}
