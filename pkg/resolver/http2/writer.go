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

package http2

import (
	"errors"
	"net"
	"sync"
)

// maxWaitingControl bounds the frames of ours that wait while the peer does not
// read: what it makes us say without listening is not kept for it.
const maxWaitingControl = 64 << 10

// errDeaf means that a peer makes us say more than it reads.
var errDeaf = errors.New("the peer does not read what it asked for")

// writer writes frames to a client, whose connection two goroutines write to. It
// is safe for concurrent use.
type writer struct {
	conn net.Conn

	mu sync.Mutex
	// idle is signalled when busy becomes false.
	idle sync.Cond
	// busy is true while a goroutine writes, or while a header block of the pod
	// is not complete, between whose frames no other may come.
	busy bool
	// waiting are whole frames that are written at the next frame boundary.
	waiting []byte
	err     error
}

func newWriter(conn net.Conn) *writer {
	w := &writer{conn: conn}
	w.idle.L = &w.mu
	return w
}

// pass writes frames of the pod. With open, the last of them is not the last of
// its header block, and the caller must call pass again. It blocks until the
// client has taken them.
func (w *writer) pass(frames net.Buffers, wasOpen, open bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.busy && !wasOpen && w.err == nil {
		w.idle.Wait()
	}
	if w.err != nil {
		return w.err
	}
	w.busy = true
	if len(w.waiting) > 0 && !wasOpen {
		frames = append(net.Buffers{w.waiting}, frames...)
		w.waiting = nil
	}
	w.mu.Unlock()
	err := writeAll(w.conn, frames)
	w.mu.Lock()
	if err != nil {
		w.fail(err)
		return err
	}
	if open {
		return nil
	}
	return w.flush()
}

// control writes frames of ours, or leaves them to the goroutine that is writing,
// so that it never waits for that one.
func (w *writer) control(frames []byte) error {
	if len(frames) == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
		return w.err
	case w.busy && len(w.waiting)+len(frames) > maxWaitingControl:
		return errDeaf
	case w.busy:
		w.waiting = append(w.waiting, frames...)
		return nil
	}
	w.busy = true
	w.mu.Unlock()
	_, err := w.conn.Write(frames)
	w.mu.Lock()
	if err != nil {
		w.fail(err)
		return err
	}
	return w.flush()
}

// flush writes what came meanwhile and lets others write. It is called with mu
// held and busy set.
func (w *writer) flush() error {
	for len(w.waiting) > 0 {
		frames := w.waiting
		w.waiting = nil
		w.mu.Unlock()
		_, err := w.conn.Write(frames)
		w.mu.Lock()
		if err != nil {
			w.fail(err)
			return err
		}
	}
	w.busy = false
	w.idle.Signal()
	return w.err
}

// fail ends all writing. It is called with mu held.
func (w *writer) fail(err error) {
	w.err, w.busy, w.waiting = err, false, nil
	w.idle.Broadcast()
}

// writeAll writes buffers with as few system calls as it can. It uses frames up.
func writeAll(conn net.Conn, frames net.Buffers) error {
	if len(frames) == 1 {
		_, err := conn.Write(frames[0])
		return err
	}
	_, err := frames.WriteTo(conn)
	return err
}
