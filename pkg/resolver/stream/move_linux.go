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

package stream

import (
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// fullTime is how long dst accepts no bytes before src is checked for an error. It
// may be up to twice as long, as the deadline is not updated each time.
const fullTime = 2 * time.Second

// move copies src to dst with socket.Move until src ends, and returns the number of bytes
// and the error: nil when src has ended, a *socket.ReadError when reading failed, and another
// error when writing failed.
//
// When src can no longer be read while dst accepts no bytes, the bytes that it had sent
// are dropped.
func move(dst, src *socket.TCP) (int64, error) {
	raw, err := dst.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("accessing the socket of a connection: %w", err)
	}
	w := &waiter{dst: dst, raw: raw, src: src}
	moved, err := socket.Move(dst, src, math.MaxInt64, w.write)
	return moved, ended(err)
}

// waiter waits for dst to accept bytes of src.
type waiter struct {
	dst, src *socket.TCP
	raw      syscall.RawConn
	// deadline is the write deadline of dst.
	deadline time.Time
}

// write calls try whenever dst may accept more bytes, until it returns true. It fails
// with a *socket.ReadError when src broke meanwhile.
func (w *waiter) write(try func(fd uintptr) bool) error {
	waits := func(fd uintptr) bool {
		if try(fd) {
			return true
		}
		if now := time.Now(); w.deadline.Sub(now) < fullTime {
			w.deadline = now.Add(2 * fullTime)
			// It fails only when the connection is closed, which also ends the wait.
			_ = w.dst.SetWriteDeadline(w.deadline)
		}
		return false
	}
	for {
		err := w.raw.Write(waits)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("writing: %w", err)
		case w.src.Broken():
			return &socket.ReadError{Err: os.NewSyscallError("poll", syscall.ECONNRESET)}
		}
		w.deadline = time.Time{}
		if err := w.dst.SetWriteDeadline(w.deadline); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
	}
}
