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

package main

import (
	"bytes"
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// http2InitialWindow is what a client may send of bodies before it is granted
	// more, http2FrameSize the size of the frames that it sends.
	http2InitialWindow = 65535
	http2FrameSize     = 16384
	http2Timeout       = time.Minute
)

// http2Client is a client that sends and reads only on request, unlike those of
// libraries.
type http2Client struct {
	net.Conn
	framer  *http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer
	address string
}

// dialHTTP2 connects with prior knowledge. The windows of streams are as large as
// they can be.
func dialHTTP2(ctx context.Context, address string) (*http2Client, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &http2Client{Conn: connection, framer: http2.NewFramer(connection, connection), address: address}
	c.encoder = hpack.NewEncoder(&c.block)
	if _, err := io.WriteString(connection, http2.ClientPreface); err != nil {
		return c, err
	}
	return c, c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: math.MaxInt32})
}

// grantAll makes the window of the connection as large as it can be.
func (c *http2Client) grantAll() error {
	return c.framer.WriteWindowUpdate(0, math.MaxInt32-http2InitialWindow)
}

// request sends the header block of a request.
func (c *http2Client) request(stream uint32, ends bool, method, path string, pairs ...string) error {
	c.block.Reset()
	pairs = append([]string{":method", method, ":scheme", "http", ":path", path, ":authority", c.address}, pairs...)
	for i := 0; i < len(pairs); i += 2 {
		if err := c.encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}); err != nil {
			return err
		}
	}
	return c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.block.Bytes(), EndStream: ends, EndHeaders: true})
}

// upload begins a request with a body of so many bytes, and sends as much of it as
// it may without being granted more.
func (c *http2Client) upload(size int) error {
	if err := c.request(1, false, http.MethodPost, "/held", "content-length", strconv.Itoa(size)); err != nil {
		return err
	}
	for left := min(size, http2InitialWindow); left > 0; left -= http2FrameSize {
		if err := c.framer.WriteData(1, false, make([]byte, min(left, http2FrameSize))); err != nil {
			return err
		}
	}
	return nil
}

// awaitData returns once a part of a response was received.
func (c *http2Client) awaitData() error {
	if err := c.SetReadDeadline(time.Now().Add(http2Timeout)); err != nil {
		return err
	}
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return err
		}
		if settings, ok := frame.(*http2.SettingsFrame); ok && !settings.IsAck() {
			if err := c.framer.WriteSettingsAck(); err != nil {
				return err
			}
		}
		if _, ok := frame.(*http2.DataFrame); ok {
			return nil
		}
	}
}
