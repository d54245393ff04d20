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

import "slices"

// maxSpans bounds the spans of dropped streams that are distinguished.
const maxSpans = 64

// dropped are streams that got a local reply and that the client may still send
// on, as spans of identifiers in ascending order. Nil: none.
//
// There are any number of streams and few spans: where there would be more, the
// two oldest become one with the streams between them. The streams between have ended as
// well, or are in flight, which callers check first; frames that are still on their way to an
// ended stream concern its pod as little.
type dropped []span

// span is the streams from first to last.
type span struct{ first, last uint32 }

// find returns the index of the first span that ends at id or behind it.
func (d dropped) find(id uint32) int {
	at, _ := slices.BinarySearchFunc(d, id, func(s span, id uint32) int {
		switch {
		case s.last < id:
			return -1
		case s.last > id:
			return 1
		}
		return 0
	})
	return at
}

func (d dropped) has(id uint32) bool {
	at := d.find(id)
	return at < len(d) && d[at].first <= id
}

// with returns the streams and one more.
func (d dropped) with(id uint32) dropped {
	at := d.find(id)
	if at < len(d) && d[at].first <= id {
		return d
	}
	// A client opens streams with odd identifiers only.
	joinsBefore := at > 0 && d[at-1].last+2 == id
	joinsNext := at < len(d) && id+2 == d[at].first
	switch {
	case joinsBefore && joinsNext:
		d[at-1].last = d[at].last
		return slices.Delete(d, at, at+1)
	case joinsBefore:
		d[at-1].last = id
		return d
	case joinsNext:
		d[at].first = id
		return d
	}
	return slices.Insert(d, at, span{id, id}).bounded()
}

// without returns the streams but for one.
func (d dropped) without(id uint32) dropped {
	at := d.find(id)
	if at == len(d) || d[at].first > id {
		return d
	}
	s := d[at]
	switch {
	case s.first == s.last:
		return slices.Delete(d, at, at+1)
	case s.first == id:
		d[at].first = id + 2
		return d
	case s.last == id:
		d[at].last = id - 2
		return d
	}
	d[at].last = id - 2
	return slices.Insert(d, at+1, span{id + 2, s.last}).bounded()
}

// bounded returns the streams in as many spans as there may be.
func (d dropped) bounded() dropped {
	if len(d) <= maxSpans {
		return d
	}
	d[1].first = d[0].first
	return slices.Delete(d, 0, 1)
}
