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
	trailerStart
	trailerName
	trailerValue
	trailerLF
	lastLF
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
}

// scan returns how many bytes of data belong to the body, and whether its end
// was among them.
func (s *chunkScanner) scan(data []byte) (n int, done bool, err error) {
	for n < len(data) {
		c := data[n]
		switch s.state {
		case chunkSize, chunkExtension, chunkSizeLF:
			if err := s.scanSizeLine(c); err != nil {
				return n, false, err
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
		case trailerStart, trailerName, trailerValue, trailerLF, lastLF:
			if err := s.scanTrailer(c); err != nil {
				return n, false, err
			}
			if s.state == chunksDone {
				return n + 1, true, nil
			}
		case chunksDone:
			return n, true, nil
		}
		n++
	}
	return n, s.state == chunksDone, nil
}

// scanSizeLine takes one byte of the line before a chunk.
func (s *chunkScanner) scanSizeLine(c byte) error {
	digit, isDigit := hexDigit(c)
	switch {
	case s.state == chunkSize && isDigit && s.digits < 15:
		s.size = s.size<<4 | uint64(digit)
		s.digits++
	case s.state == chunkSize && s.digits > 0 && c == '\r':
		s.state = chunkSizeLF
	case s.state == chunkSize && s.digits > 0 && c == ';':
		s.state, s.line = chunkExtension, 0
	case s.state == chunkSize:
		return badRequest("the size of a chunk is malformed")
	case s.state == chunkExtension && c == '\r':
		s.state = chunkSizeLF
	case s.state == chunkExtension:
		if s.line++; c == '\n' || c == 0 || s.line > maxChunkLine {
			return badRequest("the extension of a chunk is malformed")
		}
	case c != '\n':
		return badRequest("the line before a chunk does not end with CR LF")
	case s.size == 0:
		s.state, s.line = trailerStart, 0
	default:
		s.state = chunkData
	}
	return nil
}

// scanTrailer takes one byte of the trailers. Nothing of them is kept.
func (s *chunkScanner) scanTrailer(c byte) error {
	if s.line++; s.line > maxTrailers {
		return badRequest("the trailers are larger than %d bytes", maxTrailers)
	}
	switch {
	case s.state == trailerStart && c == '\r':
		s.state = lastLF
	case (s.state == trailerStart || s.state == trailerName) && tokenBytes[c]:
		s.state = trailerName
	case s.state == trailerName && c == ':':
		s.state = trailerValue
	case s.state == trailerValue && c == '\r':
		s.state = trailerLF
	case s.state == trailerValue && c != '\n' && c != 0:
	case s.state == trailerLF && c == '\n':
		s.state = trailerStart
	case s.state == lastLF && c == '\n':
		s.state = chunksDone
	default:
		return badRequest("a trailer field is malformed")
	}
	return nil
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
