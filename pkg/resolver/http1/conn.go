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
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// restAfter is how long a connection waits for a request with the stack of the
// last one. After that it keeps next to nothing.
const restAfter = 2 * time.Second

// errResting means that no request has come for a while.
var errResting = errors.New("no request has come for a while")

// conn is a connection of a client.
type conn struct {
	// Immutable.
	server  *Server
	tcp     socket.Conn
	address string
	find    destination.Find
	// fields checks the fields of the current request.
	fields func(name string) []string
	// ended is called when the connection has ended.
	ended func()
	// account counts what the connection takes.
	account *memory.Account

	draining atomic.Bool

	mu sync.Mutex
	// idle is true while no byte of the next request is there, and resting when
	// no goroutine serves it.
	idle, resting bool
	// pod is the connection to a pod. Only while resting is true may others than
	// the goroutine that serves change it; that one reads it without mu.
	pod *podConn

	start start

	// Owned by the goroutine that serves, but for in while a request body is
	// being sent.
	in buffer
	// service and port are what the current request is for.
	service *service.Service
	port    service.Port
	request messageHeader
	record  accesslog.Record
	// deadline is the read deadline of the wait for a request, where it is set.
	deadline time.Time
	// lingers is true when the last response may still have to be read.
	lingers bool
	// waiter is the wait of the current request while it is held.
	waiter *hold.ConnWaiter
	// counted is true while the current request counts as traffic.
	counted bool
}

// step is what a connection does next.
type step int

const (
	// nextRequest: it serves another request.
	nextRequest step = iota
	// holdRequest: the current request has joined the line, and waits.
	holdRequest
	// restConn: it waits for a request, which has not come for a while.
	restConn
	// endConn: it ends.
	endConn
)

// proceed serves requests until the connection ends, or until a request is held or none
// comes. It waits for either in another goroutine: the stack of this one has grown as deep as
// parsing and forwarding go, and thousands may wait.
func (c *conn) proceed(ctx context.Context, next step) {
	for next == nextRequest {
		next = c.serveRequest(ctx)
	}
	switch next {
	case holdRequest:
		c.server.options.Tasks.Go(c.abandon, func() { c.wait(ctx) })
	case restConn:
		c.server.options.Tasks.Go(c.abandon, func() { c.rest(ctx) })
	default:
		c.close()
		c.server.remove(c)
		c.ended()
	}
}

// abandon ends the connection after a panic of what served it.
func (c *conn) abandon() {
	c.abort()
	c.in.release()
	c.setPod(nil)
	if c.counted {
		c.counted = false
		c.service.Traffic().End()
	}
	if c.waiter != nil {
		c.waiter.Abandon()
		c.waiter = nil
	}
	c.server.remove(c)
	c.ended()
}

// wait sleeps until the held request can go on. It has next to nothing on its
// stack while it does.
func (c *conn) wait(ctx context.Context) {
	slept := c.waiter.Sleep()
	c.proceed(ctx, c.resume(ctx, slept))
}

// rest sleeps until there is something to read.
func (c *conn) rest(ctx context.Context) {
	next := nextRequest
	if err := c.tcp.WaitReadable(); err != nil {
		next = endConn
	}
	c.mu.Lock()
	c.resting = false
	c.mu.Unlock()
	c.record.Ended = time.Time{}
	c.proceed(ctx, next)
}

// serveRequest serves the next request, or has it held.
func (c *conn) serveRequest(ctx context.Context) step {
	err := c.readHeader()
	var bad *malformed
	switch {
	case errors.Is(err, errResting):
		return restConn
	case err != nil && !errors.As(err, &bad):
		return endConn
	}
	c.start.reset()
	before := c.record
	c.record = accesslog.Record{Protocol: accesslog.HTTP1, Client: c.address, Received: time.Now()}
	if bad == nil {
		c.record.Method = same(before.Method, accesslog.Clip(c.request.method, accesslog.MaxMethod))
		c.record.Path = same(before.Path, accesslog.Clip(pathOf(c.request.target), accesslog.MaxPath))
		c.record.TraceParent = string(accesslog.Clip(c.request.traceParent, accesslog.MaxTraceParent))
	}
	var local *localreply.Reply
	c.service, c.port, local = c.find(c.fields)
	switch {
	case bad != nil:
		c.rejectLast(bad.reply())
		return c.finish(endConn)
	case c.service == nil:
		return c.finish(c.reject(local))
	default:
		return c.finish(c.forwardOrHold(ctx))
	}
}

// resume goes on with a request that was held.
func (c *conn) resume(ctx context.Context, slept error) step {
	return c.finish(c.serveHeld(ctx, slept))
}

// finish completes the record of a request that is not held any more, and
// returns what comes after it. A request that was for no service has no record.
func (c *conn) finish(next step) step {
	if next == nextRequest && c.draining.Load() {
		next = endConn
	}
	if next == holdRequest || c.service == nil {
		return next
	}
	c.record.Namespace = c.service.Namespace
	c.record.Service = c.service.PublicService
	c.record.Port = c.port.Number
	c.record.Ended = time.Now()
	c.service.Finish(&c.record)
	if c.counted {
		c.counted = false
		c.service.Traffic().End()
	}
	return next
}

// readHeader reads until the header of a request is complete and parsed. It fails
// with errResting when none begins for a while.
func (c *conn) readHeader() error {
	// Nothing of the last request may be taken for a part of this one.
	c.request.reset()
	c.in.narrow()
	if err := c.armIdle(c.now()); err != nil {
		return err
	}
	defer c.setIdle(false)
	searched := 0
	for {
		// Clients of old sent an empty line after a body.
		for data := c.in.unread(); len(data) >= 2 && data[0] == '\r' && data[1] == '\n'; data = c.in.unread() {
			c.in.consume(2)
			searched = 0
		}
		data := c.in.unread()
		if headerEnds(data, searched) {
			return c.request.parseRequest(data)
		}
		searched = len(data)
		if len(data) > 0 && c.setIdle(false) {
			if err := c.setReadDeadline(time.Now().Add(c.server.options.HeaderTimeout)); err != nil {
				return err
			}
		}
		err := c.in.fill(c.tcp, c.server.options.MaxHeaderBytes)
		switch {
		case errors.Is(err, io.ErrShortBuffer):
			return &malformed{status: http.StatusRequestHeaderFieldsTooLarge, detail: "the header of the request is too large"}
		case memory.IsLimit(err):
			return &malformed{status: http.StatusServiceUnavailable, reason: localreply.ReasonTooManyBytes, detail: err.Error()}
		case errors.Is(err, os.ErrDeadlineExceeded) && len(data) == 0:
			return c.armRest(err)
		case err != nil:
			return err
		}
	}
}

// now returns the time. That the last request ended just now saves a read of the clock.
func (c *conn) now() time.Time {
	if c.record.Ended.IsZero() {
		return time.Now()
	}
	return c.record.Ended
}

// armIdle sets the deadline for the next request. Setting one costs more than
// reading the clock, so it is set anew only now and then.
func (c *conn) armIdle(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = true
	timeout := min(restAfter, c.server.options.IdleTimeout)
	if c.draining.Load() {
		timeout = drainIdleTimeout
	} else if c.deadline.Sub(now) > timeout/2 {
		return nil
	}
	c.deadline = now.Add(timeout)
	return c.tcp.SetReadDeadline(c.deadline)
}

// armRest sets the deadline for a request that has not come for a while, and
// returns errResting. When that was the last deadline it returns err.
func (c *conn) armRest(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	timeout := c.server.options.IdleTimeout - restAfter
	if timeout <= 0 || c.draining.Load() {
		return err
	}
	c.idle, c.resting = true, true
	if c.pod != nil {
		// Shrinking does not fail.
		_ = c.pod.charge.Resize(restingPodBytes)
	}
	c.deadline = time.Time{}
	if err := c.tcp.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	return errResting
}

// setIdle sets whether the connection waits for a request, and reports whether
// that changed. A connection that rests goes on waiting.
func (c *conn) setIdle(idle bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := c.idle != idle
	c.idle = idle || c.resting
	return changed
}

// drain makes the current request the last, or ends the connection soon when
// there is none.
func (c *conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining.Store(true)
	if c.idle {
		// A connection that is closed already has no deadline, and needs none.
		_ = c.tcp.SetReadDeadline(time.Now().Add(drainIdleTimeout))
	}
}

// setReadDeadline sets another deadline than the idle one.
func (c *conn) setReadDeadline(deadline time.Time) error {
	c.deadline = time.Time{}
	return c.tcp.SetReadDeadline(deadline)
}

// pathOf returns the path of a request target, without the query.
func pathOf(target []byte) []byte {
	path, _, _ := bytes.Cut(target, []byte("?"))
	return path
}

// same returns a value as a string, which is the one from before if that says
// the same: many clients request the same again and again.
func same(before string, value []byte) string {
	if before == string(value) {
		return before
	}
	return string(value)
}

// close ends the connection.
func (c *conn) close() {
	c.in.release()
	if c.lingers {
		c.linger()
	}
	c.tcp.Close()
	c.setPod(nil)
}

// headerEnds reports whether data has the end of a header, or a line end that makes
// it malformed. The first searched bytes have neither.
func headerEnds(data []byte, searched int) bool {
	for i := max(0, searched-2); i < len(data); i++ {
		next := bytes.IndexByte(data[i:], '\n')
		if next < 0 {
			return false
		}
		i += next
		if i == 0 || data[i-1] != '\r' || (i >= 3 && data[i-2] == '\n') {
			return true
		}
	}
	return false
}
