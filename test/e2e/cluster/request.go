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

package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ResponseHeader is the header of a response that a resolver made itself, and
// holds the reason.
const ResponseHeader = "X-Elasti-Answer"

// Headers with which the application tells about itself; see test/application.
const (
	podHeader       = "Application-Pod"
	peerHeader      = "Application-Peer"
	acceptingHeader = "Application-Accepting-Since"
	receivedHeader  = "Application-Received-At"
	inFlightHeader  = "Application-In-Flight"
)

// maxResponseBytes bounds how much of a body is read.
const maxResponseBytes = 1 << 20

// Response is the response to one HTTP request.
type Response struct {
	// Status code and Body of the response.
	Status int
	Body   string
	Header http.Header
	// SentAt is when the client started, CompletedAt when it had the whole body.
	SentAt, CompletedAt time.Time
}

// FromApplication returns an error unless the response has the status 200 and comes
// from a pod of the application, directly or through a resolver. Any server may
// respond with that status, but only the application has the pod's name.
func (a *Response) FromApplication(name string) error {
	pod, reason := a.Header.Get(podHeader), a.Header.Get(ResponseHeader)
	switch {
	case reason != "":
		return fmt.Errorf("a resolver responded itself (%s), status %d: %.200s", reason, a.Status, a.Body)
	case pod == "":
		return fmt.Errorf("something other than application %s responded, status %d: %.200s", name, a.Status, a.Body)
	case !strings.HasPrefix(pod, name+"-"):
		return fmt.Errorf("pod %s responded, which is not of application %s, status %d: %.200s", pod, name, a.Status, a.Body)
	case a.Status != http.StatusOK:
		return fmt.Errorf("pod %s responded with status %d: %.200s", pod, a.Status, a.Body)
	}
	return nil
}

// PeerAddress returns the IP address from which the application received the request.
// It is empty when the response is not from the application.
func (a *Response) PeerAddress() string {
	host, _, err := net.SplitHostPort(a.Header.Get(peerHeader))
	if err != nil {
		return ""
	}
	return host
}

// AcceptingSince is when the application started to accept connections.
func (a *Response) AcceptingSince() (time.Time, error) { return a.time(acceptingHeader) }

// ReceivedAt is when the application had read the headers of the request.
func (a *Response) ReceivedAt() (time.Time, error) { return a.time(receivedHeader) }

// InFlight is how many requests the application had with this one.
func (a *Response) InFlight() (int, error) {
	number, err := strconv.Atoi(a.Header.Get(inFlightHeader))
	if err != nil {
		return 0, fmt.Errorf("the application's header %s: %w", inFlightHeader, err)
	}
	return number, nil
}

func (a *Response) time(header string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339Nano, a.Header.Get(header))
	if err != nil {
		return time.Time{}, fmt.Errorf("the application's header %s: %w", header, err)
	}
	return at, nil
}

// Get sends one GET request over a connection of its own.
func Get(ctx context.Context, url string) (*Response, error) {
	transport := &http.Transport{DisableKeepAlives: true}
	return GetWith(ctx, &http.Client{Transport: transport}, url)
}

// GetWith sends one GET request with the client.
func GetWith(ctx context.Context, client *http.Client, url string) (*Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return Do(client, request)
}

// Do sends one request with the client.
func Do(client *http.Client, request *http.Request) (*Response, error) {
	got := &Response{SentAt: time.Now()}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponseBytes))
	if err != nil {
		return nil, fmt.Errorf("reading the response of %s: %w", request.URL, err)
	}
	got.CompletedAt = time.Now()
	got.Status, got.Header, got.Body = response.StatusCode, response.Header, string(body)
	return got, nil
}
