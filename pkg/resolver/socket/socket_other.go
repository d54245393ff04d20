//go:build !linux

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
	"os"
	"syscall"
	"time"
)

// WaitClosed blocks until the read deadline of conn passes. On this system a close is
// detected only when the connection is used next.
func WaitClosed(conn syscall.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if err := raw.Read(func(uintptr) bool { return false }); err != nil {
		return err
	}
	return os.ErrDeadlineExceeded
}

// WaitReset is as WaitClosed.
func WaitReset(conn syscall.Conn) error { return WaitClosed(conn) }

// WaitReadable is as WaitClosed.
func WaitReadable(conn syscall.Conn) error { return WaitClosed(conn) }

// Closed reports whether conn is closed locally. On this system a close of the peer is
// detected only when the connection is used next.
func Closed(conn syscall.Conn) bool {
	raw, err := conn.SyscallConn()
	return err != nil || raw.Control(func(uintptr) {}) != nil
}

// Idle is not supported on this system and returns false: no connection is used twice.
func Idle(syscall.RawConn) bool { return false }

// Acknowledged is not supported on this system.
func Acknowledged(syscall.RawConn) (uint64, error) { return 0, errors.ErrUnsupported }

// Finished is not supported on this system and returns false.
func Finished(syscall.RawConn) bool { return false }

// Broken is not supported on this system and returns false.
func Broken(syscall.RawConn) bool { return false }

func broken(syscall.RawConn) bool { return false }

// Unacknowledged is the state of the bytes that a peer has not acknowledged.
type Unacknowledged struct {
	Outstanding       bool
	Repeated          int
	SinceAcknowledged time.Duration
}

// ReadUnacknowledged is not supported on this system.
func ReadUnacknowledged(syscall.RawConn) (Unacknowledged, error) {
	return Unacknowledged{}, errors.ErrUnsupported
}

// Unsent is not supported on this system and returns 0.
func Unsent(syscall.Conn) int { return 0 }

// Unread is not supported on this system and returns 0.
func Unread(syscall.Conn) int { return 0 }
