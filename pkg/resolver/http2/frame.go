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
	"encoding/binary"
	"fmt"

	"golang.org/x/net/http2"
)

const (
	// frameHeaderLen is the length of the header of a frame.
	frameHeaderLen = 9
	// maxFrame is the longest payload of a frame in either direction: the one that
	// every endpoint accepts. Larger ones that an end would accept are not
	// announced to the other, so that a frame always fits into a read buffer.
	maxFrame = 16384
	// initialWindow is the flow-control window that connections and streams begin with.
	initialWindow = 65535
	// maxWindow is the largest flow-control window.
	maxWindow = 1<<31 - 1
	// maxStreamID is the highest stream identifier.
	maxStreamID = 1<<31 - 1
	// initialTableSize is the size that the tables of header compression begin with.
	initialTableSize = 4096
)

// connError ends a connection whose peer broke the protocol.
type connError struct {
	code   http2.ErrCode
	detail string
}

// Error implements error.
func (e connError) Error() string { return fmt.Sprintf("%s: %s", e.code, e.detail) }

// frame is one frame, in place in the buffer that it was read into.
type frame struct {
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
	// raw is all of it, payload what follows its header.
	raw, payload []byte
}

// parseFrame returns the first frame of data, and false when it is not complete.
func parseFrame(data []byte) (frame, bool, error) {
	if len(data) < frameHeaderLen {
		return frame{}, false, nil
	}
	length := int(data[0])<<16 | int(data[1])<<8 | int(data[2])
	if length > maxFrame {
		return frame{}, false, connError{http2.ErrCodeFrameSize, "a frame is longer than was announced"}
	}
	end := frameHeaderLen + length
	if len(data) < end {
		return frame{}, false, nil
	}
	return frame{
		kind:    http2.FrameType(data[3]),
		flags:   http2.Flags(data[4]),
		stream:  binary.BigEndian.Uint32(data[5:]) & maxStreamID,
		raw:     data[:end:end],
		payload: data[frameHeaderLen:end:end],
	}, true, nil
}

// endsStream reports whether a DATA or HEADERS frame is the last of its stream.
func (f *frame) endsStream() bool { return f.flags.Has(http2.FlagDataEndStream) }

// endsBlock reports whether a HEADERS or CONTINUATION frame is the last of its block.
func (f *frame) endsBlock() bool { return f.flags.Has(http2.FlagHeadersEndHeaders) }

// unpadded returns the payload of a DATA or HEADERS frame without its padding.
func (f *frame) unpadded() ([]byte, error) {
	payload := f.payload
	if !f.flags.Has(http2.FlagDataPadded) {
		return payload, nil
	}
	if len(payload) == 0 {
		return nil, connError{http2.ErrCodeFrameSize, "a padded frame has no length of its padding"}
	}
	padding := int(payload[0])
	payload = payload[1:]
	if padding > len(payload) {
		return nil, connError{http2.ErrCodeProtocol, "the padding is longer than the frame"}
	}
	return payload[:len(payload)-padding], nil
}

// fragment returns the part of a header block that a HEADERS frame has.
func (f *frame) fragment() ([]byte, error) {
	payload, err := f.unpadded()
	if err != nil || !f.flags.Has(http2.FlagHeadersPriority) {
		return payload, err
	}
	if len(payload) < 5 {
		return nil, connError{http2.ErrCodeFrameSize, "a HEADERS frame has no room for its priority"}
	}
	return payload[5:], nil
}

// value returns the 31 bits that the payload begins with.
func (f *frame) value() uint32 { return binary.BigEndian.Uint32(f.payload) & maxStreamID }

// code returns the error code that the payload of a RST_STREAM frame is.
func (f *frame) code() http2.ErrCode {
	if len(f.payload) < 4 {
		return http2.ErrCodeProtocol
	}
	return http2.ErrCode(binary.BigEndian.Uint32(f.payload))
}

// appendFrameHeader appends the header of a frame.
func appendFrameHeader(out []byte, length int, kind http2.FrameType, flags http2.Flags, stream uint32) []byte {
	return append(out, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags),
		byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
}

func appendSettings(out []byte, settings ...http2.Setting) []byte {
	out = appendFrameHeader(out, 6*len(settings), http2.FrameSettings, 0, 0)
	for _, setting := range settings {
		out = binary.BigEndian.AppendUint16(out, uint16(setting.ID))
		out = binary.BigEndian.AppendUint32(out, setting.Val)
	}
	return out
}

func appendSettingsAck(out []byte) []byte {
	return appendFrameHeader(out, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
}

func appendPing(out []byte, flags http2.Flags, data []byte) []byte {
	return append(appendFrameHeader(out, 8, http2.FramePing, flags, 0), data[:8]...)
}

func appendReset(out []byte, stream uint32, code http2.ErrCode) []byte {
	out = appendFrameHeader(out, 4, http2.FrameRSTStream, 0, stream)
	return binary.BigEndian.AppendUint32(out, uint32(code))
}

func appendWindowUpdate(out []byte, stream, increment uint32) []byte {
	out = appendFrameHeader(out, 4, http2.FrameWindowUpdate, 0, stream)
	return binary.BigEndian.AppendUint32(out, increment)
}

func appendGoAway(out []byte, last uint32, code http2.ErrCode, detail string) []byte {
	out = appendFrameHeader(out, 8+len(detail), http2.FrameGoAway, 0, 0)
	out = binary.BigEndian.AppendUint32(out, last)
	out = binary.BigEndian.AppendUint32(out, uint32(code))
	return append(out, detail...)
}

// appendData appends the bytes of a body as the last frames of a stream.
func appendData(out []byte, stream uint32, body []byte) []byte {
	for {
		part, flags := body[:min(len(body), maxFrame)], http2.Flags(0)
		if body = body[len(part):]; len(body) == 0 {
			flags = http2.FlagDataEndStream
		}
		out = append(appendFrameHeader(out, len(part), http2.FrameData, flags, stream), part...)
		if len(body) == 0 {
			return out
		}
	}
}

// frameBlock makes the frames of a header block that begins at start, with room
// for the header of a frame in front of it, and ends at the end of out.
func frameBlock(out []byte, start int, stream uint32, endStream bool) []byte {
	var flags http2.Flags
	if endStream {
		flags = http2.FlagHeadersEndStream
	}
	length := len(out) - start - frameHeaderLen
	if length <= maxFrame {
		appendFrameHeader(out[:start], length, http2.FrameHeaders, flags|http2.FlagHeadersEndHeaders, stream)
		return out
	}
	block := append([]byte(nil), out[start+frameHeaderLen:]...)
	out = append(appendFrameHeader(out[:start], maxFrame, http2.FrameHeaders, flags, stream), block[:maxFrame]...)
	for block = block[maxFrame:]; len(block) > 0; {
		part, flags := block[:min(len(block), maxFrame)], http2.Flags(0)
		if block = block[len(part):]; len(block) == 0 {
			flags = http2.FlagContinuationEndHeaders
		}
		out = append(appendFrameHeader(out, len(part), http2.FrameContinuation, flags, stream), part...)
	}
	return out
}
