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

package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/clientaddress"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localfault"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/sniff"
)

// connect waits for a pod for the connection of a client that has sent something, and
// connects to it; with again at the front of the line.
func (c *conn) connect(ctx context.Context, again bool) error {
	queue := c.to.Service.Queue()
	lease, ok := queue.TryTake(c.to.Port.Name)
	for {
		if !ok {
			if c.passive && !queue.Serving(c.to.Port.Name) {
				return hold.ErrAsleep
			}
			var err error
			if lease, err = c.wait(again); err != nil {
				return err
			}
		}
		connected, err := c.dial(ctx, lease, false)
		if connected || err != nil {
			return err
		}
		ok, again = false, true
	}
}

// dial connects to the pod of a lease and reports whether it did. Another pod may be
// tried when it did not, and not after an error.
func (c *conn) dial(ctx context.Context, lease hold.Lease, silent bool) (bool, error) {
	c.lease, c.leased, c.silent = lease, true, silent
	if err := c.charge.Claim(forwardedBytes); err != nil {
		c.release()
		return false, err
	}
	pod, err := lease.Dial(ctx)
	if err == nil {
		err = c.sendProxyHeader(pod)
	}
	switch {
	case err == nil:
		c.pod = pod
		c.record.Released = time.Now()
		c.record.Pod = lease.Pod.Name
		return true, nil
	case localfault.Of(err) != nil, ctx.Err() != nil:
		c.release()
		return false, err
	}
	c.leased = false
	lease.ConnectionRefused()
	return false, nil
}

// sendProxyHeader sends the PROXY protocol header to a pod that expects it. It comes
// before all other bytes: a server that speaks first waits for it as well. On failure
// the connection to the pod is closed.
func (c *conn) sendProxyHeader(pod *net.TCPConn) error {
	if !c.to.Service.Config().ProxyProtocol {
		return nil
	}
	header := clientaddress.AppendProxyHeader(nil, endOf(c.client.RemoteAddr()), endOf(c.client.LocalAddr()))
	if _, err := pod.Write(header); err != nil {
		pod.Close()
		return fmt.Errorf("sending the PROXY protocol header: %w", err)
	}
	return nil
}

// endOf returns the address and port of one end of a TCP connection.
func endOf(address net.Addr) netip.AddrPort {
	if tcp, ok := address.(*net.TCPAddr); ok {
		return tcp.AddrPort()
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
}

// wait waits for a pod after the client has sent something.
func (c *conn) wait(again bool) (hold.Lease, error) {
	c.record.Held = true
	waiter := hold.ConnWaiter{
		Conn:     c.waiting,
		Port:     c.to.Port.Name,
		Bytes:    heldOverhead + int64(cap(c.initial)),
		Deadline: c.record.Received.Add(c.to.Service.Config().HoldTimeout),
		// A client that has sent something and closed its writing side waits for a
		// response.
		HalfCloses: func() bool { return true },
		Passive:    c.passive,
	}
	lease, cold, err := waiter.Wait(c.to.Service.Queue(), again)
	c.record.WakeSucceeded, c.record.EndpointReady = cold.WakeSucceeded, cold.EndpointReady
	return lease, err
}

// serveSilent serves a silent connection. It returns true when the first bytes of the
// client are of another protocol. When it returns neither true nor an error, either the
// client has spoken and initial has its bytes, with or without a pod, or the connection
// has ended and the record has an outcome.
func (c *conn) serveSilent(ctx context.Context) (other bool, err error) {
	for again := false; ; again = true {
		spoke, err := c.connectSilent(ctx, again)
		if err != nil {
			return false, c.failed(err)
		}
		if spoke {
			return c.spoken()
		}
		if c.pod != nil {
			return c.awaitFirst(ctx)
		}
	}
}

// connectSilent waits for a pod for a silent connection and connects to it. It reports
// whether the client spoke first. When it did not, and the connection was refused, there
// is no pod.
func (c *conn) connectSilent(ctx context.Context, again bool) (spoke bool, err error) {
	lease, ok := c.to.Service.Queue().TryTakeSilent(c.to.Port.Name)
	silent := true
	if !ok {
		lease, err = c.waitSilent(again)
		if errors.Is(err, hold.ErrSpoke) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		// A wait that woke the target ends with a regular lease.
		silent = !c.record.Held
	}
	_, err = c.dial(ctx, lease, silent)
	if silent && localfault.Of(err) != nil {
		// The client has not requested anything yet, so that another attempt can be made.
		return c.awaitSpoken()
	}
	return false, err
}

// faultPause is the time between two attempts to connect to a pod for a silent
// connection after a fault of this machine.
const faultPause = time.Second

// awaitSpoken waits for the client to speak for faultPause, and reports whether it did.
func (c *conn) awaitSpoken() (spoke bool, err error) {
	if err := c.client.SetReadDeadline(time.Now().Add(faultPause)); err != nil {
		return false, hold.ErrClientGone
	}
	waitErr := c.waiting.WaitReadable()
	if err := c.client.SetReadDeadline(time.Time{}); err != nil || waitErr != nil && !errors.Is(waitErr, os.ErrDeadlineExceeded) {
		return false, hold.ErrClientGone
	}
	return waitErr == nil, nil
}

// waitSilent waits until the client speaks or there is a pod. A client that may wait
// for the server's greeting wakes the target after the greeting timeout.
func (c *conn) waitSilent(again bool) (hold.Lease, error) {
	waiter := hold.ConnWaiter{
		Conn:        c.waiting,
		Port:        c.to.Port.Name,
		Bytes:       heldOverhead,
		UntilSpoken: true,
		// A client that woke the target and closed its writing side may still wait for
		// the server.
		HalfCloses: func() bool { return true },
		Silent:     !c.record.Held,
		Deadline:   c.record.Received.Add(c.to.Service.Config().HoldTimeout),
		Promoted: func() time.Time {
			c.record.Held = true
			c.count()
			return time.Now().Add(c.to.Service.Config().HoldTimeout)
		},
	}
	switch {
	case c.passive:
		// The connection never wakes the target.
	case c.to.Greets == sniff.ServerGreets:
		waiter.WakeAt = c.began
	case c.to.Greets == sniff.EitherGreets:
		waiter.WakeAt = c.began.Add(c.server.options.Greeting)
	}
	lease, cold, err := waiter.Wait(c.to.Service.Queue(), again)
	c.record.WakeSucceeded, c.record.EndpointReady = cold.WakeSucceeded, cold.EndpointReady
	return lease, err
}

// spoken reads the bytes that the client has sent before there was a pod, and reports
// whether they are of another protocol.
func (c *conn) spoken() (other bool, err error) {
	if c.initial, _ = readOnce(c.client); len(c.initial) == 0 {
		return false, c.failed(hold.ErrClientGone)
	}
	return c.isOther(), nil
}

func (c *conn) isOther() bool { return c.to.Other != nil && c.to.Other(c.initial) }

// awaitFirst waits until the client or the pod sends something, and then serves the
// connection to its end, unless the bytes of the client are of another protocol or the
// pod has reached its concurrency limit.
func (c *conn) awaitFirst(ctx context.Context) (other bool, err error) {
	var first firstBytes
	for {
		first, err = awaitFirstBytes(ctx, c.server.options.Tasks, c.client, c.pod, c.silenceTimeout())
		if !errors.Is(err, errSilence) {
			break
		}
		c.markSilent()
	}
	if err != nil {
		// The connection to the pod is reset as well.
		_ = c.pod.SetLinger(0)
		if errors.Is(err, hold.ErrClientGone) {
			return false, c.failed(err)
		}
		c.record.Outcome, c.record.Reason = accesslog.Failed, err.Error()
		return false, err
	}
	c.initial = first.client
	switch {
	case len(first.pod) > 0:
		c.markActive(true)
	case len(first.client) == 0:
		return false, c.forwardRest(ctx, first.clientEnded)
	case c.isOther():
		return true, nil
	case !c.markActive(false):
		// The pod has reached its concurrency limit; another one may not have.
		c.release()
		return false, nil
	}
	return false, c.forward(ctx, first.pod)
}

// silenceTimeout returns how long a connection that woke the target counts as use while
// neither side sends anything. 0: it does not count as use.
func (c *conn) silenceTimeout() time.Duration {
	if c.silent {
		return 0
	}
	return max(c.server.options.Greeting, minGreeting)
}

// minGreeting is the least time that a pod has for its greeting before the connection
// no longer counts as use.
const minGreeting = time.Second

// markActive makes the connection count as in flight and as use of the target. It returns
// false when the pod has reached its concurrency limit, which anyway ignores.
func (c *conn) markActive(anyway bool) bool {
	if c.silent {
		var ok bool
		if c.lease, ok = c.lease.MarkActive(anyway); !ok {
			return false
		}
		c.silent = false
	}
	c.count()
	return true
}

// markSilent makes the connection a silent one again, which is neither in flight nor use
// of the target.
func (c *conn) markSilent() {
	c.lease, c.silent = c.lease.MarkSilent(), true
	c.uncount()
}
