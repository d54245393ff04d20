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
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
)

// malformed is a message that is not forwarded because two readers of it could
// disagree about where it ends, or because it is larger than allowed.
type malformed struct {
	// status is that of the local reply to a client that sent it.
	status int
	detail string
	// reason is that of the local reply. Empty means ReasonBadRequest.
	reason localreply.Reason
}

func (m *malformed) Error() string { return m.detail }

// reply returns the local reply to a client that sent it.
func (m *malformed) reply() *localreply.Reply {
	reason := localreply.ReasonBadRequest
	if m.reason != "" {
		reason = m.reason
	}
	return localreply.New(m.status, reason, m.detail)
}

func badRequest(format string, args ...any) error {
	return &malformed{status: http.StatusBadRequest, detail: fmt.Sprintf(format, args...)}
}

// errIncomplete means that more bytes are needed.
var errIncomplete = errors.New("the header of the message is not complete")

// bodyKind is how the end of a body is marked.
type bodyKind byte

const (
	noBody bodyKind = iota
	sizedBody
	chunkedBody
	// untilClose is a response whose end is the end of the connection.
	untilClose
)

// span is a part of a header, as offsets.
type span struct{ start, end int }

// messageHeader is what was found in the header of a request or response. Slices point
// into the buffer that it was parsed from.
type messageHeader struct {
	// raw is the header, from its first line to the empty line.
	raw []byte
	// minor is the x of HTTP/1.x.
	minor byte

	// Of requests.
	method, target []byte
	traceParent    []byte
	expects        bool
	hosts          int // how many Host fields there are
	// oddBody is true when there is a body that servers may overlook, as the method
	// does not request one.
	oddBody bool

	// Of responses.
	status int

	// The fields that frame the body and the connection.
	contentLength int64 // -1: none
	chunked       bool
	close         bool
	keepAlive     bool
	// closeStays is true when a Connection field that lists close is forwarded.
	closeStays   bool
	upgrade      bool // Connection lists upgrade, and there is an Upgrade field
	upgradeField bool
	// h2c is true when an Upgrade or an HTTP2-Settings field requests HTTP/2.
	h2c bool

	// cuts are the lines of a response that only concern the pod's connection.
	// Requests have none: their lines concern one that this client alone uses.
	cuts []span
}

func (h *messageHeader) reset() {
	*h = messageHeader{contentLength: -1, cuts: h.cuts[:0]}
}

// parseRequest parses the header of a request at the beginning of data. It
// returns errIncomplete when data ends before the header does.
func (h *messageHeader) parseRequest(data []byte) error {
	h.reset()
	line, rest, err := nextLine(data)
	if err != nil {
		return err
	}
	method, after, ok := bytes.Cut(line, []byte(" "))
	if !ok || !isToken(method) {
		return badRequest("the request line is malformed")
	}
	target, version, ok := bytes.Cut(after, []byte(" "))
	if !ok || !isTarget(target) || bytes.IndexByte(version, ' ') >= 0 {
		return badRequest("the request target is malformed")
	}
	if err := h.setVersion(version); err != nil {
		return err
	}
	h.method, h.target = method, target
	if err := h.parseFields(data, len(data)-len(rest)); err != nil {
		return err
	}
	if h.minor == 1 && h.hosts != 1 || h.hosts > 1 {
		return badRequest("a request must have exactly one Host field, this one has %d", h.hosts)
	}
	if err := h.checkEncoding(); err != nil {
		return err
	}
	h.oddBody = h.body() != noBody && !expectsBody(method)
	return nil
}

// expectsBody reports whether requests with a method usually have a body.
func expectsBody(method []byte) bool {
	switch string(method) {
	case http.MethodGet, http.MethodHead, http.MethodDelete, http.MethodOptions, http.MethodTrace:
		return false
	}
	return true
}

// forget drops what points into the buffer that the header was parsed from. What
// else was found stays.
func (h *messageHeader) forget() {
	h.raw, h.method, h.target, h.traceParent = nil, nil, nil, nil
}

// parseResponse parses the header of a response at the beginning of data.
func (h *messageHeader) parseResponse(data []byte) error {
	h.reset()
	line, rest, err := nextLine(data)
	if err != nil {
		return err
	}
	version, after, _ := bytes.Cut(line, []byte(" "))
	if err := h.setVersion(version); err != nil {
		return err
	}
	if len(after) < 3 || (len(after) > 3 && after[3] != ' ') {
		return badRequest("the status line is malformed")
	}
	for _, digit := range after[:3] {
		if digit < '0' || digit > '9' {
			return badRequest("the status is malformed")
		}
		h.status = 10*h.status + int(digit-'0')
	}
	if h.status < 100 {
		return badRequest("the status is malformed")
	}
	if err := h.parseFields(data, len(data)-len(rest)); err != nil {
		return err
	}
	return h.checkEncoding()
}

// checkEncoding rejects chunks of an HTTP/1.0 message: its reader may know nothing
// of them, and take the end of the connection for the end of the body.
func (h *messageHeader) checkEncoding() error {
	if h.chunked && h.minor == 0 {
		return badRequest("Transfer-Encoding does not exist in HTTP/1.0")
	}
	return nil
}

func (h *messageHeader) setVersion(version []byte) error {
	switch string(version) {
	case "HTTP/1.1":
		h.minor = 1
	case "HTTP/1.0":
		h.minor = 0
	default:
		return &malformed{status: http.StatusHTTPVersionNotSupported, detail: "only HTTP/1.0 and HTTP/1.1 are spoken here"}
	}
	return nil
}

// body returns how the end of a request's body is marked.
func (h *messageHeader) body() bodyKind {
	switch {
	case h.chunked:
		return chunkedBody
	case h.contentLength > 0:
		return sizedBody
	}
	return noBody
}

// responseBody returns how the end of a response's body is marked.
func (h *messageHeader) responseBody(toHEAD bool) bodyKind {
	switch {
	case toHEAD || h.status < 200 || h.status == http.StatusNoContent || h.status == http.StatusNotModified:
		return noBody
	case h.chunked:
		return chunkedBody
	case h.contentLength > 0:
		return sizedBody
	case h.contentLength == 0:
		return noBody
	}
	return untilClose
}

// persists reports whether the sender of the message lets the connection be
// used again, according to the header.
func (h *messageHeader) persists() bool {
	return !h.close && (h.minor == 1 || h.keepAlive)
}

// parseFields parses the field lines that begin at offset start of data.
func (h *messageHeader) parseFields(data []byte, start int) error {
	for {
		line, _, err := nextLine(data[start:])
		if err != nil {
			return err
		}
		end := start + len(line) + 2
		if len(line) == 0 {
			h.raw = data[:end]
			h.upgrade = h.upgrade && h.upgradeField
			if h.chunked && h.contentLength >= 0 {
				return badRequest("a message must not have both Content-Length and Transfer-Encoding")
			}
			return nil
		}
		colon := bytes.IndexByte(line, ':')
		// A line that begins with white space folds the one before, and white
		// space before the colon is read in two ways by different servers: the
		// check for a token rejects both.
		if colon < 0 || !isToken(line[:colon]) {
			return badRequest("a header field is malformed")
		}
		if err := h.field(line[:colon], trim(line[colon+1:]), span{start, end}); err != nil {
			return err
		}
		start = end
	}
}

// field records what the forwarding of a message needs to know of a field.
func (h *messageHeader) field(name, value []byte, line span) error {
	switch len(name) {
	case len("host"):
		if equalFold(name, "host") {
			h.hosts++
		}
	case len("expect"):
		if equalFold(name, "expect") {
			h.expects = true
		}
	case len("upgrade"):
		if equalFold(name, "upgrade") {
			h.upgradeField = true
			h.h2c = h.h2c || listsH2C(value)
		}
	case len("connection"): // and keep-alive
		if equalFold(name, "connection") {
			h.connection(value, line)
		} else if equalFold(name, "keep-alive") {
			h.cut(line)
		}
	case len("traceparent"):
		if equalFold(name, "traceparent") {
			h.traceParent = value
		}
	case len("content-length"): // and http2-settings
		if equalFold(name, "content-length") {
			return h.length(value)
		}
		h.h2c = h.h2c || equalFold(name, fieldHTTP2Settings)
	case len("proxy-connection"):
		if equalFold(name, "proxy-connection") {
			h.cut(line)
		}
	case len("transfer-encoding"):
		if equalFold(name, "transfer-encoding") {
			return h.encoding(value)
		}
	}
	return nil
}

func (h *messageHeader) length(value []byte) error {
	if h.contentLength >= 0 {
		return badRequest("a message must not have two Content-Length fields")
	}
	if len(value) == 0 || len(value) > 18 {
		return badRequest("the Content-Length is malformed")
	}
	h.contentLength = 0
	for _, digit := range value {
		if digit < '0' || digit > '9' {
			return badRequest("the Content-Length is malformed")
		}
		h.contentLength = 10*h.contentLength + int64(digit-'0')
	}
	return nil
}

func (h *messageHeader) encoding(value []byte) error {
	if h.chunked {
		return badRequest("a message must not have two Transfer-Encoding fields")
	}
	if !equalFold(value, "chunked") {
		return &malformed{status: http.StatusNotImplemented, detail: "the only Transfer-Encoding that is understood here is chunked"}
	}
	h.chunked = true
	return nil
}

// cut leaves a line of a response out.
func (h *messageHeader) cut(line span) {
	if h.status != 0 {
		h.cuts = append(h.cuts, line)
	}
}

// connection reads a Connection field. A field of a response that lists nothing
// but whether the pod's connection stays open is not forwarded; any other is,
// exactly as it was received, with all the fields that it names: what the client
// would have seen without a resolver.
func (h *messageHeader) connection(value []byte, line span) {
	understood, closes := true, false
	for option := range bytes.SplitSeq(value, []byte(",")) {
		switch option = trim(option); {
		case equalFold(option, "close"):
			h.close, closes = true, true
		case equalFold(option, "keep-alive"):
			h.keepAlive = true
		case equalFold(option, "upgrade"):
			h.upgrade = true
			understood = false
		case len(option) > 0:
			understood = false
		}
	}
	if understood {
		h.cut(line)
	} else {
		h.closeStays = h.closeStays || closes
	}
}

// values returns the values of a field, whatever the case of its name.
func (h *messageHeader) values(name string) []string {
	var values []string
	_, rest, err := nextLine(h.raw)
	for err == nil {
		var line []byte
		if line, rest, err = nextLine(rest); err != nil {
			break
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		if strings.EqualFold(string(field), name) {
			values = append(values, string(trim(value)))
		}
	}
	return values
}

// nextLine splits the first line off data. It rejects line ends other than
// CR LF, and bytes that no line may have.
func nextLine(data []byte) (line, rest []byte, err error) {
	end := bytes.IndexByte(data, '\n')
	if end < 0 {
		return nil, nil, errIncomplete
	}
	if end == 0 || data[end-1] != '\r' {
		return nil, nil, badRequest("a line of the header does not end with CR LF")
	}
	line = data[:end-1]
	if bytes.IndexByte(line, '\r') >= 0 || bytes.IndexByte(line, 0) >= 0 {
		return nil, nil, badRequest("a line of the header has a byte that is not allowed there")
	}
	return line, data[end+1:], nil
}

func trim(value []byte) []byte {
	for len(value) > 0 && (value[0] == ' ' || value[0] == '\t') {
		value = value[1:]
	}
	for len(value) > 0 && (value[len(value)-1] == ' ' || value[len(value)-1] == '\t') {
		value = value[:len(value)-1]
	}
	return value
}

// equalFold compares with a string of lower-case letters and hyphens.
func equalFold(value []byte, lower string) bool {
	if len(value) != len(lower) {
		return false
	}
	for i := range value {
		c := value[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func isToken(value []byte) bool {
	for _, c := range value {
		if !tokenBytes[c] {
			return false
		}
	}
	return len(value) > 0
}

func isTarget(value []byte) bool {
	for _, c := range value {
		if c <= ' ' || c == 0x7f {
			return false
		}
	}
	return len(value) > 0
}

// tokenBytes are the bytes of method and field names.
var tokenBytes = func() (table [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		table[c] = true
	}
	return table
}()
