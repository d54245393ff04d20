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

// Package accesslog writes one line of JSON for each request or connection
// that a resolver handled.
package accesslog

import "time"

// Record is what is known of one request or connection when it has ended. Zero
// times are left out.
type Record struct {
	// Namespace and Service name the public Service, Port its port.
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Port      int32  `json:"port"`
	// Protocol is how it was handled.
	Protocol Protocol `json:"protocol"`
	// Method and Path are those of a request, up to MaxMethod and MaxPath; the query
	// is left out, as it may carry secrets.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	// Status is the status that a request was answered with.
	Status int `json:"status,omitempty"`
	// Outcome is how it ended.
	Outcome Outcome `json:"outcome"`
	// Reason says why the outcome is not forwarded.
	Reason string `json:"reason,omitempty"`
	// Pod is the pod that it was sent to.
	Pod string `json:"pod,omitempty"`
	// TraceParent is the traceparent field of a request, up to MaxTraceParent.
	TraceParent string `json:"traceParent,omitempty"`
	// Client is the address of the client.
	Client string `json:"client,omitempty"`

	// Received is when the head of a request, or a connection, was here.
	Received time.Time `json:"received,omitzero"`
	// WakeAnswered and EndpointReady are steps of the cold start that it waited for.
	WakeAnswered  time.Time `json:"wakeAnswered,omitzero"`
	EndpointReady time.Time `json:"endpointReady,omitzero"`
	// Released is when a pod was chosen.
	Released time.Time `json:"released,omitzero"`
	// Answered is when the first byte of the answer was there.
	Answered time.Time `json:"answered,omitzero"`
	// Ended is when the answer was complete, or the connection closed.
	Ended time.Time `json:"ended,omitzero"`
	// BytesIn and BytesOut are how many bytes the client sent and was sent.
	BytesIn  int64 `json:"bytesIn"`
	BytesOut int64 `json:"bytesOut"`
	// Held is true when it had to wait.
	Held bool `json:"held"`
}

// What a record has of the texts of a client is kept for as long as its request, or
// its connection, is open.
const (
	MaxMethod      = 64
	MaxPath        = 1 << 10
	MaxTraceParent = 128
)

// Clip returns as much of a text as a record has.
func Clip[T ~string | ~[]byte](text T, limit int) T { return text[:min(len(text), limit)] }

// Protocol is how a request or connection was handled.
type Protocol string

const (
	// HTTP1 is HTTP/1.0 and HTTP/1.1.
	HTTP1 Protocol = "http1"
	// HTTP2 is HTTP/2 without TLS.
	HTTP2 Protocol = "http2"
	// Stream is anything else.
	Stream Protocol = "stream"
)

// Protocols returns every Protocol.
func Protocols() []Protocol { return []Protocol{HTTP1, HTTP2, Stream} }

// Outcome is how a request or connection ended.
type Outcome string

const (
	// Forwarded means that a pod answered.
	Forwarded Outcome = "forwarded"
	// Answered means that the resolver answered itself.
	Answered Outcome = "answered"
	// ClientGone means that the client went away first.
	ClientGone Outcome = "client_gone"
	// Failed means that a pod was reached and then lost.
	Failed Outcome = "failed"
	// Silent means that a connection ended on which neither side had said anything.
	Silent Outcome = "silent"
)

// Outcomes returns every Outcome.
func Outcomes() []Outcome { return []Outcome{Forwarded, Answered, ClientGone, Failed, Silent} }
