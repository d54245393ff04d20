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
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/answer"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/proberesponse"
)

// heldOverhead is what a held request keeps besides the bytes of its head: the
// connection, a goroutine and its stack.
const heldOverhead = 4 << 10

// answerRequest forwards the request whose head was read, holding it for as
// long as no pod can take it, or answers it. It reports whether the connection
// can carry another request.
func (c *conn) answerRequest(ctx context.Context) bool {
	if c.record.Method == http.MethodConnect {
		return c.refuse(answer.New(http.StatusNotImplemented, answer.ReasonBadRequest, "CONNECT is not possible here: the destination is the service alone"))
	}
	lease, ok := c.service.Queue().TryTake(c.port.Name)
	if !ok {
		if local := c.answerAsleep(); local != nil {
			return c.refuse(local)
		}
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
		case notReceived:
			// The request waits for another pod, or until this one is seen to
			// accept connections.
			lease.Refuse()
		}
		var err error
		if lease, err = c.hold(true); err != nil {
			return c.refuseHeld(err)
		}
	}
}

// answerAsleep returns the resolver's own answer to a request that it does not
// hold while no pod can take it, or nil.
func (c *conn) answerAsleep() *answer.Answer {
	if c.service.Queue().Answering(c.port.Name) {
		return nil
	}
	path, query, _ := strings.Cut(string(c.request.target), "?")
	return c.server.options.Asleep.Answer(c.service, &proberesponse.Request{
		Method: c.record.Method,
		Path:   path,
		Query:  query,
		Values: c.request.values,
	})
}

// hold waits until a pod can take the request.
func (c *conn) hold(again bool) (hold.Lease, error) {
	c.record.Held = true
	c.shrink()
	waiter := hold.ConnWaiter{
		Conn:     c.tcp,
		Port:     c.port.Name,
		Bytes:    heldOverhead + int64(len(c.in.data)),
		Deadline: c.record.Received.Add(c.service.Config().HoldTimeout),
	}
	c.deadlineSet = time.Time{}
	lease, cold, err := waiter.Wait(c.service.Queue(), again)
	c.record.WakeAnswered, c.record.EndpointReady = cold.WakeAnswered, cold.EndpointReady
	return lease, err
}

// shrink keeps no more than the bytes that were read: thousands may wait.
func (c *conn) shrink() {
	c.in.shrink()
	// The head was valid and is the same, only elsewhere.
	_ = c.request.parseRequest(c.in.unread())
}

// refuseHeld answers a request that was not given a pod.
func (c *conn) refuseHeld(err error) bool {
	if errors.Is(err, hold.ErrClientGone) {
		c.record.Outcome = accesslog.ClientGone
		return false
	}
	return c.refuse(answer.NotHeld(c.service, err))
}
