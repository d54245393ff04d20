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

package sniff

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// firstRead is the size of the buffer of a connection, and how many bytes are read at
// most. The headers of most requests fit.
const firstRead = 2 << 10

// firstReads reuses the first buffers. The bytes are copied once their number is known.
var firstReads = sync.Pool{New: func() any { return new([firstRead]byte) }}

// Timeouts bound the wait for the first bytes of a client.
type Timeouts struct {
	// Silence is how long a client may send nothing, or too little to detect the
	// protocol, before the protocol counts as one in which the server speaks first.
	Silence time.Duration
	// Headers is how long a client that began an HTTP request may take to continue.
	Headers time.Duration
	// Idle is how long an HTTP client may send nothing. 0: as Headers.
	Idle time.Duration
}

// Read reads from a new connection until its protocol is known. It returns all bytes
// that were read, after those of data, which were read before. It reads at most 2 KiB,
// which no account has: when these do not determine the protocol, it is HTTP/1.x if
// they look like it, and otherwise a stream. After an error the connection cannot be used;
// otherwise it has no read deadline. The returned slice has no spare capacity and belongs
// to the caller.
func Read(conn net.Conn, data []byte, expectation Expectation, timeouts Timeouts) (Protocol, []byte, error) {
	if expectation == NoHTTP {
		return Stream, data, nil
	}
	if protocol := detect(data, expectation); protocol != Undecided {
		return protocol, data, nil
	}
	first := firstReads.Get().(*[firstRead]byte)
	defer firstReads.Put(first)
	data = append(first[:0], data...)
	started := time.Now()
	for {
		timeout := timeouts.Silence
		switch {
		case expectation == AnyHTTP && len(data) == 0 && timeouts.Idle > 0:
			timeout = timeouts.Idle
		case expectation == AnyHTTP || LooksLikeHTTP(data):
			timeout = timeouts.Headers
		}
		if err := conn.SetReadDeadline(started.Add(timeout)); err != nil {
			return Undecided, nil, err
		}
		n, err := conn.Read(data[len(data):cap(data)])
		if len(data) == 0 && n > 0 {
			// The request has begun.
			started = time.Now()
		}
		data = data[:len(data)+n]
		protocol := detect(data, expectation)
		// A half-close counts as silence.
		silent := errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF)
		if protocol == Undecided && silent && expectation == AnyProtocol && !LooksLikeHTTP(data) {
			protocol = Stream
		}
		if protocol != Undecided {
			return protocol, exactly(data), conn.SetReadDeadline(time.Time{})
		}
		if err != nil {
			return Undecided, nil, err
		}
	}
}

// detect returns the protocol for the first bytes of a client of which something is
// expected.
func detect(data []byte, expectation Expectation) Protocol {
	protocol := Detect(data)
	switch {
	case protocol == Stream && expectation == AnyHTTP:
		// The HTTP/1.x server responds with the error.
		return HTTP1
	case protocol != Undecided || len(data) < firstRead:
		return protocol
	case expectation == AnyHTTP || namesResource(data):
		// The HTTP/1.x server accounts for the memory of a long line.
		return HTTP1
	default:
		return Stream
	}
}

// namesResource reports whether bytes begin with a method of HTTP, also of an extension, and
// what a request target begins with.
func namesResource(data []byte) bool {
	method, target, ok := bytes.Cut(data, []byte(" "))
	return ok && isMethod(method) && (bytes.HasPrefix(target, []byte("/")) || bytes.HasPrefix(target, []byte("http")))
}

// exactly returns a copy of data without spare capacity.
func exactly(data []byte) []byte {
	return append(make([]byte, 0, len(data)), data...)
}
