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

package http2

import (
	"io"
	"net"
	"sync"
	"syscall"
)

// bufferSize is the size of read buffers: a few frames of the largest size.
const bufferSize = 64 << 10

// buffers are shared by all connections: one keeps its buffer only while there
// is something in it to work on.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// input is the unread bytes of a connection. One goroutine owns it. While it
// waits for more, it keeps no more memory than the beginning of a frame needs.
type input struct {
	conn net.Conn
	// raw is nil for connections that are not sockets.
	raw syscall.RawConn
	// attempt is try, bound once.
	attempt func(fd uintptr) bool

	// buffer[read:written] is unread. Nil when nothing is, or when it is in kept.
	buffer        *[bufferSize]byte
	read, written int
	// kept is the unread bytes while there is no buffer.
	kept []byte
	err  error
}

func newInput(conn net.Conn, initial []byte) *input {
	in := &input{conn: conn, kept: initial}
	if socket, ok := conn.(syscall.Conn); ok {
		if raw, err := socket.SyscallConn(); err == nil {
			in.raw, in.attempt = raw, in.try
		}
	}
	return in
}

// unread returns the bytes that were not consumed. They are valid until the next
// call of fill or release.
func (in *input) unread() []byte {
	if in.buffer == nil && len(in.kept) > 0 {
		in.take()
	}
	if in.buffer == nil {
		return nil
	}
	return in.buffer[in.read:in.written]
}

// size returns how many bytes are unread.
func (in *input) size() int { return in.written - in.read + len(in.kept) }

func (in *input) consume(n int) { in.read += n }

// take makes sure that there is a buffer with room in it.
func (in *input) take() {
	if in.buffer == nil {
		in.buffer = buffers.Get().(*[bufferSize]byte)
		n := copy(in.buffer[:], in.kept)
		// The first bytes of a connection may be more than one buffer takes.
		in.kept = in.kept[n:]
		if len(in.kept) == 0 {
			in.kept = nil
		}
		in.read, in.written = 0, n
		return
	}
	if in.read > 0 {
		in.written = copy(in.buffer[:], in.buffer[in.read:in.written])
		in.read = 0
	}
	if len(in.kept) > 0 {
		n := copy(in.buffer[in.written:], in.kept)
		in.written += n
		if in.kept = in.kept[n:]; len(in.kept) == 0 {
			in.kept = nil
		}
	}
}

// release gives the buffer back.
func (in *input) release() {
	if in.buffer == nil {
		return
	}
	if in.read < in.written {
		in.kept = append(append(make([]byte, 0, in.written-in.read+len(in.kept)), in.buffer[in.read:in.written]...), in.kept...)
	}
	buffers.Put(in.buffer)
	in.buffer, in.read, in.written = nil, 0, 0
}

// fill waits for more bytes. It returns io.EOF when the peer has finished, and an
// error that matches os.ErrDeadlineExceeded when the read deadline passes.
func (in *input) fill() error {
	if len(in.kept) > 0 && in.buffer != nil {
		// Bytes that were read before did not fit.
		in.take()
		return nil
	}
	if in.raw == nil {
		in.take()
		n, err := in.conn.Read(in.buffer[in.written:])
		in.written += n
		if n > 0 {
			return nil
		}
		if in.read == in.written {
			in.release()
		}
		return err
	}
	in.err = nil
	if err := in.raw.Read(in.attempt); err != nil {
		return err
	}
	return in.err
}

// try reads once without waiting. It returns false when it has to be called
// again once there is something to read, and then keeps no buffer.
func (in *input) try(fd uintptr) bool {
	in.take()
	for {
		n, err := syscall.Read(int(fd), in.buffer[in.written:])
		switch {
		case n > 0:
			in.written += n
			return true
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			in.release()
			return false
		case err == nil:
			in.err = io.EOF
		default:
			in.err = err
		}
		in.release()
		return true
	}
}
