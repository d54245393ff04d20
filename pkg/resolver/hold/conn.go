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

package hold

import (
	"errors"
	"os"
	"time"
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// Client is the connection of a client, as socket.Conn describes it.
type Client interface {
	SetReadDeadline(deadline time.Time) error
	WaitClosed() error
	WaitReset() error
	WaitReadable() error
	Unread() int
}

// ConnWaiter waits for a pod on behalf of a client's connection, without another
// goroutine and without reading a byte. The caller's goroutine blocks on the
// connection: it notices at once that the client has closed it, and what the client
// sends stays in the kernel. The queue resolves the wait by moving the read
// deadline of the connection into the past.
type ConnWaiter struct {
	// Conn is the client's connection. Nothing else may read from it or set its
	// read deadline during the wait.
	Conn Client
	// Port is the name of the Service port.
	Port string
	// Bytes is how many bytes of memory the wait keeps.
	Bytes int64
	// Deadline is when the wait ends without a pod.
	Deadline time.Time
	// HalfCloses reports whether a client that has finished writing may still wait
	// for a response. Nil: it never does.
	HalfCloses func() bool
	// UntilSpoken makes the wait end with ErrSpoke as soon as there is something
	// to read.
	UntilSpoken bool
	// Silent makes the wait one that does not wake the target, for a connection on
	// which no byte was sent. Deadline is ignored, and the lease is a silent one.
	Silent bool
	// Passive is that of Waiter.
	Passive bool
	// WakeAt is when a silent wait is promoted to one that wakes the target. The zero
	// time: never.
	WakeAt time.Time
	// Promoted is called at that time and returns the deadline of the wait.
	Promoted func() (deadline time.Time)

	// Owned by the methods.
	queue  *Queue
	waiter Waiter
}

// Wait waits in q for a pod; with again at the front of the line. Besides the
// errors of Join, it fails with ErrClientGone, ErrTimeout and ErrSpoke. When it
// returns a lease, or ErrSpoke, the connection has no read deadline.
//
// Wait is Join, Sleep and Finish. A caller that calls these itself can sleep in a
// goroutine with a small stack, on which no other function has run.
func (c *ConnWaiter) Wait(q *Queue, again bool) (Lease, ColdStart, error) {
	if err := c.Join(q, again); err != nil {
		return Lease{}, ColdStart{}, err
	}
	slept := false
	defer func() {
		if !slept {
			c.Abandon()
		}
	}()
	err := c.Sleep()
	slept = true
	return c.Finish(err)
}

// Join puts the waiter in line in q; with again at the front. When it succeeds,
// Sleep and Finish must be called.
func (c *ConnWaiter) Join(q *Queue, again bool) error {
	deadline := c.Deadline
	if c.Silent {
		deadline = c.WakeAt
	}
	if err := c.Conn.SetReadDeadline(deadline); err != nil {
		return ErrClientGone
	}
	c.queue = q
	c.waiter = Waiter{
		Port:    c.Port,
		Bytes:   c.Bytes,
		Silent:  c.Silent,
		Passive: c.Passive,
		Resolve: func() {
			// It fails only when the connection is closed, which ends the sleep too.
			_ = c.Conn.SetReadDeadline(past)
		},
	}
	if again {
		return q.Rejoin(&c.waiter)
	}
	return q.Join(&c.waiter)
}

// Sleep blocks until the client closes the connection, the deadline passes or the
// queue resolves the wait. Its result must be passed to Finish.
func (c *ConnWaiter) Sleep() error {
	if c.Silent {
		err := c.Conn.WaitReadable()
		if !errors.Is(err, os.ErrDeadlineExceeded) || !c.queue.Promote(&c.waiter, c.extendDeadline) {
			return err
		}
	}
	wait := c.Conn.WaitClosed
	if c.UntilSpoken {
		wait = c.Conn.WaitReadable
	}
	if err := wait(); err != nil || c.spoke() || c.HalfCloses == nil || !c.HalfCloses() {
		return err
	}
	return c.Conn.WaitReset()
}

// extendDeadline sets the deadline of a wait that is promoted. It is called before the
// queue can move that into the past.
func (c *ConnWaiter) extendDeadline() {
	// It fails only when the connection is closed, which ends the sleep too.
	_ = c.Conn.SetReadDeadline(c.Promoted())
}

// Finish removes the waiter from the line and returns the result of the wait, as
// Wait does; slept is the result of Sleep.
func (c *ConnWaiter) Finish(slept error) (Lease, ColdStart, error) {
	if c.queue.Leave(&c.waiter) {
		if errors.Is(slept, os.ErrDeadlineExceeded) {
			return Lease{}, ColdStart{}, ErrTimeout
		}
		if slept == nil && c.spoke() && c.Conn.SetReadDeadline(time.Time{}) == nil {
			return Lease{}, ColdStart{}, ErrSpoke
		}
		return Lease{}, ColdStart{}, ErrClientGone
	}
	lease, cold, err := c.waiter.Result()
	if err != nil {
		return Lease{}, cold, err
	}
	alive := errors.Is(slept, os.ErrDeadlineExceeded) || slept == nil && c.spoke()
	if err := c.Conn.SetReadDeadline(time.Time{}); err != nil || !alive {
		lease.Release()
		return Lease{}, cold, ErrClientGone
	}
	return lease, cold, nil
}

// Abandon removes the waiter from the line and ends the lease that it may have, after a
// panic during the wait. It is called instead of Finish.
func (c *ConnWaiter) Abandon() {
	if c.queue.Leave(&c.waiter) {
		return
	}
	if lease, _, err := c.waiter.Result(); err == nil {
		lease.Release()
	}
}

// spoke reports whether the wait ended because the client sent something.
func (c *ConnWaiter) spoke() bool { return c.UntilSpoken && c.Conn.Unread() > 0 }
