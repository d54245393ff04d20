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
	"io"
	"net"
	"syscall"
)

// TCP is a TCP connection.
type TCP struct {
	*net.TCPConn
	raw syscall.RawConn

	// reader is owned by the goroutine that reads, writer by the one that writes.
	reader reader
	writer writer
}

// NewTCP returns a connection as a Conn.
func NewTCP(conn *net.TCPConn) (*TCP, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("accessing the socket of a connection: %w", err)
	}
	c := &TCP{TCPConn: conn, raw: raw}
	c.reader.attempt, c.writer.attempt = c.reader.try, c.writer.try
	return c, nil
}

// WaitClosed implements Conn.
func (c *TCP) WaitClosed() error { return WaitClosed(c.TCPConn) }

// WaitReset implements Conn.
func (c *TCP) WaitReset() error { return WaitReset(c.TCPConn) }

// WaitReadable implements Conn.
func (c *TCP) WaitReadable() error { return WaitReadable(c.TCPConn) }

// Unread implements Conn.
func (c *TCP) Unread() int { return Unread(c.TCPConn) }

// Unsent implements Conn.
func (c *TCP) Unsent() int { return Unsent(c.TCPConn) }

// Idle implements Conn.
func (c *TCP) Idle() bool { return Idle(c.raw) }

// Finished implements Conn.
func (c *TCP) Finished() bool { return Finished(c.raw) }

// Broken implements Conn.
func (c *TCP) Broken() bool { return broken(c.raw) }

// Acknowledged implements Conn.
func (c *TCP) Acknowledged() (uint64, error) { return Acknowledged(c.raw) }

// Reset implements Conn.
func (c *TCP) Reset() {
	// SetLinger fails only when the connection is closed already.
	_ = c.SetLinger(0)
	c.Close()
}

// CopyFrom implements Conn. Between two TCP connections it uses splice(2).
func (c *TCP) CopyFrom(source Conn, n int64) (int64, error) {
	if tcp, ok := source.(*TCP); ok {
		return copyTCP(c, tcp, n)
	}
	return io.CopyN(c.TCPConn, source, n)
}

// ReadError is an error of the connection that is read, where another one is written.
type ReadError struct{ Err error }

// Error implements error.
func (e *ReadError) Error() string { return "reading: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ReadError) Unwrap() error { return e.Err }
