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

package socket

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// moveSize bounds the bytes of one system call.
const moveSize = 1 << 20

// Move moves up to n bytes from src to dst, and returns how many were written to dst. An
// error of src is a *ReadError, with io.EOF at its end; others are of dst.
//
// The kernel moves the bytes through a pipe, which is kept only while there are bytes
// to move. When too many pipes are in use, by connections whose readers have stopped,
// bytes are copied instead. Then only as many are consumed from src as were written to
// dst, so that none wait in memory.
//
// While dst accepts no bytes, src is not read. Write waits for dst: it calls try whenever
// dst may accept more bytes, until that returns true. Nil: until the write deadline of dst.
func Move(dst, src *TCP, n int64, write func(try func(fd uintptr) bool) error) (int64, error) {
	m := &mover{src: src.raw, dst: dst.raw, write: write}
	if write == nil {
		m.write = dst.raw.Write
	}
	m.tryReceive, m.trySend = m.receiveOnce, m.sendOnce
	defer m.release()
	for m.moved < n {
		if err := m.step(n - m.moved); err != nil {
			return m.moved, err
		}
	}
	return m.moved, nil
}

// copyTCP copies up to n bytes between two connections.
func copyTCP(dst, src *TCP, n int64) (int64, error) { return Move(dst, src, n, nil) }

// mover moves bytes in one direction.
type mover struct {
	src, dst syscall.RawConn
	write    func(try func(fd uintptr) bool) error
	// tryReceive and trySend are method values, kept so that no call allocates them.
	tryReceive, trySend func(fd uintptr) bool
	// pipe is set while there are bytes to move. Unsent is how many are in it.
	pipe   *pipe
	unsent int
	// size bounds the bytes of the next system call, n is how many it moved, or copied, and
	// failure its error.
	size, n int
	failure error
	moved   int64
}

// copied is what receive returns when there is no pipe.
const copied = -1

// step waits for bytes and moves no more than left of them.
func (m *mover) step(left int64) error {
	m.size = int(min(left, moveSize))
	if err := m.src.Read(m.tryReceive); err != nil {
		return &ReadError{err}
	}
	switch {
	case m.failure != nil:
		return &ReadError{os.NewSyscallError("splice", m.failure)}
	case m.n == copied:
		return m.copy()
	case m.n == 0:
		return &ReadError{io.EOF}
	}
	return m.send(m.n)
}

// receiveOnce moves bytes into a pipe, if there are any, and reports whether the wait is
// over: n is their number, 0 at the end of src, and copied when there are bytes and no pipe.
func (m *mover) receiveOnce(fd uintptr) bool {
	if m.pipe == nil {
		if m.pipe = pipes.get(); m.pipe == nil {
			m.n, m.failure = peek(fd)
			if errors.Is(m.failure, unix.EAGAIN) {
				return false
			}
			if m.failure == nil && m.n > 0 {
				m.n = copied
			}
			return true
		}
	}
	m.n, m.failure = splice(int(fd), m.pipe.write, m.size)
	if errors.Is(m.failure, unix.EAGAIN) {
		// The wait may be long, so that the pipe is released.
		m.release()
		return false
	}
	return true
}

// send moves n bytes from the pipe to dst.
func (m *mover) send(n int) error {
	for m.unsent = n; m.unsent > 0; {
		err := m.write(m.trySend)
		if err == nil && m.failure != nil {
			err = fmt.Errorf("writing: %w", os.NewSyscallError("splice", m.failure))
		}
		if err != nil {
			return err
		}
		m.unsent -= m.n
		m.moved += int64(m.n)
	}
	return nil
}

// sendOnce moves bytes from the pipe, and reports whether dst accepted any or failed.
func (m *mover) sendOnce(fd uintptr) bool {
	m.n, m.failure = splice(m.pipe.read, int(fd), m.unsent)
	return !errors.Is(m.failure, unix.EAGAIN)
}

// release returns the pipe. The bytes that are in it after an error or a panic must not reach
// another connection.
func (m *mover) release() {
	switch {
	case m.pipe == nil:
		return
	case m.unsent > 0:
		m.pipe.close()
	default:
		pipes.put(m.pipe)
	}
	m.pipe = nil
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
	if err := m.src.Control(func(fd uintptr) {
		n, failure = receiveFrom(fd, buffer[:min(m.size, copySize)], unix.MSG_PEEK)
	}); err != nil {
		return &ReadError{err}
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
		return &ReadError{err}
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
