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

// Package sniff detects the protocol of a client from its first bytes, which it returns
// for the server of the protocol.
//
// It does not know what follows these bytes. Begin with Detect.
package sniff

import (
	"bytes"
	"strings"
)

// Protocol is how a connection is handled.
type Protocol int

const (
	// Undecided: more bytes, or a timeout, are needed.
	Undecided Protocol = iota
	// HTTP1 is HTTP/1.0 or HTTP/1.1.
	HTTP1
	// HTTP2 is HTTP/2 with prior knowledge, gRPC included.
	HTTP2
	// Stream is anything else.
	Stream
)

// Expectation is what the appProtocol of a Service port determines about its clients.
type Expectation int

const (
	// AnyProtocol: the protocol is detected from the first bytes or their absence.
	AnyProtocol Expectation = iota
	// AnyHTTP: the client speaks first, in HTTP of any version.
	AnyHTTP
	// NoHTTP: the protocol is not detected.
	NoHTTP
)

// Greeting is the side that speaks first on a connection that is not HTTP.
type Greeting int

const (
	// EitherGreets: a silent client may wait for the server to speak.
	EitherGreets Greeting = iota
	// ClientGreets: a silent client does not need the server yet.
	ClientGreets
	// ServerGreets: the server speaks as soon as a client connects.
	ServerGreets
)

// ServerFirst is the appProtocol of a port whose clients wake a sleeping target as soon
// as they connect.
const ServerFirst = "elasti.truefoundry.com/server-first"

// Greets returns which side speaks first by an appProtocol. Known protocols in which the
// server speaks first are EitherGreets, because health checks also connect to them.
func Greets(appProtocol string) Greeting {
	switch strings.ToLower(appProtocol) {
	case ServerFirst:
		return ServerGreets
	case "https", "tls", "wss", "kubernetes.io/wss", "grpcs",
		"redis", "postgres", "postgresql", "mongo", "mongodb", "amqp", "amqps",
		"kafka", "mqtt", "ldap", "ldaps":
		return ClientGreets
	}
	return EitherGreets
}

// Expect returns the expectation for an appProtocol, which is AnyProtocol for an unknown
// one.
func Expect(appProtocol string) Expectation {
	switch strings.ToLower(appProtocol) {
	case "http", "h2c", "http2", "grpc", "kubernetes.io/h2c", "kubernetes.io/ws":
		return AnyHTTP
	case ServerFirst, "https", "tls", "wss", "kubernetes.io/wss", "grpcs", "tcp",
		"redis", "postgres", "postgresql", "mysql", "mongo", "mongodb", "amqp", "amqps",
		"kafka", "nats", "mqtt", "ldap", "ldaps", "smtp", "imap", "pop3", "ssh", "ftp":
		return NoHTTP
	}
	return AnyProtocol
}

// preface begins every HTTP/2 connection.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Detect returns the protocol for the first bytes of a client. More bytes can only
// change the result Undecided.
func Detect(data []byte) Protocol {
	if len(data) == 0 {
		return Undecided
	}
	if len(data) >= len(preface) && string(data[:len(preface)]) == preface {
		return HTTP2
	}
	if strings.HasPrefix(preface, string(data[:min(len(data), len(preface))])) {
		return Undecided
	}
	// Old clients sent an empty line between two requests, but never at the beginning of
	// a connection.
	end := bytes.IndexByte(data, '\n')
	line := data
	if end >= 0 {
		line = bytes.TrimSuffix(data[:end], []byte("\r"))
	}
	switch {
	case !plausible(line, end >= 0):
		return Stream
	case end >= 0:
		return HTTP1
	}
	return Undecided
}

// plausible reports whether a line, which may not be complete, can be the first
// of an HTTP/1.x request.
func plausible(line []byte, complete bool) bool {
	method, rest, ok := bytes.Cut(line, []byte(" "))
	if !isMethod(method) {
		return false
	}
	if !ok {
		return !complete
	}
	for _, c := range rest {
		if (c < ' ' && c != '\r') || c == 0x7f {
			return false
		}
	}
	if !complete {
		return true
	}
	space := bytes.LastIndexByte(rest, ' ')
	return space > 0 && isVersion(rest[space+1:])
}

// maxMethod is longer than any method in use.
const maxMethod = 32

func isMethod(method []byte) bool {
	if len(method) == 0 || len(method) > maxMethod {
		return false
	}
	for _, c := range method {
		if (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func isVersion(version []byte) bool {
	return len(version) == len("HTTP/1.1") && bytes.HasPrefix(version, []byte("HTTP/1."))
}

// LooksLikeHTTP reports whether undecided bytes are most likely the beginning of an HTTP
// request, so that the timeout of HTTP requests applies.
func LooksLikeHTTP(data []byte) bool {
	for _, method := range []string{"GET /", "POST /", "PUT /", "HEAD /", "DELETE /", "PATCH /", "OPTIONS /", "OPTIONS *", "PRI * HTTP"} {
		if bytes.HasPrefix(data, []byte(method)) {
			return true
		}
	}
	return false
}
