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

import "net"

// directSize is from which size on a frame is written from where it was read; it
// costs less to copy smaller ones together.
const directSize = 2 << 10

// outgoing are frames for the pod that are written together. Its memory is given
// back once they are.
type outgoing struct {
	// small is the frames that were made or copied, backing where they begin.
	small   []byte
	backing *[bufferSize]byte
	pieces  []piece
	size    int
	// buffers is used again for what is written.
	buffers net.Buffers
}

// piece is frames in a row: direct, or a part of small.
type piece struct {
	direct     []byte
	start, end int
}

// begin makes sure that small has memory from the pool to begin with.
func (o *outgoing) begin() {
	if o.backing == nil {
		o.backing = buffers.Get().(*[bufferSize]byte)
		o.small = o.backing[:0]
	}
}

// Write appends to small, for the encoder of header blocks. Added must follow.
func (o *outgoing) Write(data []byte) (int, error) {
	o.small = append(o.small, data...)
	return len(data), nil
}

// added records that what small has from start on is complete frames.
func (o *outgoing) added(start int) {
	o.size += len(o.small) - start
	if last := len(o.pieces) - 1; last >= 0 && o.pieces[last].direct == nil {
		o.pieces[last].end = len(o.small)
		return
	}
	o.pieces = append(o.pieces, piece{start: start, end: len(o.small)})
}

// add adds a frame that stays where it is until flush is called.
func (o *outgoing) add(raw []byte) {
	if len(raw) >= directSize {
		o.pieces = append(o.pieces, piece{direct: raw})
		o.size += len(raw)
		return
	}
	o.begin()
	start := len(o.small)
	o.small = append(o.small, raw...)
	o.added(start)
}

// frames returns everything, in place. It is valid until reset is called.
func (o *outgoing) frames() net.Buffers {
	frames := o.buffers[:0]
	for _, p := range o.pieces {
		if p.direct != nil {
			frames = append(frames, p.direct)
			continue
		}
		frames = append(frames, o.small[p.start:p.end])
	}
	o.buffers = frames
	return frames
}

// kept returns how many bytes of memory are kept until reset is called, with those
// of a read buffer that frames lie in.
func (o *outgoing) kept() int64 { return bufferSize + int64(max(bufferSize, o.size)) }

func (o *outgoing) reset() {
	clear(o.pieces)
	clear(o.buffers)
	o.pieces, o.size, o.small = o.pieces[:0], 0, nil
	if cap(o.pieces) > 16 {
		o.pieces, o.buffers = nil, nil
	}
	if o.backing != nil {
		buffers.Put(o.backing)
		o.backing = nil
	}
}
