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
	"sync"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localfault"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
)

// exchangeResult is what became of a request that was given a pod.
type exchangeResult int

const (
	// exchangeDone: it is answered, and the client may send another.
	exchangeDone exchangeResult = iota
	// exchangeLast: it is answered, or cannot be, and the connection must end.
	exchangeLast
	// notReceived: the pod did not accept a connection, or closed one before it
	// can have received anything.
	notReceived
)

// silence is how long a pod may say nothing before the client is watched. Most
// answers come sooner, and then nobody has to ask whether the client is still
// there.
const silence = time.Second

// exchange is one request on one connection to a pod.
type exchange struct {
	client *conn
	pod    *podConn
	// before is how much the pod had been sent on its connection before.
	before uint64
	// toHead is true when the request is a HEAD request.
	toHead bool
	// upgrades is true when the request asks for another protocol.
	upgrades bool
	// body carries a request body that was not wholly here. Nil without.
	body *requestBody
	// watch tells when the client goes away. Nil while nobody watches.
	watch *clientWatch
	// started is true when bytes of the final response went to the client.
	started bool
	// last is true when the connection of the client must end.
	last bool
	// response is the head of the pod's answer.
	response head
	// out assembles a head that is not forwarded as it was received.
	out []byte
}

// exchanges are used again: what is held has none, and what is forwarded needs
// one for each request.
var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// maxKeptOut is how much of out is kept for the next request.
const maxKeptOut = 4 << 10

func newExchange(c *conn, pod *podConn) *exchange {
	e := exchanges.Get().(*exchange)
	e.client, e.pod, e.before = c, pod, pod.written
	e.toHead, e.upgrades = c.record.Method == http.MethodHead, c.request.upgrade
	return e
}

// recycle lets the exchange be used again.
func (e *exchange) recycle() {
	kept := exchange{response: head{cuts: e.response.cuts[:0]}}
	if cap(e.out) <= maxKeptOut {
		kept.out = e.out[:0]
	}
	*e = kept
	exchanges.Put(e)
}

// exchange sends the current request to the pod of a lease and its answer to
// the client.
func (c *conn) exchange(ctx context.Context, lease hold.Lease) exchangeResult {
	request := &c.request
	body := c.wholeBody()
	var pod *podConn
	// What cannot be sent again gets a connection of its own: it was confirmed
	// just now, where a used one may be closed by the pod at any moment.
	if body >= 0 {
		pod = c.server.options.Pool.get(lease)
	}
	if pod == nil {
		var err error
		if pod, err = dialPod(ctx, lease); err != nil {
			if localfault.Of(err) == nil {
				return notReceived
			}
			c.refuseLast(localreply.ForError(c.service, err))
			return exchangeLast
		}
	}
	e := newExchange(c, pod)
	defer e.recycle()
	// An error is not looked at: the answer, or how its absence ends, tells more.
	if body >= 0 {
		_, _ = pod.Write(e.requestMessage(len(request.raw) + body))
	} else {
		_, _ = pod.Write(e.requestMessage(len(request.raw)))
		e.startBody()
	}
	err := e.receive()
	if body >= 0 && e.retryable(err) && pod.neverReceived(e.before, err) {
		e.stop()
		pod.close()
		return notReceived
	}
	if body >= 0 && !e.last {
		c.in.consume(len(request.raw) + body)
	}
	return e.end(err)
}

// wholeBody returns the length of the request's body when all of it is here,
// and -1 when it is not.
func (c *conn) wholeBody() int {
	available := c.in.unread()[len(c.request.raw):]
	switch c.request.body() {
	case noBody:
		return 0
	case sizedBody:
		if c.request.contentLength <= int64(len(available)) {
			return int(c.request.contentLength)
		}
	case chunkedBody:
		var scanner chunkScanner
		// A malformed body is found again, and answered, where it is sent on.
		if n, done, err := scanner.scan(available); err == nil && done {
			return n
		}
	}
	return -1
}

// requestMessage returns what is sent of the first n unread bytes, which begin
// with the head: all but the lines that only concern the client's connection.
func (e *exchange) requestMessage(n int) []byte {
	data, cuts := e.client.in.unread()[:n], e.client.request.cuts
	if len(cuts) == 0 {
		return data
	}
	e.out = appendWithout(e.out[:0], data, cuts)
	return e.out
}

// appendWithout appends data without the parts in cuts, which are in order.
func appendWithout(message, data []byte, cuts []span) []byte {
	start := 0
	for _, cut := range cuts {
		message = append(message, data[start:cut.start]...)
		start = cut.end
	}
	return append(message, data[start:]...)
}

// end closes or keeps the connection to the pod, and answers the client when
// the pod did not.
func (e *exchange) end(err error) exchangeResult {
	c := e.client
	gone := e.stop()
	c.record.BytesIn += int64(e.pod.written - e.before)
	reusable := err == nil && !e.last && e.bodySent() && c.request.minor == 1 &&
		e.response.persists() && len(e.pod.in.unread()) == 0
	if reusable {
		c.server.options.Pool.put(e.pod, time.Now())
	} else {
		e.pod.close()
	}
	c.record.Outcome = accesslog.Forwarded
	var bad *malformed
	switch {
	case err == nil && e.bodySent() && !e.last:
		return exchangeDone
	case err == nil:
		c.lingers = true
	case gone || errors.Is(err, hold.ErrClientGone):
		c.record.Outcome = accesslog.ClientGone
	case e.started:
		// The client has part of an answer: only the end of the connection can
		// tell it that the rest is missing.
		c.record.Outcome = accesslog.Failed
		c.record.Reason = err.Error()
		c.abort()
	case e.body != nil && errors.As(e.body.malformed(), &bad):
		c.refuseLast(localreply.New(bad.status, localreply.ReasonBadRequest, bad.detail))
	case errors.As(err, &bad):
		c.record.Reason = err.Error()
		c.refuseLast(localreply.New(http.StatusBadGateway, localreply.ReasonBadResponse,
			fmt.Sprintf("the pod's answer is malformed: %s", bad.detail)))
	default:
		c.record.Reason = err.Error()
		c.refuseLast(localreply.New(http.StatusBadGateway, localreply.ReasonPodLost,
			"the connection to the pod broke before it answered; the request may have been received, so it was not sent again"))
	}
	return exchangeLast
}

// stop ends what runs beside the exchange, and reports whether the client was
// found gone.
func (e *exchange) stop() (gone bool) {
	if e.body != nil {
		gone = e.body.stop()
	}
	if e.watch != nil {
		gone = e.watch.stop() || gone
	}
	return gone
}

func (e *exchange) bodySent() bool { return e.body == nil || e.body.sent }

// retryable reports whether an exchange failed before the pod said anything.
func (e *exchange) retryable(err error) bool {
	return err != nil && !e.started && len(e.pod.in.unread()) == 0 && !errors.Is(err, hold.ErrClientGone)
}

// fill reads more of what the pod sends, with a function that reads once. While
// the pod is silent it has the client watched, so that a client that goes away
// does not keep a pod busy.
func (e *exchange) fill(read func() error) error {
	for {
		if err := e.armSilence(time.Now()); err != nil {
			return err
		}
		err := read()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if err := e.silent(); err != nil {
			return err
		}
	}
}

// armSilence sets the deadline that makes a read notice silence, now and then.
func (e *exchange) armSilence(now time.Time) error {
	if e.watch != nil || e.pod.readDeadline.Sub(now) > silence {
		return nil
	}
	e.pod.readDeadline = now.Add(2 * silence)
	return e.pod.tcp.SetReadDeadline(e.pod.readDeadline)
}

// silent is called when a read from the pod was interrupted: because it said
// nothing for a while, or because the client is gone.
func (e *exchange) silent() error {
	if e.body != nil && e.body.clientGone() || e.watch != nil && e.watch.clientGone() {
		return hold.ErrClientGone
	}
	if e.body != nil && e.body.malformed() != nil {
		return e.body.malformed()
	}
	if e.body != nil && !e.body.ended() {
		// Whoever reads the body sees the client go. The deadline has passed,
		// or the body has just set it: look again in a while.
		e.pod.readDeadline = time.Time{}
		return nil
	}
	if e.watch == nil {
		e.pod.readDeadline = time.Time{}
		if err := e.pod.tcp.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
		e.watch = watchClient(e.client, e.pod)
	}
	return nil
}
