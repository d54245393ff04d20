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

package http1

import (
	"errors"
	"io"
	"os"
	"sync"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// bufferSize is the size of the buffers that connections share. Most headers and
// many whole messages fit; a connection has one only while it has unread bytes.
const bufferSize = 4 << 10

// wideSize is the size of the buffers that bodies get once they filled a small
// one: fewer and larger reads.
const wideSize = 64 << 10

var (
	bufferPool = sync.Pool{New: func() any { return new([bufferSize]byte) }}
	widePool   = sync.Pool{New: func() any { return new([wideSize]byte) }}
)

// buffer is the unread bytes of a connection: data[read:written]. It has no
// memory while there are none.
type buffer struct {
	data          []byte
	read, written int
	// filled is true when the latest read took all the room there was.
	filled bool
	// shared or wide is the backing of data while that came from a pool.
	shared *[bufferSize]byte
	wide   *[wideSize]byte
	// charge is what data takes, where that is more than a small buffer, which is
	// part of what each connection takes.
	charge memory.Charge
}

// unread returns the bytes that have not been consumed. They are valid until
// the next call of fill, shrink or release, or until all are consumed.
func (b *buffer) unread() []byte { return b.data[b.read:b.written] }

// consume drops n unread bytes, and the memory when there are no more.
func (b *buffer) consume(n int) {
	b.read += n
	if b.read == b.written {
		b.release()
	}
}

// fill reads once from a connection. When the buffer is full it makes room
// first, by growing up to limit bytes; at the limit it returns io.ErrShortBuffer,
// and before that an error of memory.Charge where there is no room for more.
func (b *buffer) fill(conn socket.Conn, limit int) error {
	if b.data != nil && b.written == len(b.data) {
		if err := b.makeRoom(limit); err != nil {
			return err
		}
	}
	n, err := conn.ReadLent(b)
	if n > 0 {
		b.filled = b.written+n == len(b.data)
		b.written += n
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		b.filled = false
	}
	return err
}

// Lend implements socket.Lender. A body that filled a small buffer gets a wide
// one, where there is room for that.
func (b *buffer) Lend() []byte {
	switch {
	case b.data != nil:
	case b.filled && b.charge.Resize(wideSize) == nil:
		b.wide = widePool.Get().(*[wideSize]byte)
		b.data = b.wide[:]
	default:
		b.shared = bufferPool.Get().(*[bufferSize]byte)
		b.data = b.shared[:]
	}
	return b.data[b.written:]
}

// TakeBack implements socket.Lender.
func (b *buffer) TakeBack() {
	if b.read == b.written {
		b.release()
	}
}

func (b *buffer) makeRoom(limit int) error {
	switch {
	case b.read > 0:
		b.written = copy(b.data, b.unread())
		b.read = 0
	case len(b.data) >= limit:
		return io.ErrShortBuffer
	default:
		size := min(limit, max(bufferSize, 2*len(b.data)))
		if err := b.charge.Claim(int64(size)); err != nil {
			return err
		}
		b.replace(make([]byte, size))
	}
	return nil
}

// replace moves the unread bytes to other memory.
func (b *buffer) replace(data []byte) {
	n := copy(data, b.unread())
	b.giveBack()
	b.data, b.read, b.written = data, 0, n
}

// narrow makes a buffer that a body has used ready for a header.
func (b *buffer) narrow() {
	b.filled = false
	if b.wide == nil || b.written-b.read > bufferSize {
		return
	}
	shared := bufferPool.Get().(*[bufferSize]byte)
	b.replace(shared[:])
	b.shared = shared
	b.charge.Release()
}

// shrink keeps no more memory than the unread bytes need, and leaves it to the
// caller to count that.
func (b *buffer) shrink() {
	if b.read == b.written {
		b.release()
		return
	}
	if len(b.data) > b.written-b.read {
		b.replace(make([]byte, b.written-b.read))
	}
	b.charge.Release()
}

// recharge counts again what shrink has left, as far as there is room.
func (b *buffer) recharge() {
	if len(b.data) > bufferSize {
		// There was room for it until now.
		_ = b.charge.Resize(int64(len(b.data)))
	}
}

// release drops the unread bytes and the memory.
func (b *buffer) release() {
	b.giveBack()
	b.data, b.read, b.written = nil, 0, 0
	b.charge.Release()
}

func (b *buffer) giveBack() {
	if b.shared != nil {
		bufferPool.Put(b.shared)
		b.shared = nil
	}
	if b.wide != nil {
		widePool.Put(b.wide)
		b.wide = nil
	}
}

// adopt makes bytes that were read before the buffer existed the first unread
// ones. The buffer must be empty, and keeps the slice.
func (b *buffer) adopt(data []byte) {
	if len(data) > 0 {
		b.data, b.read, b.written = data, 0, len(data)
	}
}
