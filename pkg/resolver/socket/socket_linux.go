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
	// A peer that finished writing, or that is gone altogether.
	closedEvents = unix.POLLRDHUP | unix.POLLHUP | unix.POLLERR | unix.POLLNVAL
	// A peer that can neither write nor read any more.
	resetEvents = unix.POLLHUP | unix.POLLERR | unix.POLLNVAL
)

// WaitClosed blocks until the peer of conn has closed its writing side or is
// gone, and then returns nil. It takes no byte off the connection, however
// many arrive. It returns an error that matches os.ErrDeadlineExceeded when the
// read deadline of conn passes first.
func WaitClosed(conn syscall.Conn) error {
	return waitFor(conn, closedEvents)
}

// WaitReset blocks until the connection can neither be read nor written any
// more, and then returns nil. A peer that only finished writing is waited for.
// Otherwise it is as WaitClosed.
func WaitReset(conn syscall.Conn) error {
	return waitFor(conn, resetEvents)
}

// WaitReadable blocks until there is something to read, the end of the stream
// included, and then returns nil. Otherwise it is as WaitClosed.
func WaitReadable(conn syscall.Conn) error {
	return waitFor(conn, unix.POLLIN|closedEvents)
}

func waitFor(conn syscall.Conn, events int16) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("reaching the socket of a connection: %w", err)
	}
	// The runtime's poller is edge-triggered and reports a closed peer even
	// while unread bytes are queued, so each return to waiting costs one poll(2)
	// per arriving segment and nothing while the client is silent.
	return raw.Read(func(fd uintptr) bool { return happened(fd, events) })
}

// Idle reports whether nothing has arrived on a connection since it was last
// read: neither bytes nor the end of the stream. A connection that is not idle
// before a request was sent on it cannot be used for one.
func Idle(raw syscall.RawConn) bool {
	idle := false
	if err := raw.Control(func(fd uintptr) {
		idle = !happened(fd, unix.POLLIN|closedEvents)
	}); err != nil {
		return false
	}
	return idle
}

// Closed reports whether the peer of conn has closed its writing side or is gone, or
// conn is closed here.
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

// Acknowledged returns how many bytes the kernel of the peer has acknowledged
// over the life of the connection. The handshake may count for one more.
func Acknowledged(raw syscall.RawConn) (uint64, error) {
	info, err := tcpInfo(raw)
	if err != nil {
		return 0, err
	}
	return info.Bytes_acked, nil
}

// Finished reports whether the peer has finished writing, whatever of that was
// read, or is gone altogether.
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
		return nil, fmt.Errorf("reaching the socket of a connection: %w", err)
	}
	if infoErr != nil {
		return nil, fmt.Errorf("asking for the state of a TCP connection: %w", infoErr)
	}
	return info, nil
}

// happened asks whether any of the events is there now. It is on the path of
// each forwarded request and on the stack of each held one: as it does not wait,
// it tells the scheduler nothing, and it needs no more of the stack than this.
func happened(fd uintptr, events int16) bool {
	asked := unix.PollFd{Fd: int32(fd), Events: events}
	var now unix.Timespec
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL,
			uintptr(unsafe.Pointer(&asked)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		return errno != 0 || (n > 0 && asked.Revents&events != 0)
	}
}

// Unacknowledged is what the kernel knows of bytes that a peer has not
// acknowledged.
type Unacknowledged struct {
	// Outstanding is true when the peer has something to acknowledge: bytes, or a
	// question whether it has room for more.
	Outstanding bool
	// Repeated is how often that was sent again since the peer last acknowledged
	// anything.
	Repeated int
	// SinceAcknowledged is how long ago the peer last acknowledged anything.
	SinceAcknowledged time.Duration
}

// ReadUnacknowledged returns what a peer has not acknowledged.
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

// Unsent returns how many bytes that were written the peer has not acknowledged.
func Unsent(conn syscall.Conn) int { return queued(conn, unix.TIOCOUTQ) }

// Unread returns how many bytes of the peer nobody has read yet.
func Unread(conn syscall.Conn) int { return queued(conn, unix.TIOCINQ) }

// queued asks how much is in a queue of a socket. It is 0 when that cannot be
// told.
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
