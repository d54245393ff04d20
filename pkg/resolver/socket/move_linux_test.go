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
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"time"
)

// takePipes lets no pipe be left for the rest of the test.
func takePipes(t *testing.T) {
	t.Helper()
	var taken []*pipe
	for {
		p := pipes.get()
		if p == nil {
			break
		}
		taken = append(taken, p)
	}
	if len(taken) != cap(pipes.room) {
		t.Fatalf("there are %d pipes, want %d", len(taken), cap(pipes.room))
	}
	t.Cleanup(func() {
		for _, p := range taken {
			p.close()
		}
	})
}

// withAndWithoutPipes runs a test twice: with pipes, and when all are in use.
func withAndWithoutPipes(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Run("pipes", test)
	t.Run("no pipe is left", func(t *testing.T) {
		takePipes(t)
		test(t)
	})
}

// copying is a copy from one connection to another, at the other ends of which a test is.
type copying struct {
	from, to io.ReadWriter
	src, dst *TCP
}

func newCopying(t *testing.T) *copying {
	t.Helper()
	from, source := pair(t)
	destination, to := pair(t)
	src, err := NewTCP(source)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := NewTCP(destination)
	if err != nil {
		t.Fatal(err)
	}
	return &copying{from: from, to: to, src: src, dst: dst}
}

// A copy moves as many bytes as it is to, leaves the others, and says when there are not so
// many.
func TestCopyFromMovesSoManyBytes(t *testing.T) {
	withAndWithoutPipes(t, func(t *testing.T) {
		c := newCopying(t)
		sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
		const rest = "rest"
		var running sync.WaitGroup
		defer running.Wait()
		running.Go(func() {
			if _, err := c.from.Write(append(bytes.Clone(sent), rest...)); err != nil {
				t.Error(err)
			}
			c.from.(io.Closer).Close()
		})
		running.Go(func() {
			if n, err := c.dst.CopyFrom(c.src, int64(len(sent))); n != int64(len(sent)) || err != nil {
				t.Errorf("%d bytes were copied, %v", n, err)
			}
			if n, err := c.dst.CopyFrom(c.src, int64(len(sent))); n != int64(len(rest)) || !errors.Is(err, io.EOF) {
				t.Errorf("%d bytes were copied of the rest, %v", n, err)
			}
			c.dst.Close()
		})
		got, err := io.ReadAll(c.to)
		if err != nil || string(got) != string(sent)+rest {
			t.Errorf("%d bytes arrived, %v", len(got), err)
		}
	})
}

// A deadline ends a copy that waits for either side.
func TestCopyFromEndsAtADeadline(t *testing.T) {
	withAndWithoutPipes(t, func(t *testing.T) {
		c := newCopying(t)
		if err := c.src.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.dst.CopyFrom(c.src, 1); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes were copied, %v", n, err)
		}
		if err := c.src.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		defer running.Wait()
		running.Go(func() {
			// It fails when the copy has ended.
			_, _ = c.from.Write(make([]byte, 64<<20))
		})
		running.Go(func() {
			defer c.src.Reset()
			if n, err := c.dst.CopyFrom(c.src, 64<<20); n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%d bytes were copied, %v", n, err)
			}
		})
		// Nothing more is read, so that the rest waits.
		if _, err := io.ReadFull(c.to, make([]byte, 1)); err != nil {
			t.Error(err)
		}
		if err := c.dst.SetWriteDeadline(time.Now()); err != nil {
			t.Error(err)
		}
	})
}

// A copy that waits for bytes needs no file but those of its connections.
func TestCopyFromThatWaitsKeepsNoFile(t *testing.T) {
	withAndWithoutPipes(t, func(t *testing.T) {
		const copies = 32
		all := make([]*copying, copies)
		for i := range all {
			all[i] = newCopying(t)
		}
		before := openFiles(t)
		var running sync.WaitGroup
		defer running.Wait()
		for _, c := range all {
			defer c.src.Close()
			running.Go(func() { _, _ = c.dst.CopyFrom(c.src, 1<<20) })
			if _, err := c.from.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c.to, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		// The pipes that are not in use are kept, and a few are used at a time.
		if opened := openFiles(t) - before; opened > copies/2 {
			t.Errorf("%d copies that wait have %d files open", copies, opened)
		}
	})
}

// openFiles returns how many files the process has open.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
