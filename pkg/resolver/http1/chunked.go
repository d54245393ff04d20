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

import "bytes"

const (
	// maxChunkLine bounds the line before a chunk, extensions included.
	maxChunkLine = 4 << 10
	// maxTrailers bounds the fields after the last chunk.
	maxTrailers = 64 << 10
)

// A chunkState is what a chunkScanner expects next.
type chunkState byte

const (
	chunkSize chunkState = iota
	chunkExtension
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	trailerLine
	chunksDone
)

// chunkScanner finds the end of a chunked body, byte by byte, and changes
// nothing: what it accepts is forwarded as it was received. It takes only what
// every reader reads alike.
type chunkScanner struct {
	state  chunkState
	digits int
	size   uint64
	// line is how much of the current line, or of all trailers, was seen.
	line int
	// trailer is the unfinished line of the trailers.
	trailer []byte
}

// scan returns how many bytes of data belong to the body, and whether its end
// was among them.
func (s *chunkScanner) scan(data []byte) (n int, done bool, err error) {
	for n < len(data) {
		c := data[n]
		switch s.state {
		case chunkSize:
			digit, ok := hexDigit(c)
			switch {
			case ok && s.digits < 15:
				s.size = s.size<<4 | uint64(digit)
				s.digits++
			case s.digits > 0 && c == '\r':
				s.state = chunkSizeLF
			case s.digits > 0 && c == ';':
				s.state, s.line = chunkExtension, 0
			default:
				return n, false, badRequest("the size of a chunk is malformed")
			}
		case chunkExtension:
			s.line++
			switch {
			case c == '\r':
				s.state = chunkSizeLF
			case c == '\n' || c == 0 || s.line > maxChunkLine:
				return n, false, badRequest("the extension of a chunk is malformed")
			}
		case chunkSizeLF:
			if c != '\n' {
				return n, false, badRequest("the line before a chunk does not end with CR LF")
			}
			s.state = chunkData
			if s.size == 0 {
				s.state, s.line = trailerLine, 0
			}
		case chunkData:
			take := min(uint64(len(data)-n), s.size)
			n += int(take)
			s.size -= take
			if s.size == 0 {
				s.state = chunkDataCR
			}
			continue
		case chunkDataCR:
			if c != '\r' {
				return n, false, badRequest("a chunk is longer than its size")
			}
			s.state = chunkDataLF
		case chunkDataLF:
			if c != '\n' {
				return n, false, badRequest("a chunk does not end with CR LF")
			}
			s.state, s.digits = chunkSize, 0
		case trailerLine:
			s.line++
			if s.line > maxTrailers {
				return n, false, badRequest("the trailers are larger than %d bytes", maxTrailers)
			}
			s.trailer = append(s.trailer, c)
			if c == '\n' {
				end, err := s.endTrailer()
				if err != nil {
					return n, false, err
				}
				if end {
					s.state = chunksDone
					return n + 1, true, nil
				}
			}
		case chunksDone:
			return n, true, nil
		}
		n++
	}
	return n, s.state == chunksDone, nil
}

// endTrailer checks a line of the trailers, and reports whether it was the
// empty one that ends them.
func (s *chunkScanner) endTrailer() (bool, error) {
	line, _, err := nextLine(s.trailer)
	if err != nil {
		return false, err
	}
	s.trailer = s.trailer[:0]
	if len(line) == 0 {
		return true, nil
	}
	colon := bytes.IndexByte(line, ':')
	if colon < 0 || !isToken(line[:colon]) {
		return false, badRequest("a trailer field is malformed")
	}
	return false, nil
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
