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

// WaitClosed blocks until the read deadline of conn passes: on this system a
// peer that closes is noticed when the connection is used next.
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

// WaitReadable is as WaitClosed: what arrives is noticed when the connection is
// used next.
func WaitReadable(conn syscall.Conn) error { return WaitClosed(conn) }

// Closed reports whether conn is closed here: on this system more is noticed only
// when it is used next.
func Closed(conn syscall.Conn) bool {
	raw, err := conn.SyscallConn()
	return err != nil || raw.Control(func(uintptr) {}) != nil
}

// Idle cannot be told on this system: no connection is used twice.
func Idle(syscall.RawConn) bool { return false }

// Acknowledged cannot be told on this system.
func Acknowledged(syscall.RawConn) (uint64, error) { return 0, errors.ErrUnsupported }

// Finished cannot be told on this system.
func Finished(syscall.RawConn) bool { return false }

// Broken cannot be told on this system.
func Broken(syscall.RawConn) bool { return false }

func broken(syscall.RawConn) bool { return false }

// Unacknowledged is what the kernel knows of bytes that a peer has not
// acknowledged.
type Unacknowledged struct {
	Outstanding       bool
	Repeated          int
	SinceAcknowledged time.Duration
}

// ReadUnacknowledged cannot be told on this system.
func ReadUnacknowledged(syscall.RawConn) (Unacknowledged, error) {
	return Unacknowledged{}, errors.ErrUnsupported
}

// Unsent cannot be told on this system.
func Unsent(syscall.Conn) int { return 0 }

// Unread cannot be told on this system.
func Unread(syscall.Conn) int { return 0 }
