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
	"io"
	"net"
	"time"
)

// Conn is a connection with access to the state of its socket. TCP implements it, and
// tests have an implementation in memory. At most one goroutine may read or wait, and
// one may write at a time. The other methods may be called from any goroutine.
type Conn interface {
	io.ReadWriteCloser
	// ReadLent is Read into memory that the lender provides once there is something to
	// read, so that a waiting connection needs no buffer.
	ReadLent(lender Lender) (int, error)
	// CopyFrom copies at most n bytes from another connection and returns the number of
	// copied bytes. At the end of the source it returns io.EOF.
	CopyFrom(source Conn, n int64) (int64, error)
	// CloseWrite closes the writing side.
	CloseWrite() error
	// Reset closes the connection with a reset.
	Reset()
	RemoteAddr() net.Addr
	SetReadDeadline(deadline time.Time) error
	SetWriteDeadline(deadline time.Time) error

	// WaitClosed blocks until the peer has closed its writing side or the whole
	// connection, and then returns nil. It consumes no bytes. It returns an error that
	// matches os.ErrDeadlineExceeded when the read deadline passes first.
	WaitClosed() error
	// WaitReset is as WaitClosed, but waits until the connection can neither be read
	// nor written any more. A half-close does not end it.
	WaitReset() error
	// WaitReadable is as WaitClosed, and also ends when there is something to read.
	WaitReadable() error

	// Unread returns how many received bytes were not read.
	Unread() int
	// Unsent returns how many bytes that were written the peer has not acknowledged.
	Unsent() int
	// Idle reports whether nothing was received since the last read: neither bytes nor
	// the end of the stream.
	Idle() bool
	// Finished reports whether the peer has closed its writing side or the whole
	// connection, also when there are unread bytes.
	Finished() bool
	// Broken reports whether the connection can neither be read nor written any more:
	// the peer has reset or closed it.
	Broken() bool
	// Acknowledged returns how many bytes the kernel of the peer has acknowledged since
	// the connection was established. The handshake may count for one more.
	Acknowledged() (uint64, error)
}

// Lender lends memory to a read.
type Lender interface {
	// Lend returns a buffer. It is called from the goroutine that reads, when there may
	// be something to read.
	Lend() []byte
	// TakeBack is called when nothing was read into the buffer.
	TakeBack()
}
