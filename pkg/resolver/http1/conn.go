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
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// conn is a connection of a client.
type conn struct {
	// Immutable.
	server  *Server
	tcp     *net.TCPConn
	address string
	find    destination.Find
	// ended is called when the connection has ended.
	ended func()

	draining atomic.Bool

	mu sync.Mutex
	// idle is true while no byte of the next request is there.
	idle bool

	// Owned by the goroutine that serves, but for in while a request body is
	// being sent.
	in buffer
	// service and port are what the current request is for.
	service *service.Service
	port    service.Port
	request head
	record  accesslog.Record
	// deadlineSet is when the idle deadline was last set.
	deadlineSet time.Time
	// lingers is true when the last answer may still have to be read.
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
	// endConn: it ends.
	endConn
)

// proceed serves requests until the connection ends, or until one is held. That
// one waits in a goroutine of its own: the stack of this one has grown as deep
// as parsing and forwarding go, and thousands may wait.
func (c *conn) proceed(ctx context.Context, next step) {
	for next == nextRequest {
		next = c.serveRequest(ctx)
	}
	if next == holdRequest {
		c.server.options.Tasks.Go(c.abandon, func() { c.wait(ctx) })
		return
	}
	c.close()
	c.server.remove(c)
	c.ended()
}

// abandon ends the connection after a panic of what served it.
func (c *conn) abandon() {
	c.abort()
	c.tcp.Close()
	if c.counted {
		c.counted = false
		c.service.Traffic().End()
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

// serveRequest serves the next request, or has it held.
func (c *conn) serveRequest(ctx context.Context) step {
	err := c.readHead()
	var bad *malformed
	if err != nil && !errors.As(err, &bad) {
		return endConn
	}
	c.record = accesslog.Record{Protocol: accesslog.HTTP1, Client: c.address, Received: time.Now()}
	if bad == nil {
		c.record.Method, c.record.Path = string(c.request.method), pathOf(c.request.target)
		c.record.TraceParent = string(c.request.traceParent)
	}
	var instead *localreply.Reply
	c.service, c.port, instead = c.find(c.request.values)
	switch {
	case bad != nil:
		c.refuseLast(localreply.New(bad.status, localreply.ReasonBadRequest, bad.detail))
		return c.finish(endConn)
	case c.service == nil:
		return c.finish(c.refuse(instead))
	default:
		return c.finish(c.answerRequest(ctx))
	}
}

// resume goes on with a request that was held.
func (c *conn) resume(ctx context.Context, slept error) step {
	return c.finish(c.answerHeld(ctx, slept))
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

// readHead reads until the head of a request is complete and parsed.
func (c *conn) readHead() error {
	if err := c.armIdle(time.Now()); err != nil {
		return err
	}
	defer c.setIdle(false)
	searched := 0
	for {
		// Clients of old sent an empty line after a body.
		for data := c.in.unread(); len(data) >= 2 && data[0] == '\r' && data[1] == '\n'; data = c.in.unread() {
			c.in.consume(2)
		}
		data := c.in.unread()
		if headEnds(data, searched) {
			break
		}
		searched = len(data)
		if len(data) > 0 && c.setIdle(false) {
			if err := c.setReadDeadline(time.Now().Add(c.server.options.HeaderTimeout)); err != nil {
				return err
			}
		}
		if err := c.in.fill(c.tcp, c.server.options.MaxHeaderBytes); err != nil {
			if errors.Is(err, io.ErrShortBuffer) {
				return &malformed{status: http.StatusRequestHeaderFieldsTooLarge, detail: "the head of the request is too large"}
			}
			return err
		}
	}
	return c.request.parseRequest(c.in.unread())
}

// armIdle sets the deadline for the next request. Setting one costs more than
// reading the clock, so it is set anew only now and then.
func (c *conn) armIdle(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = true
	timeout := c.server.options.IdleTimeout
	if c.draining.Load() {
		timeout = drainIdleTimeout
	} else if now.Sub(c.deadlineSet) < time.Second {
		return nil
	}
	c.deadlineSet = now
	return c.tcp.SetReadDeadline(now.Add(timeout))
}

// setIdle sets whether the connection waits for a request, and reports whether
// that changed.
func (c *conn) setIdle(idle bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := c.idle != idle
	c.idle = idle
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
	c.deadlineSet = time.Time{}
	return c.tcp.SetReadDeadline(deadline)
}

// pathOf returns the path of a request target, without the query.
func pathOf(target []byte) string {
	path, _, _ := bytes.Cut(target, []byte("?"))
	return string(path)
}

// close ends the connection.
func (c *conn) close() {
	c.in.release()
	if c.lingers {
		c.linger()
	}
	c.tcp.Close()
}

// headEnds reports whether data has the end of a head, or a line end that makes
// it malformed. The first searched bytes are known to have neither.
func headEnds(data []byte, searched int) bool {
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
