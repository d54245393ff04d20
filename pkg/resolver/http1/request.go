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
)

const (
	// spliceBytes is from where on the rest of a body goes through the kernel
	// instead of a buffer. Setting that up costs more than copying a little.
	spliceBytes = 64 << 10
	// bodyGrace is how long a request body may still take once its answer is
	// complete. A pod that answers when it has read everything is seen to have
	// answered before the last write to it is seen to have ended.
	bodyGrace = time.Second
	// splicePiece is how much of a body goes through the kernel before the client
	// is given new time for more.
	splicePiece = 1 << 20
)

// errBodyTimeout means that a client stopped sending a request body.
var errBodyTimeout = &malformed{status: http.StatusRequestTimeout, detail: "nothing more of the body came for too long (--body-timeout)"}

// requestBody sends a request body, beside the reading of the answer: a pod may
// answer, or ask to continue, before it has all of it. While it runs it owns
// the input of the client's connection.
type requestBody struct {
	client *conn
	pod    *podConn
	done   chan struct{}

	// Written before done is closed, or before a read from the pod is interrupted.
	failure atomic.Pointer[bodyFailure]
	// stopping is true once the rest of the body is not wanted any more.
	stopping atomic.Bool
	// Valid once done is closed.
	sent bool
}

// bodyFailure is why a body could not be read from the client.
type bodyFailure struct{ err error }

// startBody begins to send the body of the current request. The head is
// consumed: the request cannot be sent again.
func (e *exchange) startBody() {
	c := e.client
	b := &requestBody{client: c, pod: e.pod, done: make(chan struct{})}
	e.body = b
	kind, size := c.request.body(), c.request.contentLength
	c.in.consume(len(c.request.raw))
	// A connection that is closed already ends the body at once.
	_ = c.setReadDeadline(time.Time{})
	c.server.options.Tasks.Go(b.abandon, func() {
		defer close(b.done)
		if kind == chunkedBody {
			b.sent = b.sendChunks()
		} else {
			b.sent = b.sendSized(size)
		}
	})
}

// abandon ends both connections after a panic.
func (b *requestBody) abandon() {
	b.client.tcp.Close()
	b.pod.tcp.Close()
}

// sendSized sends a body of known size and reports whether all of it was sent.
func (b *requestBody) sendSized(size int64) bool {
	in := &b.client.in
	for size > 0 {
		if len(in.unread()) == 0 && size > spliceBytes {
			return b.splice(size)
		}
		if len(in.unread()) == 0 && !b.read() {
			return false
		}
		n := int(min(size, int64(len(in.unread()))))
		if _, err := b.pod.Write(in.unread()[:n]); err != nil {
			return false
		}
		in.consume(n)
		size -= int64(n)
	}
	return true
}

// splice lets the kernel move the rest of a body, in pieces: a piece that did
// not come whole in time was still on its way when some of it came.
func (b *requestBody) splice(size int64) bool {
	for size > 0 {
		b.arm()
		n, err := io.CopyN(b.pod.tcp, b.client.tcp, min(size, splicePiece))
		b.pod.written += uint64(n)
		size -= n
		switch {
		case err == nil, n > 0 && errors.Is(err, os.ErrDeadlineExceeded) && !b.stopping.Load():
		case errors.Is(err, io.EOF):
			b.fail(hold.ErrClientGone)
			return false
		case errors.Is(err, os.ErrDeadlineExceeded):
			// Only reads have a deadline, but when the body is being ended.
			b.fail(errBodyTimeout)
			return false
		default:
			return false
		}
	}
	return true
}

// sendChunks sends a chunked body and reports whether all of it was sent.
func (b *requestBody) sendChunks() bool {
	in := &b.client.in
	var scanner chunkScanner
	for {
		if len(in.unread()) == 0 && !b.read() {
			return false
		}
		n, end, err := scanner.scan(in.unread())
		if err != nil {
			b.fail(err)
			return false
		}
		if _, err := b.pod.Write(in.unread()[:n]); err != nil {
			return false
		}
		in.consume(n)
		if end {
			return true
		}
	}
}

func (b *requestBody) read() bool {
	b.arm()
	err := b.client.in.fillBody(b.client.tcp)
	switch {
	case err == nil:
		return true
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.fail(errBodyTimeout)
	default:
		b.fail(hold.ErrClientGone)
	}
	return false
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

// fail notes why the body ends early, and interrupts the wait for an answer.
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

// clientGone reports whether the client went away before the body was complete.
func (b *requestBody) clientGone() bool {
	failure := b.failure.Load()
	return failure != nil && errors.Is(failure.err, hold.ErrClientGone)
}

// malformed returns what is wrong with the body that the client sent, or nil.
func (b *requestBody) malformed() error {
	failure := b.failure.Load()
	if failure == nil || errors.Is(failure.err, hold.ErrClientGone) {
		return nil
	}
	return failure.err
}

// stop waits a moment for the rest of the body, ends it, and reports whether
// the client went away before.
func (b *requestBody) stop() (gone bool) {
	timer := time.NewTimer(bodyGrace)
	defer timer.Stop()
	select {
	case <-b.done:
		return b.clientGone()
	case <-timer.C:
	}
	gone = b.clientGone()
	b.stopping.Store(true)
	_ = b.client.tcp.SetReadDeadline(past)
	_ = b.pod.tcp.SetWriteDeadline(past)
	<-b.done
	_ = b.client.setReadDeadline(time.Time{})
	return gone
}
