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
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// binRequest is a request to go-httpbin.
type binRequest struct {
	method, target, body string
	// chunked is true when the body is sent in chunks.
	chunked bool
	fields  map[string]string
}

// binRequests have the same response each time.
var binRequests = []binRequest{
	{method: "GET", target: "/get?a=b&a=%20c&d"},
	{method: "HEAD", target: "/head"},
	{method: "POST", target: "/post", body: "a=b&c=d", fields: map[string]string{"Content-Type": "application/x-www-form-urlencoded"}},
	{method: "POST", target: "/anything/a/../b", body: "in chunks", chunked: true},
	{method: "PUT", target: "/put", body: strings.Repeat("0123456789abcdef", 1<<14)},
	{method: "GET", target: "/status/204"},
	{method: "POST", target: "/status/418", body: "tea"},
	{method: "GET", target: "/status/503"},
	{method: "GET", target: "/delay/2s"},
	{method: "GET", target: "/drip?duration=2s&numbytes=8&code=202&delay=200ms"},
	{method: "GET", target: "/redirect/3"},
	{method: "GET", target: "/redirect-to?url=http%3A%2F%2Felsewhere.test%2F&status_code=307"},
	{method: "GET", target: "/gzip"},
	{method: "GET", target: "/stream/20"},
	{method: "GET", target: "/stream-bytes/100000?seed=1&chunk_size=999"},
	{method: "GET", target: "/range/2048", fields: map[string]string{"Range": "bytes=100-199"}},
	{method: "GET", target: "/sse?count=4&duration=1s&delay=0"},
	{method: "GET", target: "/trailers?x-sum=1&x-other=2"},
}

// binResponse is a response of go-httpbin as the client sees it.
type binResponse struct {
	protocol, status string
	header, trailer  http.Header
	encoding         []string
	length           int64
	body             string
	err              error
}

// binTimestamp matches the part that differs between two responses.
var binTimestamp = regexp.MustCompile(`"timestamp": ?\d+`)

// send sends the request on a new connection.
func (r *binRequest) send(ctx context.Context, h *host) (result binResponse) {
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
	}
	if r.chunked {
		body = io.MultiReader(body)
	}
	request, err := http.NewRequestWithContext(ctx, r.method, h.url(portBin, r.target), body)
	if err != nil {
		return binResponse{err: err}
	}
	// The address must not be part of the response.
	request.Host = "bin.test"
	request.Header.Set("X-Forwarded-For", "192.0.2.7")
	for name, value := range r.fields {
		request.Header.Set(name, value)
	}
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return binResponse{err: err}
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	header, trailer := response.Header, response.Trailer
	header.Del("Date")
	for _, fields := range []http.Header{header, trailer} {
		if fields.Get("Server-Timing") != "" {
			fields.Set("Server-Timing", "some time")
		}
	}
	return binResponse{
		protocol: response.Proto, status: response.Status, header: header, trailer: trailer, encoding: response.TransferEncoding,
		length: response.ContentLength, body: binTimestamp.ReplaceAllString(string(got), ""), err: err,
	}
}

// sendBin sends all requests at the same time, and a message over a WebSocket.
func sendBin(ctx context.Context, h *host) (responses []binResponse, webSocket error) {
	ctx, cancel := context.WithTimeout(ctx, conversationTimeout)
	defer cancel()
	responses = make([]binResponse, len(binRequests))
	var ended sync.WaitGroup
	for i := range binRequests {
		ended.Go(func() { responses[i] = binRequests[i].send(ctx, h) })
	}
	ended.Go(func() {
		webSocket = webSocketEcho(ctx, "ws://"+h.at(portBin)+"/websocket/echo?max_message_size=65536&max_fragment_size=65536", 16<<10)
	})
	ended.Wait()
	return responses, webSocket
}

// TestThirdPartyApplicationRespondsAsWithoutAResolver sends requests to go-httpbin at
// zero, then to its pod, and then through the resolvers while it is awake.
func TestThirdPartyApplicationRespondsAsWithoutAResolver(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const podPort = 8087
	app := s.asleep(cluster.ApplicationOptions{
		Arguments: []string{"-protocols", "-start-delay=2s"},
		ServicePorts: []corev1.ServicePort{
			{Name: "http", Port: portHealth, TargetPort: intstr.FromString("http")},
			{Name: "bin", Port: portBin, TargetPort: intstr.FromInt32(podPort)},
		},
		Spec: func(spec *v1alpha1.ElastiServiceSpec) {
			spec.Proxy = &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways}
		},
	})
	hosts := map[string]*host{"at zero": {at: func(port int) string { return net.JoinHostPort(app.Address, strconv.Itoa(port)) }}}
	responses := map[string][]binResponse{}
	sendTo := func(name string) {
		var err error
		if responses[name], err = sendBin(s.ctx, hosts[name]); err != nil {
			t.Errorf("%s, a WebSocket: %v", name, err)
		}
	}
	sendTo("at zero")
	pod := s.awaitPods(app, 1)[0].Status.PodIP
	hosts["the pod"] = &host{at: func(int) string { return net.JoinHostPort(pod, strconv.Itoa(podPort)) }}
	sendTo("the pod")
	for i, resolver := range s.resolversOf(app) {
		name := fmt.Sprintf("awake, resolver %d", i)
		hosts[name] = resolver
		sendTo(name)
	}
	for i, request := range binRequests {
		want := responses["the pod"][i]
		if want.err != nil {
			t.Errorf("%s %s of the pod: %v", request.method, request.target, want.err)
			continue
		}
		for name := range responses {
			if got := responses[name][i]; !reflect.DeepEqual(got, want) {
				t.Errorf("%s %s, %s, gets\n%.2000v, of the pod\n%.2000v", request.method, request.target, name, got, want)
			}
		}
	}
}
