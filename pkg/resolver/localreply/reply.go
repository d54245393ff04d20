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

// Package localreply creates the local replies of a resolver: responses that it
// sends itself, without a pod. The X-Elasti-Answer header with the reason
// distinguishes them from responses of the application.
//
// It does not know when one is sent, which the package of the protocol decides. Begin with
// Reply.
package localreply

import (
	"encoding/json"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HeaderReason is the header of local replies. Its value is the Reason.
const HeaderReason = "X-Elasti-Answer"

// retryAfterSeconds is the value of Retry-After. It is short because a limit is
// exceeded only as long as the requests that fill it last.
const retryAfterSeconds = 1

// Reply is one local reply.
type Reply struct {
	// Status is the HTTP status.
	Status int
	// Reason and Message are the cause.
	Reason  Reason
	Message string
	// ContentType and Body are the content. Without a ContentType the content
	// is a Kubernetes Status in JSON with Reason and Message.
	ContentType string
	Body        []byte
	// Fields are additional header fields.
	Fields []Field
}

// Field is a header field.
type Field struct{ Name, Value string }

// New returns a reply whose content is a Kubernetes Status.
func New(status int, reason Reason, message string) *Reply {
	return &Reply{Status: status, Reason: reason, Message: message}
}

// content returns the type and bytes of the body.
func (a *Reply) content() (contentType string, body []byte) {
	if a.ContentType != "" {
		return a.ContentType, a.Body
	}
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Reason:   metav1.StatusReason(a.Reason),
		Message:  a.Message,
		Code:     int32(a.Status),
	}
	if a.retries() {
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds}
	}
	body, err := json.Marshal(status)
	if err != nil {
		// Encoding a Status does not fail.
		return "text/plain; charset=utf-8", []byte(a.Message)
	}
	return "application/json", append(body, '\n')
}

// retries reports whether the reply has a Retry-After header.
func (a *Reply) retries() bool {
	return a.Status == http.StatusServiceUnavailable || a.Status == http.StatusGatewayTimeout
}

// hasBody reports whether a response with this status may have a body.
func (a *Reply) hasBody() bool {
	return a.Status != http.StatusNoContent && a.Status != http.StatusNotModified
}

// After is the value of the Connection header, which states what becomes of the
// connection after the reply.
type After string

const (
	// Open: the connection stays open, which is the default of HTTP/1.1.
	Open After = ""
	// OpenToHTTP10: the connection stays open, which an HTTP/1.0 client requested.
	OpenToHTTP10 After = "keep-alive"
	// Closes: the connection is closed.
	Closes After = "close"
)

// AppendHTTP1 appends the reply as an HTTP/1.1 message, without a body in response
// to a HEAD request.
func (a *Reply) AppendHTTP1(message []byte, withoutBody bool, after After) []byte {
	message = append(message, "HTTP/1.1 "...)
	message = strconv.AppendInt(message, int64(a.Status), 10)
	message = append(message, ' ')
	message = append(message, http.StatusText(a.Status)...)
	message = append(message, "\r\n"+HeaderReason+": "...)
	message = append(message, a.Reason...)
	message = append(message, "\r\nCache-Control: no-store"...)
	if a.retries() {
		message = append(message, "\r\nRetry-After: "...)
		message = strconv.AppendInt(message, retryAfterSeconds, 10)
	}
	for _, field := range a.Fields {
		message = append(message, "\r\n"+field.Name+": "+field.Value...)
	}
	if after != Open {
		message = append(append(message, "\r\nConnection: "...), after...)
	}
	if !a.hasBody() {
		return append(message, "\r\n\r\n"...)
	}
	contentType, body := a.content()
	message = append(message, "\r\nContent-Type: "...)
	message = append(message, contentType...)
	message = append(message, "\r\nContent-Length: "...)
	message = strconv.AppendInt(message, int64(len(body)), 10)
	message = append(message, "\r\n\r\n"...)
	if withoutBody {
		return message
	}
	return append(message, body...)
}
