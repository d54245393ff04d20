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
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// readHeaderOf reads up to the end of a header.
func readHeaderOf(tb testing.TB, reader *bufio.Reader) {
	tb.Helper()
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			tb.Errorf("the pod reads the header: %v", err)
			return
		}
		if line == "\r\n" {
			return
		}
	}
}

func TestClientThatStopsInTheMiddleOfABodyIsNotified(t *testing.T) {
	for name, begin := range map[string]string{
		"sized":          "Content-Length: 10\r\n\r\n12345",
		"chunked":        "Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n",
		"through splice": fmt.Sprintf("Content-Length: %d\r\n\r\n", 4*spliceBytes) + strings.Repeat("x", spliceBytes),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureWith(t, nil, func(options *Options) { options.BodyTimeout = 100 * time.Millisecond })
			ended := make(chan struct{})
			f.pods(rawPod(t, func(conn *net.TCPConn) {
				// It does not respond before it has the whole body.
				_, _ = io.Copy(io.Discard, conn)
				close(ended)
			}))
			client := f.client()
			send(t, client, "POST / HTTP/1.1\r\nHost: cart\r\n"+begin)
			response, body := readResponse(t, bufio.NewReader(client), http.MethodPost)
			if response.StatusCode != http.StatusRequestTimeout || !strings.Contains(body, "--body-timeout") {
				t.Errorf("the response is %d %s", response.StatusCode, body)
			}
			if record := f.record(1); record.Status != http.StatusRequestTimeout || record.Reason != "BadRequest" {
				t.Errorf("the record is %+v", record)
			}
			// The pod is not kept busy.
			<-ended
			f.inFlight(0)
		})
	}
}

// A client that goes on, however slowly, and a pod that reads slowly are no
// reason to end a body.
func TestBodyTimeoutIsForSilenceAlone(t *testing.T) {
	const timeout = 1500 * time.Millisecond
	f := newFixtureWith(t, nil, func(options *Options) { options.BodyTimeout = timeout })
	const size = 8 << 20
	read := make(chan struct{})
	f.pods(rawPod(t, func(conn *net.TCPConn) {
		reader := bufio.NewReader(conn)
		readHeaderOf(t, reader)
		<-read
		n, err := io.CopyN(io.Discard, reader, size)
		if err != nil {
			t.Errorf("the pod reads %d bytes: %v", n, err)
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	}))
	client := f.client()
	send(t, client, fmt.Sprintf("POST / HTTP/1.1\r\nHost: cart\r\nContent-Length: %d\r\n\r\n", size))
	sent := make(chan error, 1)
	go func() {
		// More than all buffers take, so that it stands still until the pod reads.
		_, err := client.Write(make([]byte, size-4))
		for range 4 {
			if err != nil {
				break
			}
			pause := time.NewTimer(timeout * 4 / 15)
			<-pause.C
			_, err = client.Write([]byte("x"))
		}
		sent <- err
	}()
	// The pod keeps the client waiting for longer than the timeout.
	pause := time.NewTimer(2 * timeout)
	<-pause.C
	close(read)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	response, _ := readResponse(t, bufio.NewReader(client), http.MethodPost)
	if response.StatusCode != http.StatusOK {
		t.Errorf("the response is %d", response.StatusCode)
	}
}

func TestConnectionGoesOnAfterASlowBody(t *testing.T) {
	f := newFixtureWith(t, nil, func(options *Options) { options.BodyTimeout = 2 * time.Second })
	f.pods(httpPod(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprint(w, len(body), err)
	}))
	client := f.client()
	reader := bufio.NewReader(client)
	for range 2 {
		send(t, client, "POST / HTTP/1.1\r\nHost: cart\r\nContent-Length: 2\r\n\r\n1")
		f.inFlight(1)
		send(t, client, "2")
		if response, body := readResponse(t, reader, http.MethodPost); response.StatusCode != http.StatusOK || body != "2 <nil>" {
			t.Fatalf("the response is %d %s", response.StatusCode, body)
		}
		// Silence between requests is not a slow body.
		pause := time.NewTimer(2200 * time.Millisecond)
		<-pause.C
	}
}

// TestTrailersAreNotKept checks that parsing trailers allocates nothing, however long a
// line of them is, and however it is cut.
func TestTrailersAreNotKept(t *testing.T) {
	line := []byte("0\r\nX: " + strings.Repeat("x", maxTrailers/2))
	if allocated := testing.AllocsPerRun(10, func() {
		var scanner chunkScanner
		for part := range slices.Chunk(line, 1000) {
			if n, done, err := scanner.scan(part); n != len(part) || done || err != nil {
				t.Errorf("%d of %d bytes are taken, %v, %v", n, len(part), done, err)
			}
		}
	}); allocated > 0 {
		t.Errorf("a line of the trailers takes %v allocations", allocated)
	}
}
