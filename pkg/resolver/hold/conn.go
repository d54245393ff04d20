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

// past is a time that every deadline has passed.
var past = time.Unix(1, 0)

// Client is the connection of a client, as socket.Conn describes it.
type Client interface {
	SetReadDeadline(deadline time.Time) error
	WaitClosed() error
	WaitReset() error
	WaitReadable() error
	Unread() int
}

// ConnWaiter waits in the name of a client's connection, without another
// goroutine and without reading a byte: the caller's goroutine sleeps on the
// connection, so that a client that goes away is noticed at once and what it
// sends meanwhile stays in the kernel, and the queue wakes it by moving the
// read deadline of the connection into the past.
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
	// HalfCloses is asked when the client finished writing, and returns whether
	// it may still want an answer. Nil: it never does.
	HalfCloses func() bool
	// UntilSpoken makes the wait end with ErrSpoke as soon as there is something
	// to read.
	UntilSpoken bool
	// Silent makes the wait one that wakes nothing, for a connection on which
	// nothing was said. The deadline does not count, and the lease is a silent one.
	Silent bool
	// Patience is when a silent wait becomes one that wakes, with a deadline that
	// Aloud returns. The zero time: never.
	Patience time.Time
	// Aloud is called when that happens.
	Aloud func() (deadline time.Time)

	// Owned by the methods.
	queue  *Queue
	waiter Waiter
}

// Wait waits in line in q for a pod; again puts it at the front. Besides the
// errors of Join, it fails with ErrClientGone, ErrTimeout and ErrSpoke. When it
// returns a lease, or ErrSpoke, the connection has no read deadline.
//
// It is Join, Sleep and Finish. A caller that calls these by itself can sleep
// in a goroutine whose stack is small because nothing else has run on it.
func (c *ConnWaiter) Wait(q *Queue, again bool) (Lease, ColdStart, error) {
	if err := c.Join(q, again); err != nil {
		return Lease{}, ColdStart{}, err
	}
	return c.Finish(c.Sleep())
}

// Join puts the waiter in line in q; again puts it at the front. When it
// succeeds, Sleep and Finish must follow.
func (c *ConnWaiter) Join(q *Queue, again bool) error {
	deadline := c.Deadline
	if c.Silent {
		deadline = c.Patience
	}
	if err := c.Conn.SetReadDeadline(deadline); err != nil {
		return ErrClientGone
	}
	c.queue = q
	c.waiter = Waiter{
		Port:   c.Port,
		Bytes:  c.Bytes,
		Silent: c.Silent,
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

// Sleep blocks until the client is gone, or the deadline passes, or the queue
// is done with the waiter. What it returns is for Finish.
func (c *ConnWaiter) Sleep() error {
	if c.Silent {
		err := c.Conn.WaitReadable()
		if !errors.Is(err, os.ErrDeadlineExceeded) || !c.queue.WaitAloud(&c.waiter, c.aloud) {
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

// aloud gives the wait its deadline. It is called before the queue can move that
// into the past.
func (c *ConnWaiter) aloud() {
	// It fails only when the connection is closed, which ends the sleep too.
	_ = c.Conn.SetReadDeadline(c.Aloud())
}

// Finish takes the waiter out of the line and returns what came of the wait, as
// Wait does; slept is what Sleep returned.
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

// spoke reports whether the wait ended because the client said something.
func (c *ConnWaiter) spoke() bool { return c.UntilSpoken && c.Conn.Unread() > 0 }
