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

package resolver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// rejected is what a client learns when a limit is reached.
type rejected struct {
	status     int
	retryAfter string
	reason     metav1.StatusReason
	message    string
}

// query sends a request to a port and returns what it learns of a rejection.
func query(t *testing.T, port int32) rejected {
	t.Helper()
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return rejectedBy(t, response)
}

func rejectedBy(t *testing.T, response *http.Response) rejected {
	t.Helper()
	var status metav1.Status
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
		t.Fatalf("the body of the response: %v", err)
	}
	return rejected{response.StatusCode, response.Header.Get("Retry-After"), status.Reason, status.Message}
}

// holdOne opens a connection whose request is held, and waits for that.
func (c *cluster) holdOne(port int32, held float64) net.Conn {
	c.t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: cart\r\n\r\n"); err != nil {
		c.t.Fatal(err)
	}
	c.eventually(func() bool { return c.metric("elasti_resolver_queued_count") == held })
	return conn
}

func TestMaxPendingIsReportedInTheProtocolOfTheClient(t *testing.T) {
	port := freePort(t)
	es := elastiService("cart", port)
	es.Spec.Proxy = &v1alpha1.ProxySpec{MaxPending: ptr.To[int32](1)}
	c := newCluster(t, nil, es)
	first := c.holdOne(port, 1)

	if got := query(t, port); got.status != http.StatusServiceUnavailable || got.retryAfter == "" || got.reason != "TooManyPending" {
		t.Errorf("HTTP/1.1 gets %+v", got)
	}
	conn, err := grpc.NewClient(fmt.Sprintf("passthrough:///127.0.0.1:%d", port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	if got := status.Convert(err); got.Code() != codes.ResourceExhausted || got.Message() == "" {
		t.Errorf("gRPC gets %v", err)
	}
	stream, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := stream.Write([]byte{0, 1, 2}); err != nil {
		t.Fatal(err)
	}
	if n, err := stream.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a byte stream reads %d bytes, %v, want a reset", n, err)
	}

	// A client that leaves frees its place at once, and the next one has it.
	first.Close()
	c.eventually(func() bool { return c.metric("elasti_resolver_queued_count") == 0 })
	c.holdOne(port, 1)
}

// sendLarge sends a request whose header section has so many bytes.
func (c *cluster) sendLarge(port int32, bytes int) net.Conn {
	c.t.Helper()
	conn := resolvertest.Dial(c.t, fmt.Sprintf("127.0.0.1:%d", port))
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: cart\r\nX-Large: %s\r\n\r\n", strings.Repeat("x", bytes)); err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// TestBytesAreBoundedOverAllServices lets one service fill up what the resolver
// may hold. A service that holds less gets its room from it.
func TestBytesAreBoundedOverAllServices(t *testing.T) {
	flooded, small := freePort(t), freePort(t)
	c := newCluster(t, func(o *Options) { o.Limits.HeldBytes = 160 << 10 }, elastiService("cart", flooded), elastiService("till", small))
	queued := func(service string) float64 { return c.gauge("elasti_resolver_queued_count", "source", service) }
	var clients []net.Conn
	for i := range 3 {
		clients = append(clients, c.sendLarge(flooded, 24<<10))
		c.eventually(func() bool { return queued("cart") == float64(i+1) })
	}
	notified := func(conn net.Conn) {
		t.Helper()
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if got := rejectedBy(t, response); got.status != http.StatusServiceUnavailable || got.retryAfter == "" || got.reason != "TooManyBytes" {
			t.Errorf("the client gets %+v", got)
		}
	}
	c.sendLarge(small, 24<<10)
	notified(clients[2])
	c.eventually(func() bool { return queued("till") == 1 && queued("cart") == 2 })
	// The service that holds most gets no further room.
	notified(c.sendLarge(flooded, 24<<10))
	if queued("till") != 1 || queued("cart") != 2 {
		t.Errorf("%v and %v are held", queued("till"), queued("cart"))
	}
}

func TestHoldTimeoutNamesTheFieldThatSetsIt(t *testing.T) {
	port := freePort(t)
	es := elastiService("cart", port)
	es.Spec.Proxy = &v1alpha1.ProxySpec{HoldTimeoutSeconds: ptr.To[int32](1)}
	c := newCluster(t, nil, es)
	got := query(t, port)
	if got.status != http.StatusGatewayTimeout || got.retryAfter == "" || got.reason != "HoldTimeout" {
		t.Errorf("the client gets %+v", got)
	}
	if c.metric("elasti_resolver_queued_count") != 0 {
		t.Error("something is still held")
	}
}

// TestOutageOfTheAPILosesNothing checks that requests stay held and are retried while no
// server responds to wakes, and that awake services go on.
func TestOutageOfTheAPILosesNothing(t *testing.T) {
	asleep, awake := freePort(t), freePort(t)
	cart, till := elastiService("cart", asleep), elastiService("till", awake)
	till.Status.Mode = v1alpha1.ModeServe
	c := newCluster(t, nil, cart, till)
	c.apply(slice(till, true, pod(t)))
	outage := func(*v1alpha1.WakeRequest) error { return apierrors.NewServiceUnavailable("no server is there") }
	c.wake.Store(&outage)

	conn := c.holdOneOf(asleep, "cart")
	c.eventually(func() bool { return c.wakes.Load() >= 4 })
	if status, _, err := fetch(awake, "/"); status != http.StatusOK {
		t.Errorf("what is awake returns %d, %v", status, err)
	}
	address := pod(t)
	back := func(*v1alpha1.WakeRequest) error {
		go c.apply(slice(cart, true, address))
		return nil
	}
	c.wake.Store(&back)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("the held request gets %d", response.StatusCode)
	}
}

// holdOneOf is holdOne where several services have a series each.
func (c *cluster) holdOneOf(port int32, name string) net.Conn {
	c.t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		c.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", name); err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// TestOneOfTwoUserAgentsIsEnough checks that a request does not wake when one of its
// fields names a health check, in any order.
func TestOneOfTwoUserAgentsIsEnough(t *testing.T) {
	port := freePort(t)
	c := newCluster(t, func(o *Options) { o.PassiveUserAgents = []string{"kube-probe/"} }, elastiService("cart", port))
	for _, agents := range [][2]string{{"kube-probe/1.37", "curl/8"}, {"curl/8", "kube-probe/1.37"}} {
		response, err := rawGet(port, agents)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if got := response.Header.Get("X-Elasti-Answer"); got != "Asleep" {
			t.Errorf("a request of %v gets %q", agents, got)
		}
	}
	if c.wakes.Load() != 0 {
		t.Error("a health check woke the target")
	}
}

// rawGet sends a request with these User-Agent fields.
func rawGet(port int32, agents [2]string) (*http.Response, error) {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: cart\r\nUser-Agent: %s\r\nUser-Agent: %s\r\n\r\n", agents[0], agents[1]); err != nil {
		return nil, err
	}
	return http.ReadResponse(bufio.NewReader(conn), nil)
}
