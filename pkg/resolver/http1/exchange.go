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
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
)

// exchangeResult is what became of a request that was given a pod.
type exchangeResult int

const (
	// exchangeDone: it got its response, and the client may send another.
	exchangeDone exchangeResult = iota
	// exchangeLast: it got its response, or cannot get one, and the connection must end.
	exchangeLast
	// notReceived: the pod did not accept a connection, or closed one before it
	// can have received anything.
	notReceived
)

// silence is how long a pod may say nothing before the client is watched. Most
// responses come sooner, and then it does not matter whether the client is still
// there.
const silence = time.Second

// exchange is one request on one connection to a pod.
type exchange struct {
	client *conn
	pod    *podConn
	// before is how much the pod had been sent on its connection before.
	before uint64
	// toHEAD is true when the request is a HEAD request.
	toHEAD bool
	// upgrades is true when the request is for another protocol.
	upgrades bool
	// body carries a request body that was not wholly here. Nil without.
	body *requestBody
	// whole is the length of a request that was, body included.
	whole int
	// watch reports that the client has closed its connection. Nil while there is none.
	watch *clientWatch
	// started is true when bytes of the final response went to the client.
	started bool
	// last is true when the connection of the client must end.
	last bool
	// early is true when the pod responded before it was sent the whole request.
	early bool
	// response is the header of the pod's response.
	response messageHeader
	// out assembles a header that is not forwarded as it was received.
	out []byte
}

// exchanges are used again: what is held has none, and what is forwarded needs
// one for each request.
var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// maxKeptOut is how much of out is kept for the next request.
const maxKeptOut = 4 << 10

func newExchange(c *conn) *exchange {
	e := exchanges.Get().(*exchange)
	e.client, e.pod, e.before = c, c.pod, c.pod.written
	e.toHEAD, e.upgrades = c.record.Method == http.MethodHead, c.request.upgrade
	return e
}

// recycle lets the exchange be used again.
func (e *exchange) recycle() {
	e.shrinkOut()
	*e = exchange{response: messageHeader{cuts: e.response.cuts[:0]}, out: e.out[:0]}
	exchanges.Put(e)
}

// shrinkOut gives up what was assembled, once that was sent, when it is large: what
// follows may take long.
func (e *exchange) shrinkOut() {
	if cap(e.out) > maxKeptOut {
		e.out = nil
	}
}

// exchange sends the current request to the pod of a lease and its response to
// the client.
func (c *conn) exchange(ctx context.Context, lease hold.Lease) exchangeResult {
	if c.pod != nil && c.pod.takes(lease) {
		if err := c.pod.charge.Claim(podConnBytes); err != nil {
			c.rejectLast(localreply.ForError(c.service, err))
			return exchangeLast
		}
		c.pod.lease = lease
		c.pod.in.narrow()
		if result := c.attempt(); result != notReceived {
			return result
		}
		// The pod closed the connection just as it was used again. That says
		// nothing about whether it accepts another.
	}
	pod, err := c.dial(ctx, lease)
	c.setPod(pod)
	switch {
	case err == nil:
		return c.attempt()
	case localfault.Of(err) == nil && !memory.IsLimit(err):
		return notReceived
	}
	c.rejectLast(localreply.ForError(c.service, err))
	return exchangeLast
}

// dial connects to the pod of a lease.
func (c *conn) dial(ctx context.Context, lease hold.Lease) (*podConn, error) {
	pod := &podConn{lease: lease, charge: c.account.Charge()}
	pod.in.charge = c.account.Charge()
	if err := pod.charge.Claim(podConnBytes); err != nil {
		return nil, err
	}
	var err error
	if pod.tcp, err = c.server.options.Dial(ctx, lease); err != nil {
		pod.charge.Release()
		return nil, err
	}
	return pod, nil
}

// attempt sends the current request on the connection to the pod.
func (c *conn) attempt() exchangeResult {
	e := newExchange(c)
	over := false
	defer func() {
		if !over {
			// What runs beside it must not outlive it.
			e.interrupt()
		}
		e.recycle()
	}()
	request := &c.request
	// An error is not inspected: the response, or how its absence ends, tells more.
	if body := c.wholeBody(); body >= 0 {
		e.whole = len(request.raw) + body
		_, _ = e.pod.Write(e.requestMessage(e.whole))
	} else {
		_, _ = e.pod.Write(e.requestMessage(len(request.raw)))
		e.startBody()
	}
	e.shrinkOut()
	var result exchangeResult
	if err := e.receive(); err != nil {
		result = e.fail(err)
	} else {
		result = e.finish()
	}
	over = true
	return result
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
		// A malformed body is found again, and rejected, where it is sent on.
		if n, done, err := scanner.scan(available); err == nil && done {
			return n
		}
	}
	return -1
}

// requestMessage returns what is sent of the first n unread bytes, which begin
// with the header.
func (e *exchange) requestMessage(n int) []byte {
	c := e.client
	data := c.in.unread()[:n]
	edit := c.edit()
	if edit == (headerEdit{}) {
		return data
	}
	header := len(c.request.raw)
	var upgrades bool
	if e.out, upgrades = edit.appendHeader(e.out[:0], data[:header]); edit.withoutH2C {
		e.upgrades = upgrades
	}
	e.out = append(e.out, data[header:]...)
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

// finish is called when the response is complete.
func (e *exchange) finish() exchangeResult {
	c := e.client
	sent := true
	if e.body != nil {
		e.body.awaitEnd(!e.last && e.podPersists())
		sent = e.body.sent
		e.early = e.early || e.body.crossed
	}
	e.endWatch()
	c.record.BytesIn += int64(e.pod.written - e.before)
	c.record.Outcome = accesslog.Forwarded
	// A pod that responded before it had the whole request, or that may not know
	// that this one has a body, may take the rest of it for another request.
	switch {
	case !sent || e.early || c.request.oddBody || len(e.pod.in.unread()) > 0:
		c.setPod(nil)
	case !e.podPersists():
		e.pod.ends = true
	}
	if e.last || !sent {
		c.lingers = true
		return exchangeLast
	}
	c.in.consume(e.consumed())
	return exchangeDone
}

// podPersists reports whether the pod keeps its connection open after this
// exchange, according to the two headers.
func (e *exchange) podPersists() bool {
	request, response := &e.client.request, &e.response
	return !request.close && response.persists() && (request.minor == 1 || response.keepAlive)
}

// consumed returns how many of the unread bytes of the client are of the request.
func (e *exchange) consumed() int {
	if e.body == nil {
		return e.whole
	}
	return e.body.kept
}

// fail is called when there is no response, or not all of it.
func (e *exchange) fail(err error) exchangeResult {
	c := e.client
	clientClosed := e.interrupt() || errors.Is(err, hold.ErrClientGone)
	if !clientClosed && e.retryable() && e.pod.neverReceived(e.before, err) {
		c.setPod(nil)
		c.reparse()
		return notReceived
	}
	c.record.BytesIn += int64(e.pod.written - e.before)
	c.setPod(nil)
	c.record.Outcome = accesslog.Forwarded
	var bad *malformed
	switch {
	case clientClosed:
		c.record.Outcome = accesslog.ClientGone
	case e.started:
		// The client has part of a response: only the end of the connection can
		// tell it that the rest is missing.
		c.record.Outcome = accesslog.Failed
		c.record.Reason = err.Error()
		c.abort()
	case errors.Is(e.body.err(), errBodyCut):
		// The pod made nothing of what there was of the request.
		c.rejectLast(localreply.New(http.StatusBadRequest, localreply.ReasonBadRequest, errBodyCut.Error()))
		c.record.Outcome = accesslog.ClientGone
	case errors.As(e.body.err(), &bad):
		c.rejectLast(bad.reply())
	case memory.IsLimit(err):
		c.rejectLast(localreply.ForError(c.service, err))
	case errors.As(err, &bad):
		c.record.Reason = err.Error()
		c.rejectLast(localreply.New(http.StatusBadGateway, localreply.ReasonBadResponse,
			fmt.Sprintf("the pod's response is malformed: %s", bad.detail)))
	default:
		c.record.Reason = err.Error()
		c.rejectLast(localreply.New(http.StatusBadGateway, localreply.ReasonPodLost,
			"the connection to the pod broke before it responded; the request may have been received, so it was not sent again"))
	}
	return exchangeLast
}

// interrupt ends what runs beside the exchange, and reports whether the client has
// closed its connection.
func (e *exchange) interrupt() (clientClosed bool) {
	if e.body != nil {
		e.body.stop()
		clientClosed = errors.Is(e.body.err(), hold.ErrClientGone)
	}
	return e.endWatch() || clientClosed
}

// endWatch ends the watch of the client and reports whether it has closed its
// connection.
func (e *exchange) endWatch() (clientClosed bool) {
	if e.watch != nil {
		clientClosed = e.watch.stop()
		e.watch = nil
	}
	return clientClosed
}

// retryable reports whether the pod has said nothing, and the whole request is
// still here.
func (e *exchange) retryable() bool {
	return !e.started && len(e.pod.in.unread()) == 0 && (e.body == nil || e.body.keeps)
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
	if err := e.pod.tcp.SetReadDeadline(e.pod.readDeadline); err != nil {
		return err
	}
	if e.body != nil && e.body.failure.Load() != nil {
		// It may have interrupted the read just before.
		return e.pod.tcp.SetReadDeadline(past)
	}
	return nil
}

// silent is called when a read from the pod was interrupted: because it said
// nothing for a while, or because the client has left.
func (e *exchange) silent() error {
	e.pod.readDeadline = time.Time{}
	if e.watch != nil {
		if e.watch.clientClosed() {
			return hold.ErrClientGone
		}
		return nil
	}
	switch err := e.body.err(); {
	case errors.Is(err, errBodyCut):
		// The pod gets what the client did, and responds to that as it likes.
		_ = e.pod.tcp.CloseWrite()
	case err != nil:
		return err
	case e.body != nil && !e.body.ended():
		// What reads the body notices that the client has closed its connection, unless
		// the pod takes no more of it.
		if e.client.tcp.Broken() {
			return hold.ErrClientGone
		}
		if e.client.tcp.Finished() {
			// If it has left altogether, its connection is broken the next time.
			e.client.probe()
		}
		return nil
	}
	if err := e.pod.tcp.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	e.watch = watchClient(e.client, e.pod)
	return nil
}
