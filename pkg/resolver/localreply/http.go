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

// ServeHTTP answers a request. A client of gRPC gets a status in its own terms.
func (a *Reply) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fields := w.Header()
	fields.Set(HeaderAnswer, string(a.Reason))
	fields.Set("Cache-Control", "no-store")
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		fields.Set("Content-Type", "application/grpc")
		fields.Set("Grpc-Status", strconv.Itoa(int(a.Reason.class().grpc)))
		fields.Set("Grpc-Message", percentEncode(a.Message))
		w.WriteHeader(http.StatusOK)
		return
	}
	for _, field := range a.Fields {
		fields.Set(field.Name, field.Value)
	}
	if a.retries() {
		fields.Set("Retry-After", strconv.Itoa(retryAfterSeconds))
	}
	if !a.hasBody() {
		w.WriteHeader(a.Status)
		return
	}
	contentType, body := a.content()
	fields.Set("Content-Type", contentType)
	fields.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(a.Status)
	if r.Method != http.MethodHead {
		// A client that is gone does not need the rest.
		_, _ = w.Write(body)
	}
}

// percentEncode encodes a message as gRPC wants it: visible ASCII stays, but
// for the percent sign.
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
