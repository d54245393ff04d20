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
	"errors"
	"net"
	"os"
	"syscall"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// sender writes to a connection: first what there is room for, so that what has to
// wait can be counted before it does. It has one owner at a time.
type sender struct {
	conn net.Conn
	// raw is nil for connections that are not sockets. There everything waits.
	raw syscall.RawConn
	// attempt is write, bound once.
	attempt func(fd uintptr) bool

	// left is what is not written yet.
	left net.Buffers
	// waits is true while write is to be called until all is written.
	waits bool
	err   error
}

func newSender(conn net.Conn) *sender {
	s := &sender{conn: conn}
	if socket, ok := conn.(syscall.Conn); ok {
		if raw, err := socket.SyscallConn(); err == nil {
			s.raw, s.attempt = raw, s.write
		}
	}
	return s
}

// start writes what there is room for, and reports whether that is all; finish
// writes the rest otherwise. It uses frames up.
func (s *sender) start(frames net.Buffers) (all bool, err error) {
	s.left = frames
	if s.raw == nil {
		return false, nil
	}
	return s.run(false)
}

// finish waits for room for what is left. After an error that matches
// os.ErrDeadlineExceeded it can be called again.
func (s *sender) finish() error {
	if s.raw == nil {
		_, err := s.left.WriteTo(s.conn)
		return err
	}
	_, err := s.run(true)
	return err
}

func (s *sender) run(waits bool) (all bool, err error) {
	s.waits, s.err = waits, nil
	if err := s.raw.Write(s.attempt); err != nil {
		return false, err
	}
	return len(s.left) == 0, s.err
}

// write writes until there is no room. It returns false when it has to be called
// again once there is some.
func (s *sender) write(fd uintptr) bool {
	for len(s.left) > 0 {
		n, err := socket.TryWrite(fd, s.left)
		switch {
		case err == nil:
			s.left = advance(s.left, n)
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return !s.waits
		default:
			s.err = os.NewSyscallError("write", err)
			return true
		}
	}
	return true
}

// advance returns frames without their first n bytes.
func advance(frames net.Buffers, n int) net.Buffers {
	for len(frames) > 0 && n >= len(frames[0]) {
		n -= len(frames[0])
		frames[0] = nil
		frames = frames[1:]
	}
	if n > 0 {
		frames[0] = frames[0][n:]
	}
	return frames
}
