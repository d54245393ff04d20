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
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
)

const (
	// spliceBytes is from where on the rest of a body goes through the kernel
	// instead of a buffer. Setting that up costs more than copying a little.
	spliceBytes = 64 << 10
	// splicePiece is how much of a body goes through the kernel before the client
	// is given new time for more.
	splicePiece = 1 << 20
	// bodyGrace is how long the last bytes of a body may take once the response is
	// complete. A pod that responds when it has read everything is seen to have
	// responded before the last write to it is seen to have ended.
	bodyGrace = time.Second
	// firstReceipt and lastReceipt are how often is checked whether a pod has
	// received anything: after 1 ms, 2 ms, … 64 ms.
	firstReceipt, lastReceipt = time.Millisecond, 64 * time.Millisecond
)

// errBodyTimeout means that a client stopped sending a request body.
var errBodyTimeout = &malformed{status: http.StatusRequestTimeout, detail: "nothing more of the body came for too long (--body-timeout)"}

// errBodyCut means that a client finished its side of the connection in the
// middle of a request body.
var errBodyCut = errors.New("the client ended the request body early")

// requestBody sends a request body, beside the reading of the response: a pod may
// respond, or request to continue, before it has all of it. While it runs it owns
// the input of the client's connection.
//
// The request is kept until the pod is known to have received some of it: until
// then it can be sent again.
type requestBody struct {
	client *conn
	pod    *podConn
	before uint64
	done   chan struct{}

	// failure is written before done is closed, or before a read from the pod is
	// interrupted.
	failure atomic.Pointer[bodyFailure]
	// stopping is true once the rest of the body is not needed any more.
	stopping atomic.Bool
	// ending is true once the last bytes of the body are being written.
	ending atomic.Bool

	// Owned by the goroutine that sends, until done is closed.
	framing framing
	// kept is how many unread bytes of the client were sent, the header included.
	kept int
	// keeps is true while these are all of the request that was sent.
	keeps bool
	// sent is true when the whole body was.
	sent bool
	// crossed is true when the pod had said something before the last of the body
	// was sent to it.
	crossed bool
}

// bodyFailure is why a body could not be read from the client.
type bodyFailure struct{ err error }

// framing finds the end of a body.
type framing struct {
	chunked bool
	scanner chunkScanner
	left    int64
}

// next returns how many bytes of data are of the body, and whether it ends there.
func (f *framing) next(data []byte) (n int, end bool, err error) {
	if f.chunked {
		return f.scanner.scan(data)
	}
	n = int(min(f.left, int64(len(data))))
	f.left -= int64(n)
	return n, f.left == 0, nil
}

// startBody begins to send the body of the current request, whose header was sent.
func (e *exchange) startBody() {
	c := e.client
	b := &requestBody{
		client: c, pod: e.pod, before: e.before, done: make(chan struct{}),
		framing: framing{chunked: c.request.chunked, left: c.request.contentLength},
		kept:    len(c.request.raw), keeps: true,
	}
	e.body = b
	// A connection that is closed already ends the body at once.
	_ = c.setReadDeadline(time.Time{})
	c.server.options.Tasks.Go(b.abandon, func() {
		defer close(b.done)
		b.sent = b.send()
	})
}

// abandon ends both connections after a panic.
func (b *requestBody) abandon() {
	b.client.tcp.Reset()
	b.pod.tcp.Reset()
}

// send sends the body and reports whether all of it was sent.
func (b *requestBody) send() bool {
	in := &b.client.in
	for {
		data := in.unread()[b.kept:]
		if len(data) == 0 {
			if !b.keeps && !b.framing.chunked && b.framing.left > spliceBytes {
				return b.splice()
			}
			if !b.read() {
				return false
			}
			continue
		}
		n, end, err := b.framing.next(data)
		if err != nil {
			b.fail(err)
			return false
		}
		if end {
			b.end()
		}
		if _, err := b.pod.Write(data[:n]); err != nil {
			return false
		}
		b.kept += n
		if end {
			return true
		}
		if !b.keeps {
			b.drop()
		}
	}
}

// end is called before the last bytes of the body are written.
func (b *requestBody) end() {
	b.crossed = !b.pod.tcp.Idle()
	b.ending.Store(true)
}

func (b *requestBody) drop() {
	b.client.in.consume(b.kept)
	b.kept = 0
}

func (b *requestBody) read() bool {
	if b.keeps && b.pod.receivedAfter(b.before) {
		b.letGo()
	}
	b.arm()
	err := b.client.in.fill(b.client.tcp, wideSize)
	if errors.Is(err, io.ErrShortBuffer) || memory.IsLimit(err) {
		// No more can be kept.
		if !b.awaitReceipt() {
			return false
		}
		b.letGo()
		return b.read()
	}
	return err == nil || b.readFailed(err)
}

// letGo drops what was sent: the pod has received some of it, and the request
// cannot be sent again.
func (b *requestBody) letGo() {
	b.keeps = false
	b.client.request.forget()
	b.drop()
}

// awaitReceipt waits until the pod has received something, and reports whether
// it has.
func (b *requestBody) awaitReceipt() bool {
	for pause := firstReceipt; !b.stopping.Load(); pause = min(2*pause, lastReceipt) {
		if b.pod.receivedAfter(b.before) {
			return true
		}
		timer := time.NewTimer(pause)
		<-timer.C
	}
	return false
}

// readFailed notes why a read from the client failed, and returns false.
func (b *requestBody) readFailed(err error) bool {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.fail(errBodyTimeout)
	case errors.Is(err, io.EOF):
		b.fail(errBodyCut)
	default:
		b.fail(hold.ErrClientGone)
	}
	return false
}

// splice lets the kernel move the rest of a body of known size, in pieces: a
// piece that did not come whole in time was still on its way when some of it came.
func (b *requestBody) splice() bool {
	for b.framing.left > 0 {
		b.arm()
		piece := min(b.framing.left, splicePiece)
		if piece == b.framing.left {
			b.end()
		}
		n, err := b.pod.tcp.CopyFrom(b.client.tcp, piece)
		b.pod.written += uint64(n)
		b.framing.left -= n
		switch {
		case err == nil, n > 0 && errors.Is(err, os.ErrDeadlineExceeded) && !b.stopping.Load():
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
			// Only reads have a deadline, but when the body is being ended.
			return b.readFailed(err)
		case b.client.tcp.Broken():
			return b.readFailed(hold.ErrClientGone)
		default:
			return false
		}
	}
	return true
}

// arm gives the client time to send more.
func (b *requestBody) arm() {
	timeout := b.client.server.options.BodyTimeout
	if timeout == 0 {
		return
	}
	// A connection that is closed already ends the body at once.
	_ = b.client.tcp.SetReadDeadline(time.Now().Add(timeout))
	if b.stopping.Load() {
		// It may have been interrupted just before.
		_ = b.client.tcp.SetReadDeadline(past)
	}
}

// fail notes why the body ends early, and interrupts the wait for a response.
func (b *requestBody) fail(err error) {
	if b.stopping.Load() {
		// It was told to end.
		return
	}
	b.failure.Store(&bodyFailure{err})
	_ = b.pod.tcp.SetReadDeadline(past)
}

// ended reports whether nothing more is read from the client.
func (b *requestBody) ended() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// pending reports whether a part of the body is still to be written.
func (b *requestBody) pending() bool { return b != nil && !b.ending.Load() }

// err returns why the body ended early, or nil.
func (b *requestBody) err() error {
	if b == nil {
		return nil
	}
	if failure := b.failure.Load(); failure != nil {
		return failure.err
	}
	return nil
}

// awaitEnd waits for the end of the body after the response. A pod that goes on
// reading, with whole, gets all of it; else the rest is not needed.
func (b *requestBody) awaitEnd(whole bool) {
	switch {
	case whole:
		b.awaitWhole(b.client.server.options.BodyTimeout)
	case b.pending():
		b.stop()
	default:
		timer := time.NewTimer(bodyGrace)
		defer timer.Stop()
		select {
		case <-b.done:
		case <-timer.C:
			b.stop()
		}
	}
}

// awaitWhole waits until all of the body was sent, or the client or the pod has left:
// while the pod reads no more of it, or the client sends no more, nothing else sees that.
// What a client has sent before it finished still goes to a pod that reads. One that reads
// nothing for the timeout does not get it; 0 is for ever.
func (b *requestBody) awaitWhole(timeout time.Duration) {
	ticker := time.NewTicker(silence)
	defer ticker.Stop()
	var received uint64
	since := time.Now()
	for {
		select {
		case <-b.done:
			return
		case <-ticker.C:
		}
		// It fails when the connection is closed, and then the body ends.
		n, _ := b.pod.tcp.Acknowledged()
		if !b.client.tcp.Finished() || n > received {
			received, since = n, time.Now()
		}
		switch {
		case b.client.tcp.Broken(), timeout > 0 && time.Since(since) >= timeout:
			b.failure.Store(&bodyFailure{hold.ErrClientGone})
		case !b.pod.tcp.Broken():
			continue
		}
		b.stop()
		// Nothing more can be written to the pod, also when the rest was just sent.
		b.sent = false
		return
	}
}

// stop ends the body, wherever it is.
func (b *requestBody) stop() {
	b.stopping.Store(true)
	_ = b.client.tcp.SetReadDeadline(past)
	_ = b.pod.tcp.SetWriteDeadline(past)
	<-b.done
	_ = b.client.setReadDeadline(time.Time{})
}
