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
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

const (
	// uncountedRest is how much of frames that are not complete, or wait, is counted
	// with every connection already.
	uncountedRest = 1 << 10
	// roomTimeout is how long a peer may take to send the rest of a frame, or to take
	// what it was sent, a buffer at most, while there is no room for that.
	roomTimeout = 5 * time.Second
	// A client whose pod takes nothing is checked on after firstCheck, and then after
	// twice as long each time, up to longestCheck.
	firstCheck, longestCheck = 250 * time.Millisecond, 4 * time.Second
)

// errNoRoom ends a connection that keeps more than there is room for.
var errNoRoom = connError{http2.ErrCodeEnhanceYourCalm, "the resolver has no room for what waits on this connection"}

// restCharge counts what is kept of frames that are not complete. It has one owner.
type restCharge struct {
	charge memory.Charge
	// until is when what is kept has to be complete, as there is no room for it.
	until time.Time
}

// count sets the charge to bytes. It returns until when they have to be
// complete, the zero time where there is room for them, and errNoRoom when that has
// passed.
func (r *restCharge) count(bytes int) (until time.Time, err error) {
	if bytes <= uncountedRest {
		bytes = 0
	}
	// Steps of a frame: a body that is on its way is counted once.
	const step = maxFrame
	steps := (bytes + step - 1) / step
	switch {
	case r.charge.Claim(int64(steps*step)) == nil:
		r.until = time.Time{}
	case r.until.IsZero():
		r.until = time.Now().Add(roomTimeout)
	case !time.Now().Before(r.until):
		return r.until, errNoRoom
	}
	return r.until, nil
}

// lacksRoom reports whether there is no room for what is kept.
func (r *restCharge) lacksRoom() bool { return !r.until.IsZero() }

// moved records that what was kept is complete.
func (r *restCharge) moved() { r.until = time.Time{} }

// flush sends the pod what was made for it.
func (c *conn) flush() error {
	defer c.toPod.reset()
	all, err := c.pod.out.start(c.toPod.frames())
	if !all && err == nil {
		err = c.awaitRoom()
	}
	if errors.Is(err, errClientGone) || errors.As(err, new(connError)) {
		return err
	}
	// That it failed is found out where the pod is read from; but a reset is reported
	// once only.
	if errors.Is(err, syscall.ECONNRESET) {
		c.pod.reset = true
	}
	return nil
}

// awaitRoom waits until the pod has taken what is left of flush, and counts that.
// It ends early with the client, and when there is no room for what waits.
func (c *conn) awaitRoom() error {
	p, interval, probed := c.pod, firstCheck, false
	// It fails only when the connection is closed, as writing does then.
	defer func() { _ = p.conn.SetWriteDeadline(time.Time{}) }()
	defer p.waiting.Release()
	var until time.Time
	for {
		switch {
		case p.waiting.Claim(c.toPod.kept()) == nil:
			until = time.Time{}
		case until.IsZero():
			until = time.Now().Add(roomTimeout)
		case !time.Now().Before(until):
			reset(p.conn)
			return errNoRoom
		}
		next := time.Now().Add(interval)
		if !until.IsZero() && until.Before(next) {
			next = until
		}
		_ = p.conn.SetWriteDeadline(next)
		err := p.out.finish()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		interval = min(2*interval, longestCheck)
		switch {
		case c.in.raw == nil:
		case socket.Broken(c.in.raw):
			return errClientGone
		case !probed && socket.Finished(c.in.raw):
			// It may only have finished writing.
			interval, probed = firstCheck, true
			c.out.probe(appendPing(nil, 0, make([]byte, 8)))
		}
		c.expire(time.Now())
		if c.shouldShutDown() {
			c.beginShutdown()
		}
		if err := c.sendReply(); errors.As(err, new(connError)) {
			return err
		} else if err != nil {
			return errClientGone
		}
	}
}
