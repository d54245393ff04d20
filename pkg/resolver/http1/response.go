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

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
)

// errEarlyEnd means that a pod closed the connection in the middle of a response.
var errEarlyEnd = errors.New("the pod closed the connection before its response was complete")

// receive reads the pod's response and sends it to the client.
func (e *exchange) receive() error {
	c := e.client
	for {
		if err := e.readHeader(); err != nil {
			return err
		}
		response := &e.response
		switch {
		case response.status == http.StatusSwitchingProtocols:
			if !e.upgrades {
				return &malformed{status: http.StatusBadGateway, detail: "it switches protocols without a request for it"}
			}
			return e.tunnel()
		case response.status < 200:
			if err := e.sendInterim(); err != nil {
				return err
			}
		default:
			c.record.Status = response.status
			return e.sendFinal(response.responseBody(e.toHEAD))
		}
	}
}

// readHeader reads until the header of a response is complete and parsed.
func (e *exchange) readHeader() error {
	searched := 0
	for {
		data := e.pod.in.unread()
		if headerEnds(data, searched) {
			return e.response.parseResponse(data)
		}
		searched = len(data)
		err := e.fill(func() error { return e.pod.in.fill(e.pod.tcp, e.client.server.options.MaxHeaderBytes) })
		if errors.Is(err, io.ErrShortBuffer) {
			return &malformed{status: http.StatusBadGateway, detail: "its header is too large"}
		}
		if err != nil {
			return err
		}
	}
}

// sendInterim passes on a response that announces another. HTTP/1.0 has none.
func (e *exchange) sendInterim() error {
	raw := e.response.raw
	if e.client.request.minor == 1 {
		if err := e.sendClient(raw); err != nil {
			return err
		}
	}
	e.pod.in.consume(len(raw))
	return nil
}

// sendFinal passes on the response whose header was read, and its body.
func (e *exchange) sendFinal(kind bodyKind) error {
	c := e.client
	response := &e.response
	c.record.Responded = time.Now()
	e.early = e.body.pending()
	e.last = e.isLast(kind)

	var scanner chunkScanner
	n, end, err := e.available(kind, &scanner)
	if err != nil {
		return err
	}
	e.started = true
	// The header and what is here of the body go out together.
	if err := e.sendClient(e.responseMessage(e.pod.in.unread()[:n])); err != nil {
		return err
	}
	e.shrinkOut()
	e.pod.in.consume(n)
	switch {
	case end:
		return nil
	case kind == sizedBody:
		return e.sendSized(response.contentLength - int64(n-len(response.raw)))
	case kind == chunkedBody:
		return e.sendChunks(&scanner)
	default:
		return e.sendUntilClose()
	}
}

// available returns how many bytes of the response are here, its header included,
// and whether that is all of it.
func (e *exchange) available(kind bodyKind, scanner *chunkScanner) (n int, end bool, err error) {
	header := len(e.response.raw)
	body := e.pod.in.unread()[header:]
	switch kind {
	case noBody:
		return header, true, nil
	case sizedBody:
		if e.response.contentLength <= int64(len(body)) {
			return header + int(e.response.contentLength), true, nil
		}
	case chunkedBody:
		n, end, err = scanner.scan(body)
		return header + n, end, err
	}
	return header + len(body), false, nil
}

// isLast reports whether the client's connection must end with this response.
func (e *exchange) isLast(kind bodyKind) bool {
	c := e.client
	if kind == untilClose || e.response.closeStays || !c.request.persists() || c.draining.Load() || c.service.Leaving() {
		return true
	}
	// The rest of a body that the pod does not want is not read by anything, a
	// client that waits to be told to continue may or may not send it now, and one
	// that has finished sends nothing more.
	return e.early && (!e.podPersists() || c.request.expects || e.body.err() != nil)
}

// responseMessage returns what is sent of a response that begins with a header:
// all but the lines that only concern the pod's connection, and whether the
// client's connection ends, where the client would not know.
func (e *exchange) responseMessage(data []byte) []byte {
	added := ""
	switch {
	case e.last:
		added = "Connection: close\r\n"
	case e.client.request.minor == 0, e.response.minor == 0:
		added = "Connection: keep-alive\r\n"
	}
	if added == "" && len(e.response.cuts) == 0 {
		return data
	}
	header := len(e.response.raw) - len("\r\n")
	e.out = appendWithout(e.out[:0], data[:header], e.response.cuts)
	e.out = append(e.out, added...)
	e.out = append(e.out, data[header:]...)
	return e.out
}

func (e *exchange) sendClient(data []byte) error {
	n, err := e.client.send(data)
	e.client.record.BytesOut += int64(n)
	if err != nil {
		return hold.ErrClientGone
	}
	return nil
}

// sendSized sends the rest of a body of known size.
func (e *exchange) sendSized(rest int64) error {
	for rest > spliceBytes {
		n, err := e.splice(rest)
		rest -= n
		if err != nil {
			return err
		}
	}
	for rest > 0 {
		if err := e.fillBody(); err != nil {
			return err
		}
		n := int(min(rest, int64(len(e.pod.in.unread()))))
		if err := e.sendClient(e.pod.in.unread()[:n]); err != nil {
			return err
		}
		e.pod.in.consume(n)
		rest -= int64(n)
	}
	return nil
}

// splice lets the kernel move up to n bytes, and returns when the pod was
// silent for a while.
func (e *exchange) splice(n int64) (int64, error) {
	if err := e.armSilence(time.Now()); err != nil {
		return 0, err
	}
	moved, err := e.client.tcp.CopyFrom(e.pod.tcp, n)
	e.client.record.BytesOut += moved
	switch {
	case err == nil:
		return moved, nil
	case errors.Is(err, os.ErrDeadlineExceeded) && moved > 0:
		return moved, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, e.silent()
	case e.client.tcp.Broken():
		return moved, hold.ErrClientGone
	default:
		return moved, errEarlyEnd
	}
}

// sendChunks sends the rest of a chunked body.
func (e *exchange) sendChunks(scanner *chunkScanner) error {
	for {
		if err := e.fillBody(); err != nil {
			return err
		}
		n, end, err := scanner.scan(e.pod.in.unread())
		if err != nil {
			return err
		}
		if err := e.sendClient(e.pod.in.unread()[:n]); err != nil {
			return err
		}
		e.pod.in.consume(n)
		if end {
			return nil
		}
	}
}

// sendUntilClose sends a body that ends with the connection.
func (e *exchange) sendUntilClose() error {
	for {
		err := e.fillBody()
		if errors.Is(err, errEarlyEnd) {
			return nil
		}
		if err != nil {
			return err
		}
		data := e.pod.in.unread()
		if err := e.sendClient(data); err != nil {
			return err
		}
		e.pod.in.consume(len(data))
	}
}

// fillBody reads more of a body, for which the end of the connection is too early.
func (e *exchange) fillBody() error {
	err := e.fill(func() error { return e.pod.in.fill(e.pod.tcp, wideSize) })
	if errors.Is(err, io.EOF) {
		return errEarlyEnd
	}
	return err
}
