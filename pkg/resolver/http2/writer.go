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
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
)

// maxWaitingControl bounds the frames of the resolver that wait while the client
// does not read: replies that it causes without reading are not kept for it.
const maxWaitingControl = 64 << 10

// errNotReading means that a client causes more replies than it reads.
var errNotReading = errors.New("the peer does not read what it requested")

// writer writes frames to a client, whose connection two goroutines write to. It
// is safe for concurrent use.
type writer struct {
	conn net.Conn

	// Owned by the goroutine that writes.
	sender *sender
	// charge counts what it waits with.
	charge memory.Charge
	single [1][]byte

	mu sync.Mutex
	// idle is signaled when busy becomes false.
	idle sync.Cond
	// busy is true while a goroutine writes, or while a header block of the pod
	// is not complete, between whose frames no other may come.
	busy bool
	// waiting are whole frames that are written at the next frame boundary, marks
	// those of them that concern the client's table, and queue counts them.
	waiting []byte
	marks   []tableMark
	queue   memory.Charge
	table   tableUpdate
	// last is true when the deadline is that of the last that is said.
	last bool
	err  error
}

func newWriter(conn net.Conn, account *memory.Account) *writer {
	w := &writer{conn: conn, sender: newSender(conn), charge: account.Charge(), queue: account.Charge()}
	w.table = tableUpdate{size: initialTableSize, smallest: initialTableSize}
	w.idle.L = &w.mu
	return w
}

// pass writes frames of the pod, of which marks concern the client's table. With
// open, the last of them is not the last of its header block, and the caller must
// call pass again. It blocks until the client has taken them.
func (w *writer) pass(frames net.Buffers, marks []tableMark, wasOpen, open bool) error {
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
		frames = append(net.Buffers{w.takeWaiting()}, frames...)
	}
	w.table.note(marks)
	w.mu.Unlock()
	err := w.write(frames)
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

// control writes frames of the resolver, of which marks concern the client's table, or leaves
// them to the goroutine that is writing, so that it never waits for that one.
func (w *writer) control(frames []byte, marks []tableMark) error {
	if len(frames) == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
		return w.err
	case w.busy:
		return w.wait(frames, marks)
	}
	w.busy = true
	frames = w.table.complete(frames, marks)
	w.mu.Unlock()
	err := w.write(w.alone(frames))
	w.mu.Lock()
	if err != nil {
		w.fail(err)
		return err
	}
	return w.flush()
}

// wait keeps frames for the goroutine that is writing. It is called with mu held.
func (w *writer) wait(frames []byte, marks []tableMark) error {
	size := len(w.waiting) + len(frames)
	if size > maxWaitingControl {
		return errNotReading
	}
	if size > uncountedRest && w.queue.Claim(maxWaitingControl) != nil {
		return errNotReading
	}
	for _, mark := range marks {
		mark.at += len(w.waiting)
		w.marks = append(w.marks, mark)
	}
	w.waiting = append(w.waiting, frames...)
	return nil
}

// takeWaiting returns the frames that wait, to be written next. It is called with mu
// held.
func (w *writer) takeWaiting() []byte {
	frames := w.table.complete(w.waiting, w.marks)
	w.waiting, w.marks = nil, nil
	w.queue.Release()
	return frames
}

// write writes frames, and counts them until the client has received them. Where there
// is no room for that, the client has roomTimeout to receive them. It is called by the
// goroutine that set busy.
func (w *writer) write(frames net.Buffers) error {
	all, err := w.sender.start(frames)
	if all || err != nil {
		return err
	}
	defer w.charge.Release()
	if w.charge.Claim(bufferSize) != nil {
		w.limit(time.Now().Add(roomTimeout), false)
		defer w.limit(time.Time{}, false)
	}
	return w.sender.finish()
}

// alone returns frames for write.
func (w *writer) alone(frames []byte) net.Buffers {
	w.single[0] = frames
	return w.single[:]
}

// limit sets until when the client may receive what it is sent, for good when this is
// the final write.
func (w *writer) limit(deadline time.Time, last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last && !last {
		return
	}
	w.last = last
	// It fails only when the connection is closed, as writing does then.
	_ = w.conn.SetWriteDeadline(deadline)
}

// probe writes frames that the client's kernel responds to with a reset when the client
// has closed its connection, if that takes no waiting.
func (w *writer) probe(frames []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy || w.err != nil {
		// Something else is on its way.
		return
	}
	w.busy = true
	w.mu.Unlock()
	all, err := w.sender.start(w.alone(frames))
	if left := w.sender.left; !all && err == nil && len(left) > 0 && len(left[0]) < len(frames) {
		err = w.sender.finish()
	}
	w.mu.Lock()
	if err != nil {
		w.fail(err)
		return
	}
	// That it failed is found out where the client is written to next.
	_ = w.flush()
}

// flush writes what came meanwhile and lets others write. It is called with mu
// held and busy set.
func (w *writer) flush() error {
	for len(w.waiting) > 0 {
		frames := w.takeWaiting()
		w.mu.Unlock()
		err := w.write(w.alone(frames))
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
	w.err, w.busy = err, false
	w.takeWaiting()
	w.idle.Broadcast()
}
