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
	"encoding/binary"
	"net/http"
	"strings"

	"golang.org/x/net/http2/hpack"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/clientaddress"
)

// headers are the fields of one decoded header block. They are used again for
// the next.
type headers struct {
	fields []hpack.HeaderField
	// size is theirs as RFC 9113 §6.5.2 counts it, tooLarge is true when those
	// beyond the limit were left out.
	size     int
	limit    int
	tooLarge bool
}

func (h *headers) reset() {
	clear(h.fields)
	h.fields, h.size, h.tooLarge = h.fields[:0], 0, false
	if cap(h.fields) > 32 {
		h.fields = nil
	}
}

// add is the emit function of the decoder.
func (h *headers) add(field hpack.HeaderField) {
	h.size += int(field.Size())
	if h.size > h.limit {
		h.tooLarge = true
		return
	}
	h.fields = append(h.fields, field)
}

// pseudo returns the value of a pseudo-header field.
func (h *headers) pseudo(name string) string {
	for i := range h.fields {
		if h.fields[i].Name == name {
			return h.fields[i].Value
		}
	}
	return ""
}

// values returns the values of a field, whatever the case of its name; Host is
// what the request is for in either form.
func (h *headers) values(name string) []string {
	if strings.EqualFold(name, "host") {
		if authority := h.pseudo(":authority"); authority != "" {
			return []string{authority}
		}
	}
	var values []string
	for i := range h.fields {
		if strings.EqualFold(h.fields[i].Name, name) {
			values = append(values, h.fields[i].Value)
		}
	}
	return values
}

// with returns the fields with one that names the client, behind what the client
// itself wrote there.
func (h *headers) with(client clientaddress.Field) []hpack.HeaderField {
	fields := make([]hpack.HeaderField, 0, len(h.fields)+1)
	var values []string
	for i := range h.fields {
		switch field := &h.fields[i]; {
		case field.Name != client.Lower:
			fields = append(fields, *field)
		case field.Value != "":
			values = append(values, field.Value)
		}
	}
	value := strings.Join(append(values, client.Value), ", ")
	return append(fields, hpack.HeaderField{Name: client.Lower, Value: value})
}

func (h *headers) first(name string) string {
	for i := range h.fields {
		if h.fields[i].Name == name {
			return h.fields[i].Value
		}
	}
	return ""
}

// requestProblem returns what makes the fields those of a malformed request (RFC
// 9113 §8.2 and §8.3), or "".
func (h *headers) requestProblem() string {
	var method, scheme, path, authority, protocol string
	regular := false
	seen := 0
	for i := range h.fields {
		field := &h.fields[i]
		if !strings.HasPrefix(field.Name, ":") {
			regular = true
			if problem := fieldProblem(field); problem != "" {
				return problem
			}
			continue
		}
		if regular {
			return "a pseudo-header field after another field"
		}
		var value *string
		var bit int
		switch field.Name {
		case ":method":
			value, bit = &method, 1
		case ":scheme":
			value, bit = &scheme, 2
		case ":path":
			value, bit = &path, 4
		case ":authority":
			value, bit = &authority, 8
		case ":protocol":
			value, bit = &protocol, 16
		default:
			return "an unknown pseudo-header field"
		}
		if seen&bit != 0 {
			return "a pseudo-header field twice"
		}
		seen |= bit
		if !validValue(field.Value) {
			return "a value with a character that it cannot have"
		}
		*value = field.Value
	}
	switch {
	case method == "":
		return "no :method"
	case method == http.MethodConnect && protocol == "":
		if scheme != "" || path != "" || authority == "" {
			return "CONNECT with another target than an :authority"
		}
	case scheme == "" || path == "":
		return "no :scheme or no :path"
	case protocol != "" && method != http.MethodConnect:
		return ":protocol without CONNECT"
	}
	return ""
}

// trailerProblem returns what makes the fields no trailers, or "".
func (h *headers) trailerProblem() string {
	for i := range h.fields {
		if strings.HasPrefix(h.fields[i].Name, ":") {
			return "a pseudo-header field among the trailers"
		}
		if problem := fieldProblem(&h.fields[i]); problem != "" {
			return problem
		}
	}
	return ""
}

func fieldProblem(field *hpack.HeaderField) string {
	if field.Name == "" {
		return "a field without a name"
	}
	for i := range len(field.Name) {
		if c := field.Name[i]; c <= ' ' || c >= 0x7f || c == ':' || ('A' <= c && c <= 'Z') {
			return "a name with a character that it cannot have"
		}
	}
	if !validValue(field.Value) {
		return "a value with a character that it cannot have"
	}
	switch field.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return "a field that only HTTP/1 connections have"
	case "te":
		if field.Value != "trailers" {
			return "te with another value than trailers"
		}
	}
	return ""
}

func validValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c == 0 || c == '\r' || c == '\n' {
			return false
		}
	}
	return true
}

// packed is fields in one piece of memory, for as long as a stream is held.
type packed []byte

// pack copies fields.
func pack(fields []hpack.HeaderField) packed {
	size := 0
	for i := range fields {
		size += 1 + 2*binary.MaxVarintLen16 + len(fields[i].Name) + len(fields[i].Value)
	}
	p := make(packed, 0, size)
	for i := range fields {
		var sensitive byte
		if fields[i].Sensitive {
			sensitive = 1
		}
		p = append(p, sensitive)
		p = append(binary.AppendUvarint(p, uint64(len(fields[i].Name))), fields[i].Name...)
		p = append(binary.AppendUvarint(p, uint64(len(fields[i].Value))), fields[i].Value...)
	}
	return p
}

// each calls do for each of the fields.
func (p packed) each(do func(hpack.HeaderField)) {
	next := func() string {
		length, n := binary.Uvarint(p)
		text := string(p[n : n+int(length)])
		p = p[n+int(length):]
		return text
	}
	for len(p) > 0 {
		field := hpack.HeaderField{Sensitive: p[0] == 1}
		p = p[1:]
		field.Name = next()
		field.Value = next()
		do(field)
	}
}
