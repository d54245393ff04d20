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
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxTransfer bounds one read or write. These are raw system calls, which do not block,
// because the notification of the scheduler would take longer than most of them. A raw
// system call must be short.
const maxTransfer = 64 << 10

// reader is a read in progress.
type reader struct {
	// attempt is the method value try, kept so that a read does not allocate it.
	attempt func(fd uintptr) bool
	lender  Lender
	data    []byte
	n       int
	err     syscall.Errno
}

// Read implements Conn.
func (c *TCP) Read(data []byte) (int, error) {
	if len(data) == 0 {
		return 0, nil
	}
	c.reader.data = data
	err := c.raw.Read(c.reader.attempt)
	return c.reader.end(err)
}

// ReadLent implements Conn.
func (c *TCP) ReadLent(lender Lender) (int, error) {
	c.reader.lender = lender
	err := c.raw.Read(c.reader.attempt)
	return c.reader.end(err)
}

// end returns the result of the read, whose wait ended with err.
func (r *reader) end(err error) (int, error) {
	n, errno := r.n, r.err
	r.lender, r.data = nil, nil
	switch {
	case err != nil:
		return 0, err
	case errno != 0:
		return 0, os.NewSyscallError("read", errno)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// try reads once, and reports whether the read has completed.
func (r *reader) try(fd uintptr) bool {
	data := r.data
	if r.lender != nil {
		data = r.lender.Lend()
	}
	data = data[:min(len(data), maxTransfer)]
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(data))), uintptr(len(data)), 0, 0, 0)
		switch {
		case errno == syscall.EINTR:
			continue
		case errno == syscall.EAGAIN:
			if r.lender != nil {
				r.lender.TakeBack()
			}
			return false
		case errno != 0:
			n = 0
		}
		if n == 0 && r.lender != nil {
			r.lender.TakeBack()
		}
		r.n, r.err = int(n), errno
		return true
	}
}

// maxPieces bounds the pieces of one gathering write.
const maxPieces = 8

// TryWrite writes pieces once, without blocking, and returns how many bytes were
// written.
func TryWrite(fd uintptr, pieces [][]byte) (int, error) {
	if len(pieces) == 1 {
		return syscall.Write(int(fd), pieces[0])
	}
	return unix.Writev(int(fd), pieces[:min(len(pieces), maxPieces)])
}

// writer is a write in progress.
type writer struct {
	// attempt is the method value try, kept so that a write does not allocate it.
	attempt func(fd uintptr) bool
	data    []byte
	n       int
	err     syscall.Errno
}

// Write implements Conn.
func (c *TCP) Write(data []byte) (int, error) {
	c.writer.data, c.writer.n, c.writer.err = data, 0, 0
	err := c.raw.Write(c.writer.attempt)
	c.writer.data = nil
	if err == nil && c.writer.err != 0 {
		err = os.NewSyscallError("write", c.writer.err)
	}
	return c.writer.n, err
}

// try writes as much as the send buffer has room for, and reports whether the write has
// completed.
func (w *writer) try(fd uintptr) bool {
	for w.n < len(w.data) {
		rest := w.data[w.n:min(len(w.data), w.n+maxTransfer)]
		n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(rest))), uintptr(len(rest)), syscall.MSG_NOSIGNAL, 0, 0)
		switch errno {
		case 0:
			w.n += int(n)
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			w.err = errno
			return true
		}
	}
	return true
}
