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

package http2

import (
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"golang.org/x/net/http2"
)

// observed is what one end of a connection has seen of the other.
type observed struct {
	// frames are those of each stream, in words and in their order; those of
	// stream 0 concern the connection.
	frames map[uint32][]string
	// grants are the sums of the WINDOW_UPDATEs.
	grants map[uint32]uint64
	// settings are the latest values.
	settings map[http2.SettingID]uint32
	// bodies are the bytes of the DATA frames, and ended the streams that the
	// other end has ended.
	bodies map[uint32][]byte
	ended  map[uint32]bool
	block  block
	// end is how the connection ended, "" while it has not.
	end string
}

// block is a header block that may not be complete.
type block struct {
	stream uint32
	data   []byte
	end    bool
}

func newObserved() observed {
	return observed{frames: map[uint32][]string{}, grants: map[uint32]uint64{}, settings: map[http2.SettingID]uint32{},
		bodies: map[uint32][]byte{}, ended: map[uint32]bool{}}
}

func (s *observed) add(stream uint32, word string) { s.frames[stream] = append(s.frames[stream], word) }

func (s *observed) data(f *http2.DataFrame) {
	s.add(f.StreamID, fmt.Sprintf("DATA %d:%08x length=%d end=%v", len(f.Data()), crc32.ChecksumIEEE(f.Data()), f.Length, f.StreamEnded()))
	s.bodies[f.StreamID] = append(s.bodies[f.StreamID], f.Data()...)
	s.ended[f.StreamID] = s.ended[f.StreamID] || f.StreamEnded()
}

// copy returns what has been seen up to now.
func (s *observed) copy() observed {
	now := newObserved()
	for stream, words := range s.frames {
		now.frames[stream] = slices.Clone(words)
	}
	for stream, body := range s.bodies {
		now.bodies[stream] = slices.Clone(body)
	}
	maps.Copy(now.grants, s.grants)
	maps.Copy(now.settings, s.settings)
	maps.Copy(now.ended, s.ended)
	now.end = s.end
	return now
}

// String returns all of it, a line for each thing that was seen.
func (s *observed) String() string {
	var lines []string
	for _, stream := range slices.Sorted(maps.Keys(s.frames)) {
		for _, word := range s.frames[stream] {
			lines = append(lines, fmt.Sprintf("%d %s", stream, word))
		}
	}
	for _, stream := range slices.Sorted(maps.Keys(s.grants)) {
		if s.grants[stream] > 0 {
			lines = append(lines, fmt.Sprintf("%d granted %d", stream, s.grants[stream]))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.settings)) {
		lines = append(lines, fmt.Sprintf("%s=%d", id, s.settings[id]))
	}
	return strings.Join(append(lines, "ended: "+s.end), "\n")
}

// withoutFraming forgets what a server may do one way or another each time: how it
// cuts a body into frames, when it grants more of a window, its PINGs, and whether
// it still tells a client to stop that may have finished.
func (s *observed) withoutFraming() {
	for stream, words := range s.frames {
		words = slices.DeleteFunc(words, func(word string) bool {
			return strings.HasPrefix(word, "DATA") || strings.HasPrefix(word, "PING") || word == "RST_STREAM NO_ERROR"
		})
		if body, ok := s.bodies[stream]; ok {
			words = append(words, fmt.Sprintf("body %d:%08x", len(body), crc32.ChecksumIEEE(body)))
		}
		if s.ended[stream] {
			words = append(words, "ended")
		}
		s.frames[stream] = words
	}
	clear(s.grants)
}

// The documented differences between a pod that is reached directly and one that
// is reached through a resolver:
//   - The SETTINGS to a pod forbid pushes, and have no larger frames or larger tables
//     than those that every end begins with (forPod), and only the smallest
//     table that the client had while it was held (replay).
//   - The SETTINGS to a client leave out the pod's table, frames and priorities, and
//     have the smaller of two limits for streams and header fields (forClient).
//   - Padding and priorities of header blocks, how these are cut into frames, and
//     PRIORITY frames do not reach the pod; how many SETTINGS and ACKs there are is
//     not what it is directly.
//   - While it holds, the resolver responds with PINGs, drops frames that it does not
//     know, and forgets a stream that the client resets.
func (s *observed) asPod() {
	for _, id := range []http2.SettingID{http2.SettingEnablePush, http2.SettingMaxFrameSize, http2.SettingHeaderTableSize} {
		delete(s.settings, id)
	}
}

func (s *observed) asClient() {
	for _, id := range []http2.SettingID{http2.SettingHeaderTableSize, http2.SettingMaxFrameSize, http2.SettingNoRFC7540Priorities,
		http2.SettingMaxConcurrentStreams, http2.SettingMaxHeaderListSize} {
		delete(s.settings, id)
	}
}
