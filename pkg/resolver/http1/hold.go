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
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/answer"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

var (
	errClientGone  = errors.New("the client went away")
	errHoldTimeout = errors.New("no pod could answer in time")
)

// heldOverhead is what a held request keeps besides the bytes of its head: the
// connection, a goroutine and its stack.
const heldOverhead = 4 << 10

// answerRequest forwards the request whose head was read, holding it for as
// long as no pod can take it, or answers it. It reports whether the connection
// can carry another request.
func (c *conn) answerRequest(ctx context.Context) bool {
	c.record.Method = string(c.request.method)
	c.record.Path = pathOf(c.request.target)
	if c.record.Method == http.MethodConnect {
		return c.refuse(answer.New(http.StatusNotImplemented, answer.ReasonBadRequest, "CONNECT is not possible here: the destination is the service alone"))
	}
	lease, ok := c.service.Queue().TryTake(c.port.Name)
	if !ok {
		var err error
		if lease, err = c.hold(false); err != nil {
			return c.refuseHeld(err)
		}
	}
	for {
		c.record.Released = time.Now()
		c.record.Pod = lease.Pod.Name
		result := c.exchange(ctx, lease)
		switch result {
		case exchangeDone:
			lease.Release()
			return true
		case exchangeLast:
			lease.Release()
			return false
		case podRefused:
			// Nothing was sent: the request waits for another pod, or for this
			// one to accept.
			lease.Refuse()
		case neverReceived:
			// The pod closed a connection just as it was used again.
			lease.Release()
		}
		var err error
		if lease, err = c.hold(true); err != nil {
			return c.refuseHeld(err)
		}
	}
}

// hold waits until a pod can take the request. The goroutine sleeps on the
// client's connection without reading from it, so that a client that goes away
// is noticed at once and nothing is buffered; the queue wakes it by moving the
// read deadline into the past.
func (c *conn) hold(again bool) (hold.Lease, error) {
	c.record.Held = true
	c.shrink()
	deadline := c.record.Received.Add(c.service.Config().HoldTimeout)
	if err := c.setReadDeadline(deadline); err != nil {
		return hold.Lease{}, errClientGone
	}
	waiter := &hold.Waiter{
		Port:  c.port.Name,
		Bytes: heldOverhead + int64(len(c.in.data)),
		Settle: func() {
			// It fails only when the connection is closed, which ends the sleep too.
			_ = c.tcp.SetReadDeadline(past)
		},
	}
	queue := c.service.Queue()
	join := queue.Join
	if again {
		join = queue.Rejoin
	}
	if err := join(waiter); err != nil {
		return hold.Lease{}, err
	}
	slept := socket.WaitClosed(c.tcp)
	if queue.Leave(waiter) {
		if errors.Is(slept, os.ErrDeadlineExceeded) {
			return hold.Lease{}, errHoldTimeout
		}
		return hold.Lease{}, errClientGone
	}
	lease, cold, err := waiter.Result()
	c.record.WakeAnswered, c.record.EndpointReady = cold.WakeAnswered, cold.EndpointReady
	if err != nil {
		return hold.Lease{}, err
	}
	if err := c.setReadDeadline(time.Time{}); err != nil || !errors.Is(slept, os.ErrDeadlineExceeded) {
		lease.Release()
		return hold.Lease{}, errClientGone
	}
	return lease, nil
}

// shrink keeps no more than the bytes that were read: thousands may wait.
func (c *conn) shrink() {
	c.in.shrink()
	// The head was valid and is the same, only elsewhere.
	_ = c.request.parseRequest(c.in.unread())
}

// refuseHeld answers a request that was not given a pod.
func (c *conn) refuseHeld(err error) bool {
	c.record.Outcome = accesslog.Answered
	switch {
	case errors.Is(err, errClientGone):
		c.record.Outcome = accesslog.ClientGone
		return false
	case errors.Is(err, errHoldTimeout):
		return c.refuse(answer.New(http.StatusGatewayTimeout, answer.ReasonHoldTimeout,
			fmt.Sprintf("no pod of service %s/%s could answer within %s (proxy.holdTimeoutSeconds); see the conditions of elastiservice %s and the pods of its target",
				c.service.Namespace, c.service.PublicService, c.service.Config().HoldTimeout, c.service.Name)))
	case errors.Is(err, hold.ErrTooManyPending):
		return c.refuse(answer.New(http.StatusServiceUnavailable, answer.ReasonTooManyPending,
			fmt.Sprintf("%d requests are already held for service %s/%s, as many as its proxy.maxPending allows",
				c.service.Config().Limits.MaxPending, c.service.Namespace, c.service.PublicService)))
	case errors.Is(err, hold.ErrTooManyBytes):
		return c.refuse(answer.New(http.StatusServiceUnavailable, answer.ReasonTooManyBytes,
			"the resolver already holds as many bytes as its --max-held-bytes allows"))
	default:
		return c.refuse(answer.New(http.StatusServiceUnavailable, answer.ReasonServiceGone,
			fmt.Sprintf("service %s/%s is no longer managed by an elastiservice; ask again", c.service.Namespace, c.service.PublicService)))
	}
}

// pathOf returns the path of a request target, without the query.
func pathOf(target []byte) string {
	for i, c := range target {
		if c == '?' {
			return string(target[:i])
		}
	}
	return string(target)
}
