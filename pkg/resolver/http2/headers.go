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
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/clientaddress"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// headerBlock is a header block of the client that is not complete. Its stream is
// 0 while there is none.
type headerBlock struct {
	stream    uint32
	endStream bool
	data      []byte
	frames    int
}

func (c *conn) onHeaders(ctx context.Context, f *frame) error {
	if f.stream%2 == 0 {
		return connError{http2.ErrCodeProtocol, "HEADERS on a stream that no client can open"}
	}
	fragment, err := f.fragment()
	if err != nil {
		return err
	}
	if f.endsBlock() {
		return c.decode(ctx, f.stream, f.endsStream(), fragment)
	}
	c.block = headerBlock{stream: f.stream, endStream: f.endsStream(), data: append([]byte(nil), fragment...), frames: 1}
	return nil
}

func (c *conn) onContinuation(ctx context.Context, f *frame) error {
	if c.block.stream == 0 {
		return connError{http2.ErrCodeProtocol, "CONTINUATION without HEADERS"}
	}
	c.block.frames++
	// What is compressed is not longer than what it says, but for table sizes.
	if c.block.frames > maxContinuations || len(c.block.data)+len(f.payload) > c.headers.limit+maxFrame {
		return connError{http2.ErrCodeEnhanceYourCalm, "a header block that is too long"}
	}
	c.block.data = append(c.block.data, f.payload...)
	if !f.endsBlock() {
		return nil
	}
	block := c.block
	c.block = headerBlock{}
	return c.decode(ctx, block.stream, block.endStream, block.data)
}

// decode decodes a complete header block, which must be done whatever becomes of
// its stream.
func (c *conn) decode(ctx context.Context, id uint32, endStream bool, block []byte) error {
	defer c.headers.reset()
	if _, err := c.decoder.Write(block); err != nil {
		return connError{http2.ErrCodeCompression, "a header block cannot be decoded"}
	}
	if err := c.decoder.Close(); err != nil {
		return connError{http2.ErrCodeCompression, "a header block is not complete"}
	}
	forgetBlock(c.decoder)
	c.clientTable.note(block)
	if c.countTables() != nil && c.openStreams() == 0 {
		return errNoRoom
	}
	if id > c.lastStream {
		c.lastStream = id
		if id > c.goAwayLastStream() {
			return nil
		}
		return c.open(ctx, id, endStream)
	}
	return c.trailers(id, endStream)
}

// open handles a new request.
func (c *conn) open(ctx context.Context, id uint32, endStream bool) error {
	h := &c.headers
	s := &stream{id: id, clientEnded: endStream}
	if !h.tooLarge && h.requestProblem() != "" {
		c.resetNew(s, http2.ErrCodeProtocol)
		return nil
	}
	if c.openStreams() >= int(c.maxStreams) {
		c.resetNew(s, http2.ErrCodeRefusedStream)
		return nil
	}
	method := h.pseudo(":method")
	s.isHEAD = method == http.MethodHead
	s.grpc = strings.HasPrefix(h.first("content-type"), "application/grpc")
	svc, port, local := c.find(h.values)
	switch {
	case svc == nil:
		c.respond(s, local)
		return nil
	case c.service == nil:
		c.bindLate(svc, port)
	case c.service != svc || c.port != port:
		c.respond(s, localreply.New(http.StatusMisdirectedRequest, localreply.ReasonUnknownHost,
			"this connection is one to another service; open a connection for this one"))
		return nil
	}
	c.begin(s, method)
	if local := c.unservable(method); local != nil {
		c.replyLocally(s, local)
		return nil
	}
	if c.shouldShutDown() {
		c.beginShutdown()
	}
	if c.pod != nil {
		return c.forwardNew(s)
	}
	return c.holdNew(ctx, s)
}

// begin begins the record of a request.
func (c *conn) begin(s *stream, method string) {
	path, _ := splitPath(c.headers.pseudo(":path"))
	traceParent := c.headers.first("traceparent")
	s.record = accesslog.Record{
		Namespace:   c.service.Namespace,
		Service:     c.service.PublicService,
		Port:        c.port.Number,
		Protocol:    accesslog.HTTP2,
		Method:      clip(method, method, accesslog.MaxMethod),
		Path:        clip(c.headers.pseudo(":path"), path, accesslog.MaxPath),
		TraceParent: clip(traceParent, traceParent, accesslog.MaxTraceParent),
		Client:      c.remote,
		Received:    time.Now(),
		Outcome:     accesslog.Forwarded,
	}
}

// clip returns as much of a part of a text as a record has. It does not keep the rest
// of the text with it, unless that is little.
func clip(whole, part string, limit int) string {
	const little = 64
	part = accesslog.Clip(part, limit)
	if len(whole) > len(part)+little {
		return strings.Clone(part)
	}
	return part
}

// unservable returns the reply to a request that no pod is to see, or nil.
func (c *conn) unservable(method string) *localreply.Reply {
	h := &c.headers
	switch {
	case h.tooLarge:
		return localreply.New(http.StatusRequestHeaderFieldsTooLarge, localreply.ReasonBadRequest,
			"the header fields are larger than --max-header-bytes of the resolver allows")
	case method == http.MethodConnect && h.pseudo(":protocol") == "":
		return localreply.New(http.StatusNotImplemented, localreply.ReasonBadRequest,
			"CONNECT is not possible here: the destination is the service alone")
	}
	return nil
}

// bindLate makes the connection one for the service of its first request, and
// tells the client when that one takes fewer streams.
func (c *conn) bindLate(svc *service.Service, port service.Port) {
	c.bind(svc, port)
	if c.maxStreams == maxStreams {
		return
	}
	c.reply = appendSettings(c.reply, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: c.maxStreams})
	c.mu.Lock()
	c.acks.client = append(c.acks.client, false)
	c.mu.Unlock()
}

// resetNew resets a stream that no more than its header block is known of.
func (c *conn) resetNew(s *stream, code http2.ErrCode) {
	if s.clientEnded {
		c.reply = appendReset(c.reply, s.id, code)
		return
	}
	c.reset(s.id, code)
}

func (c *conn) openStreams() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams) + len(c.held)
}

// forwardNew passes a request on to the pod.
func (c *conn) forwardNew(s *stream) error {
	var lease hold.Lease
	ok := false
	if len(c.held) == 0 {
		lease, ok = c.service.Queue().TakeAgain(c.port.Name, c.pod.lease.Pod, c.pod.lease.Number)
	}
	if !ok {
		// The pod has as much in flight as it may.
		c.count(s)
		c.keep(s)
		c.join(s, false)
		return nil
	}
	if err := c.countOpen(s); err != nil {
		lease.Release()
		c.replyLocally(s, localreply.ForError(c.service, err))
		return nil
	}
	s.lease = lease
	c.count(s)
	s.record.Released = s.record.Received
	s.record.Pod = c.pod.lease.Pod.Name
	left := c.addForwarded(s)
	if left {
		// The pod has just said that it takes no more.
		c.endStream(s.id, rejectedByGoAway)
		return nil
	}
	c.encodeFields(s.id, s.clientEnded, c.podFields())
	return nil
}

// addForwarded adds a stream to those that are forwarded, and reports whether its pod
// has said that it does not take it.
func (c *conn) addForwarded(s *stream) (left bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams[s.id] = s
	c.many = c.many || len(c.streams) > manyStreams
	return s.id > c.goAwayLast
}

// podFields returns the fields of the request as the pod gets them.
func (c *conn) podFields() []hpack.HeaderField {
	header := c.service.Config().ClientHeader
	if header == "" {
		return c.headers.fields
	}
	client := clientaddress.FieldOf(header, clientaddress.Of(c.remote))
	if client.Name == "" {
		return c.headers.fields
	}
	return c.headers.with(client)
}

// encodeFields adds a header block for the pod.
func (c *conn) encodeFields(id uint32, endStream bool, fields []hpack.HeaderField) {
	c.podStream = max(c.podStream, id)
	c.toPod.begin()
	start := len(c.toPod.small)
	c.toPod.small = append(c.toPod.small, make([]byte, frameHeaderLen)...)
	for i := range fields {
		c.encodeField(fields[i])
	}
	c.podTable.note(c.toPod.small[start+frameHeaderLen:])
	// Without room it is counted with the next.
	_ = c.countTable(&c.podTable)
	c.toPod.small = frameBlock(c.toPod.small, start, id, endStream)
	c.toPod.added(start)
}

// encodePacked is encodeFields for fields that were kept.
func (c *conn) encodePacked(id uint32, endStream bool, fields packed) {
	c.podStream = max(c.podStream, id)
	c.toPod.begin()
	start := len(c.toPod.small)
	c.toPod.small = append(c.toPod.small, make([]byte, frameHeaderLen)...)
	fields.each(c.encodeField)
	c.podTable.note(c.toPod.small[start+frameHeaderLen:])
	// Without room it is counted with the next.
	_ = c.countTable(&c.podTable)
	c.toPod.small = frameBlock(c.toPod.small, start, id, endStream)
	c.toPod.added(start)
}

// encodeField adds a field to the header block for the pod that toPod.small ends with.
func (c *conn) encodeField(field hpack.HeaderField) {
	if field.Size() <= initialTableSize {
		// Its writer never fails.
		_ = c.encoder.WriteField(field)
		c.resized = false
		return
	}
	if c.resized {
		// The encoder says so before its next field: that has to be a first one.
		_ = c.encoder.WriteField(field)
		c.resized = false
		c.podTable.keep(len(field.Name) + len(field.Value))
		return
	}
	// The encoder would keep a buffer of the longest field, and no such field is
	// ever put into its table.
	first := byte(0)
	if field.Sensitive {
		first = 0x10
	}
	c.toPod.small = appendHuffman(append(c.toPod.small, first), field.Name)
	c.toPod.small = appendHuffman(c.toPod.small, field.Value)
}

// appendHuffman appends a string literal, in the shorter of its two codings.
func appendHuffman(out []byte, text string) []byte {
	length := hpack.HuffmanEncodeLength(text)
	if length >= uint64(len(text)) {
		return appendString(out, text)
	}
	return hpack.AppendHuffmanString(appendInteger(out, 0x80, 7, length), text)
}

// trailers handles a header block on a stream that was opened before.
func (c *conn) trailers(id uint32, endStream bool) error {
	if c.heldByID(id) == nil && c.ignored(id) {
		if endStream {
			c.dropped = c.dropped.without(id)
		}
		return nil
	}
	problem := c.headers.trailerProblem()
	if !endStream {
		problem = "trailers that do not end their stream"
	}
	if c.headers.tooLarge {
		problem = "trailers that are too large"
	}
	if c.holds(id) {
		return c.holdTrailers(id, problem)
	}
	if problem != "" {
		c.resetBoth(id, problem)
		return nil
	}
	c.encodeFields(id, true, c.headers.fields)
	c.mu.Lock()
	s := c.streams[id]
	if s == nil {
		c.mu.Unlock()
		return nil
	}
	over := c.clientEnds(s)
	c.mu.Unlock()
	if over {
		c.endStream(id, bothEnded)
	}
	return nil
}

// resetBoth resets a stream on both sides, as its trailers are malformed.
func (c *conn) resetBoth(id uint32, problem string) {
	c.reset(id, http2.ErrCodeProtocol)
	c.toPod.begin()
	start := len(c.toPod.small)
	c.toPod.small = appendReset(c.toPod.small, id, http2.ErrCodeCancel)
	c.toPod.added(start)
	c.endStream(id, func(*stream) (accesslog.Outcome, string) { return accesslog.LocalReply, problem })
}

func splitPath(target string) (path, query string) {
	path, query, _ = strings.Cut(target, "?")
	return path, query
}
