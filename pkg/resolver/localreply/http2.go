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

package localreply

import (
	"net/http"
	"strconv"
	"strings"
)

// HTTP2 returns the reply as an HTTP/2 response: its status, its other header
// fields, with names in lower case, and its body. A gRPC client gets a gRPC status.
// The fields do not include content-length.
func (a *Reply) HTTP2(grpc bool) (status int, fields []Field, body []byte) {
	fields = []Field{{"x-elasti-answer", string(a.Reason)}, {"cache-control", "no-store"}}
	if grpc {
		return http.StatusOK, append(fields,
			Field{"content-type", "application/grpc"},
			Field{"grpc-status", strconv.Itoa(int(a.Reason.class().grpc))},
			Field{"grpc-message", percentEncode(a.Message)}), nil
	}
	for _, field := range a.Fields {
		fields = append(fields, Field{strings.ToLower(field.Name), field.Value})
	}
	if a.retries() {
		fields = append(fields, Field{"retry-after", strconv.Itoa(retryAfterSeconds)})
	}
	if !a.hasBody() {
		return a.Status, fields, nil
	}
	contentType, body := a.content()
	return a.Status, append(fields, Field{"content-type", contentType}), body
}

// percentEncode encodes a message as gRPC requires: all but visible ASCII is
// encoded, and so is the percent sign.
func percentEncode(message string) string {
	const digits = "0123456789ABCDEF"
	var encoded strings.Builder
	for i := range len(message) {
		c := message[i]
		if c >= ' ' && c <= '~' && c != '%' {
			encoded.WriteByte(c)
			continue
		}
		encoded.WriteByte('%')
		encoded.WriteByte(digits[c>>4])
		encoded.WriteByte(digits[c&15])
	}
	return encoded.String()
}
