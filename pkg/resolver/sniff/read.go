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
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// firstRead is how much of a connection is read at first. Most heads fit.
const firstRead = 2 << 10

// firstReads are used again: what was read is copied when it is known how much
// that is.
var firstReads = sync.Pool{New: func() any { return new([firstRead]byte) }}

// Timeouts say how long a client is waited for.
type Timeouts struct {
	// Silence is how long a client may say nothing, or nothing that tells,
	// before it counts as one that lets the server speak first.
	Silence time.Duration
	// Head is how long a client that began an HTTP request may take to go on.
	Head time.Duration
	// Idle is how long a client that speaks HTTP may say nothing. 0: as Head.
	Idle time.Duration
}

// Read reads from a new connection until its protocol is known, and returns
// all that was read, with the bytes of data, which were read before, first. At
// most limit bytes are read; a client that has sent so much and still does not
// tell is a stream. When Read fails the connection is of no use. Otherwise it
// has no read deadline. What is returned takes no more memory than it needs and
// belongs to the caller.
func Read(conn net.Conn, data []byte, expectation Expectation, timeouts Timeouts, limit int) (Protocol, []byte, error) {
	if expectation == NoHTTP {
		return Stream, data, nil
	}
	if protocol := Detect(data); protocol != Undecided {
		return protocol, data, nil
	}
	first := firstReads.Get().(*[firstRead]byte)
	defer firstReads.Put(first)
	data = append(first[:0:min(limit, firstRead)], data...)
	started := time.Now()
	for {
		patience := timeouts.Silence
		switch {
		case expectation == AnyHTTP && len(data) == 0 && timeouts.Idle > 0:
			patience = timeouts.Idle
		case expectation == AnyHTTP || LooksLikeHTTP(data):
			patience = timeouts.Head
		}
		if err := conn.SetReadDeadline(started.Add(patience)); err != nil {
			return Undecided, nil, err
		}
		if len(data) == cap(data) {
			data = append(make([]byte, 0, min(limit, 2*len(data))), data...)
		}
		n, err := conn.Read(data[len(data):cap(data)])
		if len(data) == 0 && n > 0 {
			// From now on it has begun.
			started = time.Now()
		}
		data = data[:len(data)+n]
		protocol := Detect(data)
		if protocol == Stream && expectation == AnyHTTP {
			// What is wrong with it is told to the client.
			protocol = HTTP1
		}
		if protocol == Undecided && len(data) >= firstRead && (expectation == AnyHTTP || LooksLikeHTTP(data)) {
			// What reads requests counts what a long line takes.
			protocol = HTTP1
		}
		if protocol == Undecided && len(data) >= limit {
			protocol = Stream
		}
		// A client that has finished says no more than a silent one.
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

// exactly returns a copy of data that takes no more memory than it needs.
func exactly(data []byte) []byte {
	return append(make([]byte, 0, len(data)), data...)
}
