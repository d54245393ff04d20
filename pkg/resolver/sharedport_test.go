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
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// sharedPort is a cluster with the sleeping service cart and the awake service till
// behind one port.
type sharedPort struct {
	*cluster
	port    int32
	address string
}

func newSharedPort(t *testing.T, limits func(*Limits)) *sharedPort {
	t.Helper()
	port := freePort(t)
	cart, till := elastiService("cart", port), elastiService("till", port)
	cart.Spec.Proxy = &v1alpha1.ProxySpec{MaxPending: ptr.To[int32](1000)}
	s := &sharedPort{port: port, address: fmt.Sprintf("127.0.0.1:%d", port)}
	s.cluster = newCluster(t, func(o *Options) {
		o.SharedPort, o.ClusterDomain = port, "cluster.local"
		limits(&o.Limits)
	}, cart, till)
	s.apply(slice(till, true, resolvertest.ListenHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "till")
	})))
	conn := s.dial(t)
	if got := s.get(t, conn, "till"); got != "till" {
		t.Fatalf("got %s", got)
	}
	conn.Close()
	s.open(0)
	return s
}

// open waits until so many connections are open.
func (s *sharedPort) open(n int) {
	s.t.Helper()
	s.eventually(func() bool { return s.metric("elasti_resolver_connections") == float64(n) })
}

func (s *sharedPort) dial(t *testing.T) *net.TCPConn {
	t.Helper()
	return resolvertest.Dial(t, s.address)
}

// requestFor returns a request for a service.
func requestFor(service string) string {
	return fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s.shop.svc\r\n\r\n", service)
}

// send sends a request for a service.
func (s *sharedPort) send(t *testing.T, conn net.Conn, service string) {
	t.Helper()
	if _, err := io.WriteString(conn, requestFor(service)); err != nil {
		t.Fatal(err)
	}
}

// responded reports whether a client has got anything, or its connection has ended.
func responded(conn net.Conn) bool {
	_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := conn.Read(make([]byte, 1))
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// get sends a request for a service on a connection, and returns the body of the
// response, or the reason why the resolver has responded.
func (s *sharedPort) get(t *testing.T, conn net.Conn, service string) string {
	t.Helper()
	s.send(t, conn, service)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	if reason := response.Header.Get("X-Elasti-Answer"); reason != "" {
		return fmt.Sprintf("%d %s", response.StatusCode, reason)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestServicesOnTheSharedPortHaveAnAccountEach has the requests for one service take
// all that one service may, of each limit: the other one is reached all the same, on
// new connections and on one that was open.
func TestServicesOnTheSharedPortHaveAnAccountEach(t *testing.T) {
	for name, test := range map[string]struct {
		limits           func(*Limits)
		rejection, reply string
	}{
		"connections of the process": {func(l *Limits) { l.Connections = 20 }, "service_limit", "503 TooManyConnections"},
		"connections of a service":   {func(l *Limits) { l.ConnectionsPerService = 4 }, "service_limit", "503 TooManyConnections"},
		"bytes of a service":         {func(l *Limits) { l.HeldBytesPerService = 96 << 10 }, "memory_limit", "503 TooManyBytes"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSharedPort(t, test.limits)
			kept := s.dial(t)
			if got := s.get(t, kept, "till"); got != "till" {
				t.Fatalf("the connection that is kept gets %s", got)
			}
			held := func() float64 { return s.gauge("elasti_resolver_queued_count", "source", "cart") }
			rejected := func() float64 {
				return s.counter("elasti_resolver_connections_rejected_total", "reason", test.rejection)
			}
			for opened := 0; rejected() == 0; opened++ {
				if opened == 100 {
					t.Fatalf("%v requests are held, and no connection is rejected", held())
				}
				conn, before := s.dial(t), held()
				s.send(t, conn, "cart")
				s.eventually(func() bool { return held() > before || responded(conn) })
			}
			if held() < 2 {
				t.Fatalf("%v requests are held", held())
			}
			for _, conn := range []net.Conn{kept, s.dial(t), s.dial(t)} {
				if got := s.get(t, conn, "till"); got != "till" {
					t.Errorf("a request for the other service gets %s", got)
				}
			}
			// As on a port of the service.
			conn := s.dial(t)
			s.send(t, conn, "cart")
			resolvertest.AwaitReset(t, conn)
			// A connection to another service goes on being one.
			if got := s.get(t, kept, "cart"); got != test.reply {
				t.Errorf("a request on a connection of another service gets %s, want %s", got, test.reply)
			}
			if got := s.get(t, kept, "till"); got != "till" {
				t.Errorf("the connection that is kept gets %s afterwards", got)
			}
		})
	}
}

// TestConnectionToTheSharedPortIsOneToTheServiceOfItsRequest lets a service have one
// connection.
func TestConnectionToTheSharedPortIsOneToTheServiceOfItsRequest(t *testing.T) {
	s := newSharedPort(t, func(l *Limits) { l.ConnectionsPerService = 1 })
	cart, till := s.dial(t), s.dial(t)
	s.send(t, cart, "cart")
	s.eventually(func() bool { return s.gauge("elasti_resolver_queued_count", "source", "cart") == 1 })
	for range 3 {
		if got := s.get(t, till, "till"); got != "till" {
			t.Fatalf("got %s", got)
		}
		if got := s.get(t, till, "cart"); got != "503 TooManyConnections" {
			t.Fatalf("got %s where another connection is one to the service", got)
		}
		if got := s.get(t, till, "unknown"); got != "421 UnknownHost" {
			t.Fatalf("got %s", got)
		}
	}
	if err := cart.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	cart.Close()
	s.open(1)
	// The connection counts for cart now, so that till has room for another one.
	s.send(t, till, "cart")
	s.eventually(func() bool { return s.gauge("elasti_resolver_queued_count", "source", "cart") == 1 })
	if got := s.get(t, s.dial(t), "till"); got != "till" {
		t.Errorf("got %s", got)
	}
}

// TestSilentConnectionsToTheSharedPortKeepNoClientOut opens many more than there may be.
func TestSilentConnectionsToTheSharedPortKeepNoClientOut(t *testing.T) {
	s := newSharedPort(t, func(l *Limits) { l.Connections = 20 })
	rejected := func() float64 {
		return s.counter("elasti_resolver_connections_rejected_total", "reason", "service_limit")
	}
	var silent []net.Conn
	for i := range 60 {
		silent = append(silent, s.dial(t))
		// Connections that are accepted at the same time are counted in any order.
		s.eventually(func() bool { return rejected() >= float64(i-9) })
		s.open(min(i+1, 10))
	}
	for range 5 {
		if got := s.get(t, s.dial(t), "till"); got != "till" {
			t.Errorf("a request gets %s", got)
		}
	}
	resolvertest.AwaitReset(t, silent[0])
}

// TestHTTP2ConnectionToTheSharedPortCountsForItsService does what browsers and gRPC do.
func TestHTTP2ConnectionToTheSharedPortCountsForItsService(t *testing.T) {
	s := newSharedPort(t, func(l *Limits) { l.ConnectionsPerService = 1 })
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	query := func(transport *http.Transport, service string) (int, error) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.address, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = service + ".shop.svc"
		response, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(request)
		if err != nil {
			return 0, err
		}
		response.Body.Close()
		return response.StatusCode, nil
	}
	for range 2 {
		if status, err := query(transport, "till"); status != http.StatusOK {
			t.Fatalf("got %d, %v", status, err)
		}
	}
	other := transport.Clone()
	defer other.CloseIdleConnections()
	if status, err := query(other, "till"); err == nil {
		t.Errorf("a second connection gets %d, want an error", status)
	}
	if got := s.counter("elasti_resolver_connections_rejected_total", "reason", "service_limit"); got == 0 {
		t.Error("no connection is counted as rejected")
	}
	transport.CloseIdleConnections()
	s.eventually(func() bool { status, _ := query(other, "till"); return status == http.StatusOK })
}

// TestNothingIsLeftOfConnectionsToTheSharedPort ends them in every state.
func TestNothingIsLeftOfConnectionsToTheSharedPort(t *testing.T) {
	s := newSharedPort(t, func(l *Limits) { l.ConnectionsPerService = 3 })
	for range 20 {
		for _, service := range []string{"", "cart", "till", "unknown"} {
			conn := s.dial(t)
			// It has ended already where there was no room.
			if service != "" {
				_, _ = io.WriteString(conn, requestFor(service)+requestFor("till"))
			}
			_ = conn.SetLinger(0)
			conn.Close()
		}
	}
	s.open(0)
	s.eventually(func() bool { return s.metric("elasti_resolver_held_bytes") == 0 })
}
