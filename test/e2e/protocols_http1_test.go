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

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os/exec"
	"strings"

	"github.com/gorilla/websocket"
)

// bigBody is larger than everything between a client and the application
// together could keep in memory.
const bigBody = 64 << 20

func http1Conversations() []conversation {
	return []conversation{
		{"HTTP10", http10},
		{"KeepAliveAndPipelining", pipelining},
		{"OddRequestsByteForByte", oddRequests},
		{"ChunkedBodyAndTrailers", func(ctx context.Context, h *host) error {
			return echoWithTrailers(ctx, h, &http.Transport{}, "HTTP/1.1")
		}},
		{"BigBodiesBothWays", func(ctx context.Context, h *host) error { return bigBodies(ctx, h, &http.Transport{}) }},
		{"ExpectContinue", expectContinue},
		{"ExpectRejected", expectRejected},
		{"EarlyHints", earlyHints},
		{"ServerSentEvents", func(ctx context.Context, h *host) error { return serverSentEvents(ctx, h, &http.Transport{}, "http1") }},
		{"WebSocket", webSocket},
		{"Curl", func(ctx context.Context, h *host) error { return curl(ctx, h, "1.1", "--http1.1") }},
	}
}

// talk connects to a port, sends a request byte for byte, and has read see what
// comes back. It closes the connection.
func talk(ctx context.Context, h *host, port int, request string, read func(net.Conn, *bufio.Reader) error) error {
	conn, err := h.dial(ctx, port)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		return fmt.Errorf("sending: %w", err)
	}
	return read(conn, bufio.NewReader(conn))
}

// readResponse reads a response, which must have the status, and its body.
func readResponse(reader *bufio.Reader, status int) (*http.Response, string, error) {
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return nil, "", fmt.Errorf("reading the response: %w", err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, "", fmt.Errorf("reading the response body: %w", err)
	}
	return response, string(body), expectStatus(response, status)
}

// expectMirrored reads a response of the mirror, which must consist of exactly the
// given request.
func expectMirrored(reader *bufio.Reader, want string) error {
	response, got, err := readResponse(reader, http.StatusOK)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the application received %q, want %q", got, want)
	}
	if response.Status != "200 Mirrored As It Came" {
		return fmt.Errorf("the status is %q", response.Status)
	}
	return nil
}

func http10(ctx context.Context, h *host) error {
	const request = "GET /old HTTP/1.0\r\nHost: example.com\r\n\r\n"
	return talk(ctx, h, portMirror, request, func(_ net.Conn, reader *bufio.Reader) error {
		if err := expectMirrored(reader, request); err != nil {
			return err
		}
		// The end of the connection is the end of an exchange.
		if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
			return fmt.Errorf("after the response came %q, %w", rest, err)
		}
		return nil
	})
}

// pipelining sends three requests before it reads a response, and another one on the
// same connection after that.
func pipelining(ctx context.Context, h *host) error {
	requests := []string{
		"GET /first HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"POST /second HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\n\r\n",
		"GET /third HTTP/1.1\r\nHost: example.com\r\n\r\n",
	}
	const kept = "GET /kept HTTP/1.1\r\nHost: example.com\r\n\r\n"
	return talk(ctx, h, portMirror, requests[0]+requests[1]+"hello"+requests[2], func(conn net.Conn, reader *bufio.Reader) error {
		for i, request := range requests {
			if err := expectMirrored(reader, request); err != nil {
				return fmt.Errorf("request %d: %w", i+1, err)
			}
		}
		if _, err := io.WriteString(conn, kept); err != nil {
			return fmt.Errorf("sending on the kept connection: %w", err)
		}
		return expectMirrored(reader, kept)
	})
}

// oddRequests sends what libraries would tidy up.
func oddRequests(ctx context.Context, h *host) error {
	for _, request := range []string{
		"GET http://example.com/absolute?form=1 HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"GET //double//slash/../up/./here/%2e%2E/%2F/%zz?a=b?c&;=%%20#part HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"PROPFIND /dav HTTP/1.1\r\nhOsT: Example.COM:8080\r\nX-ODD-case:   spaced \r\nX-Twice: 1\r\nX-Twice: 2\r\nX-Empty:\r\nx_under.score: \xfc\r\n\r\n",
	} {
		err := talk(ctx, h, portMirror, request, func(_ net.Conn, reader *bufio.Reader) error {
			return expectMirrored(reader, request)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// echoWithTrailers sends a body in pieces, each only once the one before it has
// come back, and a trailer, which has to come back too.
func echoWithTrailers(ctx context.Context, h *host, transport *http.Transport, protocol string) error {
	defer transport.CloseIdleConnections()
	body, feed := io.Pipe()
	defer feed.Close()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url(portWeb, "/echo"), body)
	if err != nil {
		return err
	}
	request.Trailer = http.Header{"Application-Trailer": nil}
	feeding := make(chan error, 1)
	returned := make(chan struct{})
	go func() {
		feeding <- func() error {
			for range 3 {
				if _, err := io.WriteString(feed, "piece"); err != nil {
					return err
				}
				select {
				case <-returned:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			request.Trailer.Set("Application-Trailer", "the end")
			return feed.Close()
		}()
	}()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := expectStatus(response, http.StatusOK); err != nil {
		return err
	}
	if got := response.Header.Get("Application-Protocol"); got != protocol {
		return fmt.Errorf("the application received %s, want %s", got, protocol)
	}
	piece := make([]byte, len("piece"))
	for range 3 {
		if _, err := io.ReadFull(response.Body, piece); err != nil {
			return fmt.Errorf("reading a piece: %w", err)
		}
		returned <- struct{}{}
	}
	if rest, err := io.ReadAll(response.Body); err != nil || len(rest) > 0 {
		return fmt.Errorf("after the last piece came %q, %w", rest, err)
	}
	if err := <-feeding; err != nil {
		return fmt.Errorf("sending: %w", err)
	}
	if got := response.Trailer.Get("Application-Trailer"); got != "the end" {
		return fmt.Errorf("the trailer is %q", got)
	}
	return nil
}

// summed is bytes that are the same each time and do not repeat soon, and their sum.
type summed struct {
	left  int
	block [sha256.Size]byte
	sum   hash.Hash
}

func newSummed(size int) *summed { return &summed{left: size, sum: sha256.New()} }

// Read implements io.Reader.
func (s *summed) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	n := 0
	for n < len(p) && s.left > 0 {
		s.block = sha256.Sum256(s.block[:])
		copied := copy(p[n:], s.block[:min(len(s.block), s.left)])
		n, s.left = n+copied, s.left-copied
	}
	s.sum.Write(p[:n])
	return n, nil
}

// bigBodies sends a big body and gets it back.
func bigBodies(ctx context.Context, h *host, transport *http.Transport) error {
	defer transport.CloseIdleConnections()
	sent := newSummed(bigBody)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url(portWeb, "/echo"), io.NopCloser(sent))
	if err != nil {
		return err
	}
	request.ContentLength = bigBody
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := expectStatus(response, http.StatusOK); err != nil {
		return err
	}
	received := sha256.New()
	n, err := io.Copy(received, response.Body)
	if err != nil {
		return fmt.Errorf("reading the body after %d bytes: %w", n, err)
	}
	if n != bigBody || !bytes.Equal(received.Sum(nil), sent.sum.Sum(nil)) {
		return fmt.Errorf("%d bytes came back, or others than were sent", n)
	}
	return nil
}

// expectingContinue returns a request with Expect: 100-continue.
func expectingContinue(path string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
}

// expectContinue sends the body after the application has sent 100 Continue.
func expectContinue(ctx context.Context, h *host) error {
	return talk(ctx, h, portWeb, expectingContinue("/echo"), func(conn net.Conn, reader *bufio.Reader) error {
		if _, _, err := readResponse(reader, http.StatusContinue); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "hello"); err != nil {
			return fmt.Errorf("sending the body: %w", err)
		}
		_, body, err := readResponse(reader, http.StatusOK)
		if err == nil && body != "hello" {
			err = fmt.Errorf("the body that came back is %q", body)
		}
		return err
	})
}

// expectRejected gets a final response instead of 100 Continue.
func expectRejected(ctx context.Context, h *host) error {
	return talk(ctx, h, portWeb, expectingContinue("/reject"), func(_ net.Conn, reader *bufio.Reader) error {
		_, _, err := readResponse(reader, http.StatusRequestEntityTooLarge)
		return err
	})
}

func earlyHints(ctx context.Context, h *host) error {
	var hints []string
	trace := &httptrace.ClientTrace{Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
		hints = append(hints, fmt.Sprintf("%d %s", status, header.Get("Link")))
		return nil
	}}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodGet, h.url(portWeb, "/interim"), nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if got := strings.Join(hints, ", "); got != "103 </style.css>; rel=preload" {
		return fmt.Errorf("the hints are %q", got)
	}
	return expectStatus(response, http.StatusOK)
}

// serverSentEvents lets the application send an event only once the one before
// has arrived.
func serverSentEvents(ctx context.Context, h *host, transport *http.Transport, stream string) error {
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.url(portWeb, "/events?stream="+stream), nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := expectStatus(response, http.StatusOK); err != nil {
		return err
	}
	reader := bufio.NewReader(response.Body)
	for i := 1; i <= 3; i++ {
		want := fmt.Sprintf("data: %d\n\n", i)
		event := make([]byte, len(want))
		if _, err := io.ReadFull(reader, event); err != nil || string(event) != want {
			return fmt.Errorf("event %d is %q: %w", i, event, err)
		}
		if i == 3 {
			break
		}
		advance, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url(portWeb, "/events/advance?stream="+stream), http.NoBody)
		if err != nil {
			return err
		}
		advanced, err := transport.RoundTrip(advance)
		if err != nil {
			return err
		}
		advanced.Body.Close()
		if err := expectStatus(advanced, http.StatusOK); err != nil {
			return err
		}
	}
	if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
		return fmt.Errorf("after the last event came %q, %w", rest, err)
	}
	return nil
}

func webSocket(ctx context.Context, h *host) error {
	return webSocketEcho(ctx, "ws://"+h.at(portWeb)+"/websocket", 2<<20)
}

// webSocketEcho has a text and a message of so many bytes come back.
func webSocketEcho(ctx context.Context, url string, size int) error {
	var dialer websocket.Dialer
	conn, response, err := dialer.DialContext(ctx, url, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := errors.Join(conn.SetReadDeadline(deadline), conn.SetWriteDeadline(deadline)); err != nil {
			return err
		}
	}
	for _, message := range []struct {
		kind int
		data []byte
	}{
		{websocket.TextMessage, []byte("hello")},
		{websocket.BinaryMessage, bytes.Repeat([]byte{0, 0xff}, size/2)},
	} {
		if err := conn.WriteMessage(message.kind, message.data); err != nil {
			return err
		}
		kind, data, err := conn.ReadMessage()
		if err != nil {
			return err
		}
		if kind != message.kind || !bytes.Equal(data, message.data) {
			return fmt.Errorf("a message of %d bytes came back as %d bytes of kind %d", len(message.data), len(data), kind)
		}
	}
	// The application confirms the close, and then closes.
	closing := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "done")
	if err := conn.WriteMessage(websocket.CloseMessage, closing); err != nil {
		return err
	}
	var closed *websocket.CloseError
	if _, _, err := conn.ReadMessage(); !errors.As(err, &closed) || closed.Code != websocket.CloseNormalClosure {
		return fmt.Errorf("the connection ended with %w", err)
	}
	return nil
}

// curl sends a body with curl, gets it back, and expects the version of HTTP.
func curl(ctx context.Context, h *host, version string, arguments ...string) error {
	body := strings.Repeat("curl ", 1000)
	arguments = append(arguments, "--data-binary", "@-", h.url(portWeb, "/echo"))
	return runCurl(ctx, body, body, "\nHTTP/"+version, arguments...)
}

// runCurl expects what curl prints, the version of HTTP last, to begin and end
// with these texts.
func runCurl(ctx context.Context, body, prefix, suffix string, arguments ...string) error {
	arguments = append(arguments, "--silent", "--show-error", "--fail", "--noproxy", "*", "--write-out", "\nHTTP/%{http_version}")
	command := exec.CommandContext(ctx, "curl", arguments...)
	command.Stdin = strings.NewReader(body)
	var failure strings.Builder
	command.Stderr = &failure
	output, err := command.Output()
	if err != nil {
		return fmt.Errorf("curl: %w: %s", err, failure.String())
	}
	if printed := string(output); !strings.HasPrefix(printed, prefix) || !strings.HasSuffix(printed, suffix) {
		return fmt.Errorf("curl printed %d bytes, %.40q … %q", len(output), printed, printed[max(0, len(printed)-20):])
	}
	return nil
}
