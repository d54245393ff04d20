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
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// The peer has closed its writing side or the whole connection.
	closedEvents = unix.POLLRDHUP | unix.POLLHUP | unix.POLLERR | unix.POLLNVAL
	// The connection can neither be read nor written any more.
	resetEvents = unix.POLLHUP | unix.POLLERR | unix.POLLNVAL
)

// WaitClosed blocks until the peer of conn has closed its writing side or the whole
// connection, and then returns nil. It consumes no bytes. It returns an error that
// matches os.ErrDeadlineExceeded when the read deadline of conn passes first.
func WaitClosed(conn syscall.Conn) error {
	return waitFor(conn, closedEvents)
}

// WaitReset is as WaitClosed, but waits until the connection can neither be read nor
// written any more. A half-close does not end it.
func WaitReset(conn syscall.Conn) error {
	return waitFor(conn, resetEvents)
}

// WaitReadable is as WaitClosed, and also ends when there is something to read.
func WaitReadable(conn syscall.Conn) error {
	return waitFor(conn, unix.POLLIN|closedEvents)
}

func waitFor(conn syscall.Conn, events int16) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("accessing the socket of a connection: %w", err)
	}
	// The runtime's poller is edge-triggered and reports a closed peer even while
	// unread bytes are queued. A wait therefore costs one poll(2) per arriving segment
	// and nothing while the client is silent.
	return raw.Read(func(fd uintptr) bool { return happened(fd, events) })
}

// Idle reports whether nothing was received on a connection since the last read:
// neither bytes nor the end of the stream. A connection that is not idle cannot be used
// for another request.
func Idle(raw syscall.RawConn) bool {
	idle := false
	if err := raw.Control(func(fd uintptr) {
		idle = !happened(fd, unix.POLLIN|closedEvents)
	}); err != nil {
		return false
	}
	return idle
}

// Closed reports whether the peer of conn has closed its writing side or the whole
// connection, or conn is closed locally.
func Closed(conn syscall.Conn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	closed := true
	if err := raw.Control(func(fd uintptr) { closed = happened(fd, closedEvents) }); err != nil {
		return true
	}
	return closed
}

// Acknowledged returns how many bytes the kernel of the peer has acknowledged since the
// connection was established. The handshake may count for one more.
func Acknowledged(raw syscall.RawConn) (uint64, error) {
	info, err := tcpInfo(raw)
	if err != nil {
		return 0, err
	}
	return info.Bytes_acked, nil
}

// Finished reports whether the peer has closed its writing side or the whole connection,
// also when there are unread bytes.
func Finished(raw syscall.RawConn) bool {
	is := true
	if err := raw.Control(func(fd uintptr) {
		is = happened(fd, closedEvents)
	}); err != nil {
		return true
	}
	return is
}

// Broken reports whether a connection can neither be read nor written any more.
func Broken(raw syscall.RawConn) bool { return broken(raw) }

// broken reports whether a connection can neither be read nor written any more.
func broken(raw syscall.RawConn) bool {
	is := true
	if err := raw.Control(func(fd uintptr) {
		is = happened(fd, resetEvents)
	}); err != nil {
		return true
	}
	return is
}

func tcpInfo(raw syscall.RawConn) (*unix.TCPInfo, error) {
	var info *unix.TCPInfo
	var infoErr error
	if err := raw.Control(func(fd uintptr) {
		info, infoErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); err != nil {
		return nil, fmt.Errorf("accessing the socket of a connection: %w", err)
	}
	if infoErr != nil {
		return nil, fmt.Errorf("reading the state of a TCP connection: %w", infoErr)
	}
	return info, nil
}

// happened reports whether any of the events is pending. It is called for each forwarded
// request and is on the stack of each held one. It does not block, so that it uses a raw
// system call, which does not notify the scheduler and needs little stack.
func happened(fd uintptr, events int16) bool {
	poll := unix.PollFd{Fd: int32(fd), Events: events}
	var now unix.Timespec
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL,
			uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		return errno != 0 || (n > 0 && poll.Revents&events != 0)
	}
}

// Unacknowledged is the state of the bytes that a peer has not acknowledged.
type Unacknowledged struct {
	// Outstanding is true when the peer has something to acknowledge: bytes, or a window
	// probe.
	Outstanding bool
	// Repeated is how often that was retransmitted since the peer last acknowledged
	// anything.
	Repeated int
	// SinceAcknowledged is how long ago the peer last acknowledged anything.
	SinceAcknowledged time.Duration
}

// ReadUnacknowledged returns the state of the bytes that a peer has not acknowledged.
func ReadUnacknowledged(raw syscall.RawConn) (Unacknowledged, error) {
	info, err := tcpInfo(raw)
	if err != nil {
		return Unacknowledged{}, err
	}
	return Unacknowledged{
		Outstanding:       info.Unacked > 0 || info.Probes > 0,
		Repeated:          int(info.Retransmits) + int(info.Probes),
		SinceAcknowledged: time.Duration(info.Last_ack_recv) * time.Millisecond,
	}, nil
}

// Unsent returns how many written bytes the peer has not acknowledged.
func Unsent(conn syscall.Conn) int { return queued(conn, unix.TIOCOUTQ) }

// Unread returns how many received bytes were not read.
func Unread(conn syscall.Conn) int { return queued(conn, unix.TIOCINQ) }

// queued returns how many bytes are in a queue of a socket, or 0 when that is unknown.
func queued(conn syscall.Conn, queue uint) int {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	bytes := 0
	if err := raw.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), queue); err == nil {
			bytes = n
		}
	}); err != nil {
		return 0
	}
	return bytes
}
