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
	"os"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// forwardRest forwards what the other side sends after one side has half-closed without
// having sent anything. It half-closes the connection to the other side. A client without
// input, such as nc, half-closes at once and waits for the server.
func (c *conn) forwardRest(ctx context.Context, clientEnded bool) error {
	tasks := c.server.options.Tasks
	return c.carry(ctx, nil, func(pod *socket.TCP) Joined {
		if !clientEnded {
			c.limitSilence(c.waiting)
			return Join(tasks, c.waiting, pod, func() error { return c.passFirst(pod, c.waiting, &c.record.BytesIn) })
		}
		c.limitSilence(pod)
		joined := Join(tasks, pod, c.waiting, func() error { return c.passFirst(c.waiting, pod, &c.record.BytesOut) })
		return Joined{AToB: joined.BToA, BToA: joined.AToB, ABroke: joined.BBroke, BBroke: joined.ABroke}
	})
}

// limitSilence limits how long a side may send nothing on a connection that woke the
// target.
func (c *conn) limitSilence(from socket.Conn) {
	if timeout := c.silenceTimeout(); timeout > 0 {
		// It fails only when the connection is closed, which also ends the wait.
		_ = from.SetReadDeadline(time.Now().Add(timeout))
	}
}

// passFirst waits for the first bytes of a side and sends them to the other side. From
// then on the connection counts as use. It fails when either side breaks meanwhile. Join
// handles the end of a side.
func (c *conn) passFirst(to, from socket.Conn, passed *int64) error {
	for {
		err := from.WaitReadable()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		// The deadline is that of limitSilence, or the other direction has set one to end
		// this one.
		if c.silent || to.Broken() {
			return err
		}
		c.markSilent()
		if err := from.SetReadDeadline(time.Time{}); err != nil || to.Broken() {
			return errSilence
		}
	}
	if err := from.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	first, err := readOnce(from)
	if err != nil {
		return &socket.ReadError{Err: err}
	}
	if len(first) == 0 {
		return nil
	}
	c.markActive(true)
	written, err := to.Write(first)
	*passed += int64(written)
	if err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	return nil
}
