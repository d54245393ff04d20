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
	"slices"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
)

// Streams of a connection that has a pod are held too while that pod has as much
// in flight as it may. They wait for it alone, as they share a connection to it,
// and in their order, as streams have to be opened in that.

// holds reports whether what the client says of a stream is kept here: all of it
// while there is no pod.
func (c *conn) holds(id uint32) bool {
	return c.pod == nil || id != 0 && c.heldByID(id) != nil
}

// admit takes leases of the pod of a lease for as many of the held streams as it
// may be sent now, in their order, and returns these and the rest.
func (c *conn) admit(lease hold.Lease) (streams, rest []*stream) {
	held, leases := c.held, c.takeLeases()
	c.held = nil
	for i, s := range held {
		if i < len(leases) {
			s.lease = leases[i]
			continue
		}
		another, ok := c.service.Queue().TakeAgain(c.port.Name, lease.Pod, lease.Number)
		if !ok {
			return held[:i:i], held[i:]
		}
		s.lease = another
	}
	return held, nil
}

// takeLeases removes the leases from the held streams and returns them.
func (c *conn) takeLeases() []hold.Lease {
	var leases []hold.Lease
	for _, s := range c.held {
		if s.lease.Pod != nil {
			leases = append(leases, s.lease)
			s.lease = hold.Lease{}
		}
	}
	return leases
}

// releaseLeases ends the leases that held streams have.
func (c *conn) releaseLeases() {
	for _, lease := range c.takeLeases() {
		lease.Release()
	}
}

// releaseUnconnected ends the leases that held streams have, after their pod did not
// accept a connection.
func (c *conn) releaseUnconnected() {
	for i, lease := range c.takeLeases() {
		if i == 0 {
			lease.ConnectionRefused()
			continue
		}
		lease.Release()
	}
}

// forwardResolved sends the pod the streams that it may be sent now. A stream whose wait
// ends meanwhile is not sent before an earlier one that was not resolved yet.
func (c *conn) forwardResolved() {
	earlier := false
	for _, s := range slices.Clone(c.held) {
		if !s.held.resolved.Load() {
			earlier = true
			continue
		}
		lease, _, err := s.held.waiter.Result()
		if err == nil && earlier {
			continue
		}
		s.held.inLine = false
		if err != nil {
			c.replyHeld(s, err)
			continue
		}
		c.forwardHeld(s, lease)
	}
}

// forwardHeld sends the pod what is kept of a stream.
func (c *conn) forwardHeld(s *stream, lease hold.Lease) {
	c.forgetHeld(s)
	if err := c.countOpen(s); err != nil {
		lease.Release()
		c.replyLocally(s, localreply.ForError(c.service, err))
		return
	}
	s.lease = lease
	s.record.Released = time.Now()
	s.record.Pod = lease.Pod.Name
	s.record.BytesIn = int64(s.held.received)
	if c.addForwarded(s) {
		// The pod has sent a GOAWAY.
		c.credit(s.held.received)
		c.endStream(s.id, rejectedByGoAway)
		return
	}
	c.replayStream(s)
	s.held = nil
}

// dropRejected forgets the held streams that a GOAWAY to the client has rejected.
func (c *conn) dropRejected() {
	last := c.goAwayLastStream()
	for _, s := range slices.Clone(c.held) {
		if s.id <= last {
			continue
		}
		c.leaveQueue(s)
		c.forgetHeld(s)
		c.credit(s.held.received)
		outcome, reason := rejectedByGoAway(s)
		c.finish(s, outcome, reason)
	}
}

// rejectHeld tells the client that the held streams are not served, so that it can
// send them again elsewhere: their pod has ended.
func (c *conn) rejectHeld() {
	if len(c.held) == 0 {
		return
	}
	c.sendGoAway(max(c.held[0].id, 2) - 2)
	c.dropRejected()
}
