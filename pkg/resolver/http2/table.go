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

import "encoding/binary"

// tableUpdate is what the first header block to a client has to say after the
// ACK that puts another size of its table in force (RFC 7541 §4.2). The writer decides
// which block is the first one, as two goroutines have frames to send.
type tableUpdate struct {
	size, smallest uint32
	due            bool
}

// acknowledged records that the ACK that puts a table size in force was sent.
func (u *tableUpdate) acknowledged(size uint32) {
	if size < u.size {
		u.due = true
		u.smallest = min(u.smallest, size)
	}
	u.size = size
}

// append appends the update to the beginning of a header block.
func (u *tableUpdate) append(block []byte) []byte {
	if !u.due {
		return block
	}
	if u.smallest < u.size {
		block = appendInteger(block, 0x20, 5, uint64(u.smallest))
	}
	block = appendInteger(block, 0x20, 5, uint64(u.size))
	u.done()
	return block
}

// done records that a header block went to the client.
func (u *tableUpdate) done() { u.due, u.smallest = false, u.size }

// tableMark is a frame that concerns the client's table, among others.
type tableMark struct {
	// at is where its frame begins.
	at int
	// size is what an ACK of SETTINGS puts in force, and -1 for a header block.
	size int64
}

// note records that the frames of marks went to the client as they are.
func (u *tableUpdate) note(marks []tableMark) {
	for _, mark := range marks {
		if mark.size >= 0 {
			u.acknowledged(uint32(mark.size))
		} else {
			u.done()
		}
	}
}

// complete returns frames that are about to go to the client, whose header blocks are
// HEADERS frames of the resolver, with the update where it is due.
func (u *tableUpdate) complete(frames []byte, marks []tableMark) []byte {
	for i, mark := range marks {
		if mark.size >= 0 {
			u.acknowledged(uint32(mark.size))
			continue
		}
		if !u.due {
			continue
		}
		block := mark.at + frameHeaderLen
		rest := append([]byte(nil), frames[block:]...)
		frames = u.append(frames[:block])
		grown := len(frames) - block
		length := int(frames[mark.at])<<16 | int(binary.BigEndian.Uint16(frames[mark.at+1:])) + grown
		frames[mark.at], frames[mark.at+1], frames[mark.at+2] = byte(length>>16), byte(length>>8), byte(length)
		frames = append(frames, rest...)
		for j := range marks[i+1:] {
			marks[i+1+j].at += grown
		}
	}
	return frames
}
