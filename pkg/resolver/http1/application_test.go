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
	"bytes"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/mccutchen/go-httpbin/v2/httpbin"
)

// applicationRequest is a request to an application that is not of this project.
type applicationRequest struct {
	method, target, body string
	// chunked is true when the body is sent in chunks.
	chunked bool
	fields  map[string]string
}

var long = strings.Repeat("0123456789abcdef", 3*spliceBytes/16)

// applicationRequests are one for each thing that go-httpbin can do, and whose
// response is the same each time.
var applicationRequests = []applicationRequest{
	{method: "GET", target: "/get?a=b&a=%20c&d"},
	{method: "GET", target: "/get", fields: map[string]string{"Accept": "text/html", "X-Odd": " a , b ", "Connection": "X-Odd"}},
	{method: "HEAD", target: "/head"},
	{method: "OPTIONS", target: "/get"},
	{method: "POST", target: "/get", body: "rejected"},
	{method: "POST", target: "/post", body: `{"a": [1, 2]}`, fields: map[string]string{"Content-Type": "application/json"}},
	{method: "POST", target: "/post", body: "a=b&c=d", fields: map[string]string{"Content-Type": "application/x-www-form-urlencoded"}},
	{method: "POST", target: "/post", body: "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--x--\r\n", fields: map[string]string{"Content-Type": "multipart/form-data; boundary=x"}},
	{method: "POST", target: "/anything/a/../b", body: "in chunks", chunked: true},
	{method: "POST", target: "/post", body: "after a request to continue", fields: map[string]string{"Expect": "100-continue"}},
	{method: "PUT", target: "/put", body: long},
	{method: "PUT", target: "/upload", body: long, chunked: true},
	{method: "PATCH", target: "/patch", body: "patch"},
	{method: "DELETE", target: "/delete", body: "a body"},
	{method: "GET", target: "/stream/20"},
	{method: "GET", target: "/stream-bytes/100000?seed=1&chunk_size=999"},
	{method: "GET", target: "/bytes/100000?seed=2"},
	{method: "GET", target: "/drip?duration=200ms&numbytes=8&code=202&delay=50ms"},
	{method: "GET", target: "/range/2048?duration=0&chunk_size=100"},
	{method: "GET", target: "/range/2048", fields: map[string]string{"Range": "bytes=100-199"}},
	{method: "GET", target: "/range/2048", fields: map[string]string{"Range": "bytes=3000-"}},
	{method: "GET", target: "/redirect/3"},
	{method: "GET", target: "/absolute-redirect/2"},
	{method: "GET", target: "/relative-redirect/2"},
	{method: "GET", target: "/redirect-to?url=http%3A%2F%2Felsewhere.test%2F&status_code=307"},
	{method: "GET", target: "/gzip"},
	{method: "GET", target: "/deflate"},
	{method: "GET", target: "/sse?count=4&duration=100ms&delay=0"},
	{method: "GET", target: "/trailers?x-sum=1&x-other=2"},
	{method: "GET", target: "/delay/150ms"},
	{method: "GET", target: "/status/200"},
	{method: "GET", target: "/status/204"},
	{method: "GET", target: "/status/304"},
	{method: "GET", target: "/status/401"},
	{method: "GET", target: "/status/404"},
	{method: "POST", target: "/status/418", body: "tea"},
	{method: "GET", target: "/status/500"},
	{method: "GET", target: "/status/503"},
	{method: "GET", target: "/status/599"},
	{method: "GET", target: "/cache", fields: map[string]string{"If-None-Match": "a"}},
	{method: "GET", target: "/etag/abc", fields: map[string]string{"If-None-Match": "abc"}},
	{method: "GET", target: "/response-headers?X-A=1&X-A=2&Keep=%C3%A4"},
	{method: "GET", target: "/cookies/set?a=b"},
	{method: "GET", target: "/basic-auth/user/password"},
	{method: "GET", target: "/image/png"},
	{method: "GET", target: "/encoding/utf8"},
	{method: "GET", target: "/dump/request"},
	{method: "GET", target: "/nowhere"},
}

// applicationResponse is what a client sees of a response.
type applicationResponse struct {
	proto, status   string
	header, trailer http.Header
	encoding        []string
	length          int64
	body            string
}

// changing is what differs from one response to the next.
var changing = regexp.MustCompile(`"timestamp": ?\d+`)

// send sends a request to an address and returns what comes back.
func (r *applicationRequest) send(client *http.Client, address string) (applicationResponse, error) {
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
	}
	if r.chunked {
		body = io.MultiReader(body)
	}
	request, err := http.NewRequest(r.method, "http://"+address+r.target, body)
	if err != nil {
		return applicationResponse{}, err
	}
	// The address is not a part of the response.
	request.Host = "bin.test"
	request.Header.Set("X-Forwarded-For", "192.0.2.7")
	for name, value := range r.fields {
		request.Header.Set(name, value)
	}
	response, err := client.Do(request)
	if err != nil {
		return applicationResponse{}, err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		return applicationResponse{}, fmt.Errorf("reading the body: %w", err)
	}
	header, trailer := endToEnd(response.Header), response.Trailer
	header.Del("Date")
	for _, fields := range []http.Header{header, trailer} {
		if fields.Get("Server-Timing") != "" {
			fields.Set("Server-Timing", "some time")
		}
	}
	return applicationResponse{
		proto: response.Proto, status: response.Status, header: header, trailer: trailer, encoding: response.TransferEncoding,
		length: response.ContentLength, body: changing.ReplaceAllString(string(got), ""),
	}, nil
}

// newApplicationClient returns a client that shows what it gets as it is.
func newApplicationClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableCompression: true, ExpectContinueTimeout: 20 * time.Second}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport: transport, Timeout: 20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// An application that was not written for this, and its clients, see of each other
// what they see without a resolver, be it awake or woken by the request.
func TestApplicationOfOthers(t *testing.T) {
	address := httpPod(t, httpbin.New().ServeHTTP)
	direct := newApplicationClient(t)
	awake, through := newFixture(t, nil), newApplicationClient(t)
	awake.pods(address)
	for i, request := range applicationRequests {
		t.Run(fmt.Sprintf("%d %s %s", i, request.method, request.target), func(t *testing.T) {
			want, err := request.send(direct, address)
			if err != nil {
				t.Fatalf("without a resolver: %v", err)
			}
			// All on one connection.
			got, err := request.send(through, awake.address)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("awake, the client sees\n%.2000v (%v), want\n%.2000v", got, err, want)
			}
			asleep, client := newFixture(t, nil), newApplicationClient(t)
			defer client.CloseIdleConnections()
			done := make(chan struct{})
			go func() {
				defer close(done)
				got, err = request.send(client, asleep.address)
			}()
			asleep.held(1)
			asleep.pods(address)
			if <-done; err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("woken, the client sees\n%.2000v (%v), want\n%.2000v", got, err, want)
			}
		})
	}
}

func TestWebSocketOfOthers(t *testing.T) {
	address := httpPod(t, httpbin.New().ServeHTTP)
	for _, awake := range []bool{true, false} {
		t.Run(fmt.Sprintf("awake %t", awake), func(t *testing.T) {
			f := newFixture(t, nil)
			if awake {
				f.pods(address)
			} else {
				go func() {
					f.held(1)
					f.pods(address)
				}()
			}
			conn, response, err := websocket.DefaultDialer.DialContext(t.Context(), "ws://"+f.address+"/websocket/echo?max_message_size=65536&max_fragment_size=65536", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if response.StatusCode != http.StatusSwitchingProtocols {
				t.Errorf("the status is %d", response.StatusCode)
			}
			for kind, message := range map[int][]byte{websocket.TextMessage: []byte("hello"), websocket.BinaryMessage: []byte(long[:40_000])} {
				if err := conn.WriteMessage(kind, message); err != nil {
					t.Fatal(err)
				}
				gotKind, got, err := conn.ReadMessage()
				if err != nil || gotKind != kind || !bytes.Equal(got, message) {
					t.Fatalf("the echo of %d bytes has %d bytes of kind %d (%v)", len(message), len(got), gotKind, err)
				}
			}
			if err := conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")); err != nil {
				t.Fatal(err)
			}
			if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
				t.Errorf("it ends with %v", err)
			}
		})
	}
}
