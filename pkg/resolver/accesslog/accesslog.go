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
//
// It knows nothing of protocols: they fill the Record. Begin with Record.
package accesslog

import "time"

// Record describes one request or connection that has ended. Zero times are omitted.
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
	// Status is the status of the response.
	Status int `json:"status,omitempty"`
	// Outcome is how it ended.
	Outcome Outcome `json:"outcome"`
	// Reason is why the outcome is not forwarded.
	Reason string `json:"reason,omitempty"`
	// Pod is the pod that it was sent to.
	Pod string `json:"pod,omitempty"`
	// TraceParent is the traceparent field of a request, up to MaxTraceParent.
	TraceParent string `json:"traceParent,omitempty"`
	// Client is the address of the client.
	Client string `json:"client,omitempty"`

	// Received is when the headers of a request, or the connection, were received.
	Received time.Time `json:"received,omitzero"`
	// WakeSucceeded and EndpointReady are the ends of the steps of the cold start.
	WakeSucceeded time.Time `json:"wakeAnswered,omitzero"`
	EndpointReady time.Time `json:"endpointReady,omitzero"`
	// Released is when a pod was chosen.
	Released time.Time `json:"released,omitzero"`
	// Responded is when the first byte of the response was received.
	Responded time.Time `json:"answered,omitzero"`
	// Ended is when the response was complete, or the connection closed.
	Ended time.Time `json:"ended,omitzero"`
	// BytesIn and BytesOut are the bytes received from and sent to the client.
	BytesIn  int64 `json:"bytesIn"`
	BytesOut int64 `json:"bytesOut"`
	// Held is true when it had to wait.
	Held bool `json:"held"`
}

// The texts of a client in a record are limited, because they stay in memory while
// its request or connection is open.
const (
	MaxMethod      = 64
	MaxPath        = 1 << 10
	MaxTraceParent = 128
)

// Clip returns the first limit bytes of a text.
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
	// Forwarded means that the response came from a pod.
	Forwarded Outcome = "forwarded"
	// LocalReply means that the resolver sent a local reply.
	LocalReply Outcome = "answered"
	// ClientGone means that the client closed its connection first.
	ClientGone Outcome = "client_gone"
	// Failed means that the connection to the pod was lost.
	Failed Outcome = "failed"
	// Silent means that neither side sent a byte on the connection.
	Silent Outcome = "silent"
)

// Outcomes returns every Outcome.
func Outcomes() []Outcome { return []Outcome{Forwarded, LocalReply, ClientGone, Failed, Silent} }
