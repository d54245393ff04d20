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
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/proberesponse"
)

// heldOverhead is what a held request keeps besides the bytes of its header: the
// connection, a goroutine and its stack.
const heldOverhead = 4 << 10

// forwardOrHold forwards the request whose header was read, has it held when no
// pod can take it, or rejects it.
func (c *conn) forwardOrHold(ctx context.Context) step {
	if c.record.Method == http.MethodConnect {
		// What follows may be meant for the other end of the tunnel.
		c.rejectLast(localreply.New(http.StatusNotImplemented, localreply.ReasonBadRequest, "CONNECT is not possible here: the destination is the service alone"))
		return endConn
	}
	lease, ok := c.take()
	if !ok {
		if local := c.fallbackReply(); local != nil {
			return c.reject(local)
		}
	}
	c.count()
	if !ok {
		return c.hold(false)
	}
	return c.forward(ctx, lease)
}

// take returns a lease for the request when a pod can be used at once: that of
// the request before, where possible.
func (c *conn) take() (hold.Lease, bool) {
	queue := c.service.Queue()
	if c.pod == nil {
		return queue.TryTake(c.port.Name)
	}
	return queue.TryTakeNext(c.port.Name, c.pod.lease)
}

// serveHeld forwards a request that was held, or rejects it.
func (c *conn) serveHeld(ctx context.Context, slept error) step {
	// A panic of it would keep the lease, once there is one.
	c.reparse()
	lease, cold, err := c.waiter.Finish(slept)
	c.waiter = nil
	c.in.recharge()
	c.record.WakeSucceeded, c.record.EndpointReady = cold.WakeSucceeded, cold.EndpointReady
	if errors.Is(err, hold.ErrAsleep) {
		return c.holdAgain()
	}
	if err != nil {
		return c.rejectHeld(err)
	}
	return c.forward(ctx, lease)
}

// forward sends the request to the pod of a lease.
func (c *conn) forward(ctx context.Context, lease hold.Lease) step {
	c.record.Released = time.Now()
	c.record.Pod = lease.Pod.Name
	refused := false
	// A panic must not keep the place at the pod either.
	defer func() {
		if !refused {
			lease.Release()
		}
	}()
	switch c.exchange(ctx, lease) {
	case exchangeDone:
		return nextRequest
	case exchangeLast:
		return endConn
	default:
		// The request waits for another pod, or until this one is seen to accept
		// connections.
		refused = true
		lease.ConnectionRefused()
		return c.holdAgain()
	}
}

// fallbackReply returns the resolver's own response to a request that it does not
// hold while no pod can take it, or nil.
func (c *conn) fallbackReply() *localreply.Reply {
	if c.service.Queue().Serving(c.port.Name) {
		return nil
	}
	return c.server.options.Fallback.Reply(c.service, c.probeRequest())
}

// count makes the request count as traffic of the service until it is finished.
func (c *conn) count() {
	if traffic := c.service.Traffic(); !traffic.Needed() || !c.passive() {
		traffic.Begin()
		c.counted = true
	}
}

// passive reports whether the request is one that would not wake the target.
func (c *conn) passive() bool {
	return c.server.options.Fallback.Passive(c.service, c.probeRequest())
}

func (c *conn) probeRequest() *proberesponse.Request {
	path, query, _ := strings.Cut(string(c.request.target), "?")
	return &proberesponse.Request{
		Method: c.record.Method,
		Path:   path,
		Query:  query,
		Port:   c.port.Number,
		Values: c.request.values,
	}
}

// holdAgain puts a request back in line that no pod has received. A passive request does not
// wait for another pod: that which it was sent to may have been the last.
func (c *conn) holdAgain() step {
	if c.passive() {
		if local := c.fallbackReply(); local != nil {
			return c.reject(local)
		}
	}
	return c.hold(true)
}

// hold puts the request in line for a pod.
func (c *conn) hold(again bool) step {
	c.record.Held = true
	passive := c.passive()
	c.shrink()
	waiter := &hold.ConnWaiter{
		Conn:     c.tcp,
		Port:     c.port.Name,
		Bytes:    heldOverhead + c.size(),
		Deadline: c.record.Received.Add(c.service.Config().HoldTimeout),
		// Either the client waits for the response still, or its kernel rejects the
		// first byte of it.
		HalfCloses: c.probe,
		Passive:    passive,
	}
	c.deadline = time.Time{}
	if err := waiter.Join(c.service.Queue(), again); err != nil {
		c.reparse()
		return c.rejectHeld(err)
	}
	c.waiter = waiter
	return holdRequest
}

// shrink keeps no more than the bytes that were read, and what was found of them
// at a glance: thousands may wait.
func (c *conn) shrink() {
	c.in.shrink()
	c.request = messageHeader{}
}

// reparse finds in a request that was valid before, and may be elsewhere now, all
// that is needed to forward it.
func (c *conn) reparse() { _ = c.request.parseRequest(c.in.unread()) }

// size returns how many bytes a held request keeps besides what all do.
func (c *conn) size() int64 {
	return int64(len(c.in.data) + len(c.record.Path) + len(c.record.TraceParent))
}

// rejectHeld rejects a request that was not given a pod.
func (c *conn) rejectHeld(err error) step {
	if errors.Is(err, hold.ErrClientGone) {
		c.record.Outcome = accesslog.ClientGone
		return endConn
	}
	return c.reject(localreply.ForError(c.service, err))
}
