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

import "golang.org/x/net/http2/hpack"

const (
	// entryOverhead is what an entry counts besides its texts (RFC 7541, section 4.1),
	// entryBytes what it takes here, in the table and in what finds it.
	entryOverhead, entryBytes = 32, 144
	// maxEntries is how many entries a table has at most.
	maxEntries = initialTableSize / entryOverhead
	// smallTable is how much of a table is a part of what every connection takes.
	smallTable = 2 << 10
)

// tableUse is an upper bound of the memory of a table of header compression, computed from
// the header blocks that add to the table. Its zero value is that of an empty table.
type tableUse struct {
	// current are the newest entries, last those before them. Those of last fill the table,
	// so that it has no older ones.
	current, last entries
	// most is the most memory that the entries took: the decoder's index does not shrink.
	most int64
	// part is the size of the buffer in which fields are assembled. It does not shrink either.
	part int64
	// counted is what of it the connection has counted.
	counted int64
}

// entries are some of a table: their number, the sum of their sizes, and that of the names
// and values that the header blocks have, without names that are those of other entries.
type entries struct{ number, size, texts int }

// cost returns how many bytes the table takes besides what every connection does.
func (u *tableUse) cost() int64 { return max(0, u.most-smallTable) + u.part }

// note records the entries that a complete header block adds.
func (u *tableUse) note(block []byte) {
	for len(block) > 0 {
		first := block[0]
		bits := 4
		switch {
		case first&0x80 != 0:
			bits = 7
		case first&0x40 != 0:
			bits = 6
		case first&0x20 != 0:
			bits = 5
		}
		index, rest, ok := cutInteger(block, bits)
		block = rest
		if !ok {
			u.fill()
			return
		}
		if first&0x80 != 0 || first&0xe0 == 0x20 {
			// A field of the table, or another size of it.
			continue
		}
		length := 0
		if index == 0 {
			length, block, ok = cutString(block)
		}
		if ok {
			var value int
			value, block, ok = cutString(block)
			length += value
		}
		if !ok {
			u.fill()
			return
		}
		if first&0x40 != 0 {
			u.insert(length)
		}
	}
}

// noteParts records the first bytes of a header block that comes in several parts.
// Such blocks are rare: each counts as one that fills the table.
func (u *tableUse) noteParts(bytes int) {
	u.fill()
	u.keep(bytes)
}

// keep records that a field of this size was assembled.
func (u *tableUse) keep(bytes int) {
	// The buffer for it grows by doubling.
	u.part = max(u.part, 2*int64(bytes))
}

// insert records an entry whose name and value have length bytes.
func (u *tableUse) insert(length int) {
	size := entryOverhead + length
	if size > initialTableSize {
		// There is no room for it.
		return
	}
	u.current.number++
	u.current.size += size
	u.current.texts += length
	u.measure()
	if u.current.size >= initialTableSize {
		u.last, u.current = u.current, entries{}
	}
}

// fill records as many entries as a table can have.
func (u *tableUse) fill() {
	u.current.number += maxEntries
	u.measure()
	u.last, u.current = u.current, entries{}
}

func (u *tableUse) measure() {
	number := min(u.current.number+u.last.number, maxEntries)
	length := min(u.current.texts+u.last.texts, initialTableSize-number*entryOverhead)
	u.most = max(u.most, int64(number*entryBytes+length))
}

// indexedField is a header block of one field of the static table.
var indexedField = []byte{0x82}

// forgetBlock makes a decoder forget the header block that it has decoded. It would keep
// the buffer that this was read to until the next one comes.
func forgetBlock(decoder *hpack.Decoder) {
	decoder.SetEmitEnabled(false)
	// They do not fail.
	_, _ = decoder.Write(indexedField)
	_ = decoder.Close()
	decoder.SetEmitEnabled(true)
}

// cutInteger returns the integer that data begins with, in the lowest bits of its
// first byte and what follows (RFC 7541, section 5.1), and what comes after it.
func cutInteger(data []byte, bits int) (value int, rest []byte, ok bool) {
	if len(data) == 0 {
		return 0, nil, false
	}
	limit := 1<<bits - 1
	value, rest = int(data[0])&limit, data[1:]
	if value < limit {
		return value, rest, true
	}
	for shift := 0; shift < 28 && len(rest) > 0; shift += 7 {
		next := rest[0]
		rest = rest[1:]
		value += int(next&0x7f) << shift
		if next&0x80 == 0 {
			return value, rest, true
		}
	}
	return 0, nil, false
}

// cutString returns the length that the string that data begins with has at most, and
// what comes after it.
func cutString(data []byte) (length int, rest []byte, ok bool) {
	if len(data) == 0 {
		return 0, nil, false
	}
	huffman := data[0]&0x80 != 0
	length, rest, ok = cutInteger(data, 7)
	if !ok || length > len(rest) {
		return 0, nil, false
	}
	rest = rest[length:]
	if huffman {
		// The shortest codes have five bits.
		length = length * 8 / 5
	}
	return length, rest, true
}
