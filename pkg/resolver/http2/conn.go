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
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

const (
	// maxStreams is how many streams a client may have open on a connection.
	maxStreams = 1000
	// manyStreams is from how many open streams on the list of them is made anew once
	// it is empty.
	manyStreams = 16
	// lingerTime and lingerBytes bound how long a client is read from, without checking what
	// it has received, after the last was said.
	lingerTime  = time.Second
	lingerBytes = 256 << 10
)

var (
	// errClientGone means that the client ended its connection.
	errClientGone = errors.New("the client ended its connection")
	// errPodEnded means that the connection to the pod ended.
	errPodEnded = errors.New("the connection to the pod ended")
)

// conn is a client's connection.
type conn struct {
	// Immutable.
	server *Server
	client net.Conn
	find   destination.Find
	remote string
	// account counts what the connection takes.
	account *memory.Account
	// usage counts what it keeps while it has a pod.
	usage usage

	out    *writer
	events events

	// Owned by the goroutine that reads from the client.
	in *input
	// rest counts what in and block keep.
	rest restCharge
	// reply is frames for the client that are sent when what was read is worked off.
	reply []byte
	// marks are the frames in it that concern the client's table.
	marks []tableMark
	// toPod is frames for the pod, sent then too.
	toPod             outgoing
	prefaced, greeted bool
	decoder           *hpack.Decoder
	encoder           *hpack.Encoder
	// clientTable and podTable are what these two keep. resized is true while the
	// next header block for the pod has to begin with another size of its table.
	clientTable, podTable tableUse
	resized               bool
	headers               headers
	block                 headerBlock
	settings              clientSettings
	lastStream            uint32
	// held are the streams that wait, in the order of their identifiers.
	held     []*stream
	flood    floodLimit
	window   heldWindow
	dropped  dropped
	shutdown shutdown
	// goAway is the last GOAWAY of the client while it was held.
	goAway []byte
	// service and port are what the connection is for. Nil before the first request.
	service *service.Service
	port    service.Port
	// maxStreams is not changed while there is a pod.
	maxStreams uint32
	pod        *pod
	// podStream is the last stream that was opened at the pod.
	podStream uint32

	mu sync.Mutex
	// streams are those that are forwarded, many is true once there were many.
	streams map[uint32]*stream
	many    bool
	// idleSince is when the last stream ended.
	idleSince time.Time
	acks      acks
	// goAwayLast is the last stream of the latest GOAWAY that the client was sent.
	goAwayLast uint32
	// replayable is true while everything that the pod was sent could be sent to
	// another.
	replayable bool
	// finished is true when the client has finished writing.
	finished bool
	// closing is true when the connection ends with its last stream.
	closing bool
}

func newConn(s *Server, client net.Conn, initial []byte, account *memory.Account, find destination.Find) *conn {
	c := &conn{
		server:     s,
		client:     client,
		find:       find,
		account:    account,
		rest:       restCharge{charge: account.Charge()},
		in:         newInput(client, initial),
		out:        newWriter(client, account),
		settings:   newClientSettings(),
		window:     heldWindow{left: initialWindow},
		maxStreams: maxStreams,
		idleSince:  time.Now(),
		goAwayLast: maxStreamID,
	}
	if address := client.RemoteAddr(); address != nil {
		c.remote = address.String()
	}
	c.events.conn = client
	c.usage.move(account)
	c.headers.limit = s.options.MaxHeaderBytes
	c.decoder = hpack.NewDecoder(initialTableSize, c.headers.add)
	return c
}

// serve serves the connection until it ends, and closes it.
func (c *conn) serve(ctx context.Context) {
	defer c.end()
	c.sendPreface()
	err := c.run(ctx)
	var broken connError
	switch {
	case errors.As(err, &broken):
		c.reply = appendGoAway(c.reply, min(c.lastStream, c.goAwayLastStream()), broken.code, broken.detail)
		c.closeSoon()
	case errors.Is(err, errPodEnded):
		c.mirrorPodEnd()
	case err == nil:
		c.closeGracefully()
	case errors.Is(err, io.EOF):
		c.finished = true
		c.awaitPod()
	default:
		c.abortPod()
	}
}

// sendPreface sends the resolver's SETTINGS, which also are what a server has to say
// first.
func (c *conn) sendPreface() {
	if svc, port, _ := c.find(func(string) []string { return nil }); svc != nil {
		c.bind(svc, port)
	}
	c.reply = appendSettings(c.reply,
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: c.maxStreams},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(c.server.options.MaxHeaderBytes)})
	c.acks.client = append(c.acks.client, false)
}

// bind makes the connection one for a port of a service.
func (c *conn) bind(svc *service.Service, port service.Port) {
	c.service, c.port = svc, port
	c.usage.move(svc.Memory())
	if limit := svc.Config().Limits.MaxConcurrencyPerPod; limit > 0 {
		c.maxStreams = uint32(min(limit, maxStreams))
	}
}

// run works until the connection has to end. It returns nil when everything was
// said and done.
func (c *conn) run(ctx context.Context) error {
	for {
		if err := c.work(ctx); err != nil {
			return c.afterFault(err)
		}
		if raised := c.events.take(); raised.any() {
			if err := c.handle(ctx, raised); err != nil {
				return err
			}
		}
		if err := c.send(); err != nil {
			return err
		}
		if c.over() {
			return nil
		}
		if err := c.countRest(); err != nil {
			return err
		}
		c.events.arm(c.deadline())
		err := c.in.fill()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.expire(time.Now())
			err = nil
		}
		if err != nil {
			return err
		}
	}
}

// countRest counts what is kept of frames and header blocks that are not complete.
func (c *conn) countRest() error {
	_, err := c.rest.count(cap(c.block.data) + c.in.size())
	// A body that is on its way to a pod has some time.
	if err == nil && c.rest.lacksRoom() && (c.pod == nil || c.block.stream != 0) {
		err = errNoRoom
	}
	return err
}

// afterFault returns err, having sent what the frames before the fault led to.
func (c *conn) afterFault(err error) error {
	if errors.As(err, new(connError)) {
		if sendErr := c.send(); sendErr != nil {
			return sendErr
		}
	}
	return err
}

// send sends the pod and the client what was made for them.
func (c *conn) send() error {
	if c.pod != nil && c.toPod.size > 0 {
		c.forgetReplay()
		if err := c.flush(); err != nil {
			return err
		}
	}
	return c.sendReply()
}

// sendReply sends the client what was made for it.
func (c *conn) sendReply() error {
	err := c.out.control(c.reply, c.marks)
	c.reply, c.marks = c.reply[:0], c.marks[:0]
	if cap(c.reply) > 1<<10 {
		c.reply, c.marks = nil, nil
	}
	if errors.Is(err, errNotReading) {
		return connError{http2.ErrCodeEnhanceYourCalm, err.Error()}
	}
	return err
}

// handle handles the signals of other goroutines.
func (c *conn) handle(ctx context.Context, raised signals) error {
	if raised.draining {
		c.beginShutdown()
	}
	if raised.podEnded {
		if err := c.podEnded(); err != nil {
			return err
		}
	}
	if raised.podSpoke {
		c.forgetReplay()
	}
	if raised.podAcked {
		c.passNextSettings()
	}
	if raised.podGoAway {
		c.dropRejected()
	}
	if raised.resolved {
		return c.handleResolved(ctx)
	}
	return nil
}

// over reports whether the last GOAWAY was sent to the client, all its streams have ended
// and it is sent nothing more of the pod.
func (c *conn) over() bool {
	if !c.shutdown.final || len(c.held) > 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams) == 0 && (c.pod == nil || !c.pod.passing.Load())
}

// deadline returns when there is something to do although the client is silent.
func (c *conn) deadline() time.Time {
	// The read deadline that is set stays as long as it is early enough: one needless
	// wake-up is cheaper than setting it for every stream.
	next := c.events.latest()
	if now := time.Now(); !next.After(now) {
		c.mu.Lock()
		if next = now; len(c.streams) == 0 && len(c.held) == 0 && !c.shutdown.final {
			next = c.idleSince
		}
		c.mu.Unlock()
		next = next.Add(c.server.options.IdleTimeout)
	}
	for _, s := range c.held {
		if s.held.deadline.Before(next) {
			next = s.held.deadline
		}
	}
	if c.shutdown.begun && !c.shutdown.final && c.shutdown.until.Before(next) {
		next = c.shutdown.until
	}
	if c.rest.lacksRoom() && c.rest.until.Before(next) {
		next = c.rest.until
	}
	return next
}

// expire does what was to be done at a time that has come.
func (c *conn) expire(now time.Time) {
	for _, s := range c.expired(now) {
		c.replyHeld(s, hold.ErrTimeout)
	}
	if c.shutdown.begun && !c.shutdown.final && !now.Before(c.shutdown.until) {
		c.finishShutdown()
	}
	c.mu.Lock()
	idle := len(c.streams) == 0 && len(c.held) == 0 && now.Sub(c.idleSince) >= c.server.options.IdleTimeout
	c.mu.Unlock()
	if idle && !c.shutdown.final {
		c.finishShutdown()
	}
}

// closeGracefully sends the client the last frames, and waits until it has received all that
// was sent: closing while it still sends would take that away. It may be slow.
func (c *conn) closeGracefully() {
	if !c.finishWriting() {
		return
	}
	for c.discard() {
		if unsent(c.client) == 0 {
			return
		}
	}
}

// closeSoon is closeGracefully for a client that broke the protocol: it has a moment.
func (c *conn) closeSoon() {
	c.out.limit(time.Now().Add(lingerTime), true)
	if c.finishWriting() {
		c.discard()
	}
}

// finishWriting sends the client the last frames and the end of the connection, and reports
// whether it can receive these.
func (c *conn) finishWriting() bool {
	if c.pod != nil {
		c.pod.close()
	}
	if c.out.control(c.reply, c.marks) != nil {
		return false
	}
	if c.pod != nil {
		c.pod.running.Wait()
	}
	half, ok := c.client.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}

// discard reads from the client for a moment, and reports whether it has not closed the
// connection.
func (c *conn) discard() bool {
	if c.client.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return false
	}
	_, err := io.CopyN(io.Discard, c.client, lingerBytes)
	return err == nil || errors.Is(err, os.ErrDeadlineExceeded)
}

// unsent returns how many bytes that were sent on a connection the other end has not
// received, or 0 when that is unknown.
func unsent(conn net.Conn) int {
	if tcp, ok := conn.(syscall.Conn); ok {
		return socket.Unsent(tcp)
	}
	return 0
}

// awaitPod is called when the client has finished writing. The pod gets the end
// too, and may still respond to what it has got. What is held is dropped: as on a
// connection without a pod, the client counts as closed.
func (c *conn) awaitPod() {
	for _, s := range slices.Clone(c.held) {
		c.leaveQueue(s)
		c.forgetHeld(s)
		c.finish(s, accesslog.ClientGone, "")
	}
	c.forgetReplay()
	c.mu.Lock()
	open := len(c.streams)
	c.mu.Unlock()
	if open == 0 && c.pod != nil {
		// The client is sent what there is of the pod.
		c.pod.close()
		c.pod.running.Wait()
		return
	}
	half, ok := any(c.podConn()).(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	raw, ok := c.client.(*net.TCPConn)
	if !ok {
		return
	}
	probeAt := time.Now().Add(longestCheck)
	for {
		if c.events.take().podEnded {
			return
		}
		if !probeAt.IsZero() && !time.Now().Before(probeAt) {
			probeAt = time.Time{}
			c.out.probe(appendPing(nil, 0, make([]byte, 8)))
		}
		c.events.arm(probeAt)
		if err := socket.WaitReset(raw); !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

func (c *conn) podConn() net.Conn {
	if c.pod == nil {
		return nil
	}
	return c.pod.conn
}

// abortPod is called when the client's connection broke: the pod sees it break.
func (c *conn) abortPod() { reset(c.podConn()) }

// reset makes closing a connection reset it.
func reset(conn net.Conn) {
	if tcp, ok := conn.(interface{ SetLinger(seconds int) error }); ok {
		// It fails only when the connection is broken already.
		_ = tcp.SetLinger(0)
	}
}

// end closes both connections, waits for the goroutine that reads from the pod,
// and ends all streams.
func (c *conn) end() {
	// Streams that end below are a part of it.
	defer c.usage.release()
	c.client.Close()
	var panicked any
	if c.pod != nil {
		c.pod.close()
		c.pod.running.Wait()
		panicked = c.pod.panicked
	}
	defer func() {
		if panicked != nil {
			// It ends this connection where those of all connections do.
			panic(panicked)
		}
	}()
	c.in.release()
	c.rest.charge.Release()
	if c.pod != nil {
		c.pod.kept.Release()
	}
	c.toPod.reset()
	outcome, reason := accesslog.ClientGone, ""
	if c.pod != nil && c.pod.lost && !c.finished {
		outcome, reason = accesslog.Failed, "the connection to the pod broke: "+c.pod.err.Error()
	}
	c.mu.Lock()
	streams := c.streams
	c.streams = nil
	c.mu.Unlock()
	// Deferred, each is reported even if reporting another panics.
	for _, s := range streams {
		s.lease.Release()
		defer c.finish(s, outcome, reason)
	}
	c.releaseLeases()
	for _, s := range c.held {
		c.leaveQueue(s)
		defer c.finish(s, accesslog.ClientGone, "")
	}
	c.held = nil
}

// finish reports a stream that has ended. It is in neither list any more.
func (c *conn) finish(s *stream, outcome accesslog.Outcome, reason string) {
	if s.counted {
		defer c.service.Traffic().End()
	}
	s.record.Outcome = outcome
	if reason != "" {
		s.record.Reason = reason
	}
	s.record.Ended = time.Now()
	c.uncountOpen(s)
	c.service.Finish(&s.record)
}

// remove takes a stream out of those that are forwarded, and reports whether the
// connection ends with it. It is called with mu held.
func (c *conn) remove(s *stream) (last bool) {
	delete(c.streams, s.id)
	if len(c.streams) > 0 {
		return false
	}
	if c.many {
		// A map does not shrink.
		c.streams, c.many = map[uint32]*stream{}, false
	}
	c.idleSince = time.Now()
	return c.closing
}
