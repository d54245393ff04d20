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

// Conn is a connection of which more is known than what can be read from it.
// TCP implements it; tests have one in memory. At most one goroutine may read,
// or wait, and one may write at a time; all else may be called from any.
type Conn interface {
	io.ReadWriteCloser
	// ReadLent is Read into memory that is lent for as long as there is something
	// to read: a connection that waits needs none.
	ReadLent(lender Lender) (int, error)
	// CopyFrom writes what it reads from another connection, n bytes at most,
	// and returns how many these were. The end of the other is io.EOF.
	CopyFrom(source Conn, n int64) (int64, error)
	// CloseWrite tells the peer that nothing more comes.
	CloseWrite() error
	// Reset closes the connection so that the peer sees it broken.
	Reset()
	RemoteAddr() net.Addr
	SetReadDeadline(deadline time.Time) error
	SetWriteDeadline(deadline time.Time) error

	// WaitClosed blocks until the peer has closed its writing side or is gone, and
	// then returns nil. It takes no byte off the connection, however many arrive.
	// It returns an error that matches os.ErrDeadlineExceeded when the read
	// deadline passes first.
	WaitClosed() error
	// WaitReset is as WaitClosed, but a peer that only finished writing is waited
	// for until the connection can neither be read nor written any more.
	WaitReset() error
	// WaitReadable is as WaitClosed, but ends too when there is something to read.
	WaitReadable() error

	// Unread returns how many bytes of the peer have arrived and were not read.
	Unread() int
	// Unsent returns how many bytes that were written the peer has not acknowledged.
	Unsent() int
	// Idle reports whether nothing has arrived since the last read: neither bytes
	// nor the end of the stream.
	Idle() bool
	// Finished reports whether the peer has finished writing, whatever of that was
	// read, or is gone altogether.
	Finished() bool
	// Broken reports whether the connection can neither be read nor written any
	// more: the peer has reset it, or is gone.
	Broken() bool
	// Acknowledged returns how many bytes the kernel of the peer has acknowledged
	// over the life of the connection. The handshake may count for one more.
	Acknowledged() (uint64, error)
}

// A Lender lends memory to a read.
type Lender interface {
	// Lend returns where to read to. It is called when there may be something to
	// read, from the goroutine that reads.
	Lend() []byte
	// TakeBack is called when there was nothing after all.
	TakeBack()
}
