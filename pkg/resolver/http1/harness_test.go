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
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/fallback"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a server with one service, on loopback.
type fixture struct {
	t       testing.TB
	service *service.Service
	server  *Server
	address string
	budget  *memory.Budget

	mu      sync.Mutex
	records []accesslog.Record
}

func newFixture(tb testing.TB, change func(*service.Config)) *fixture {
	tb.Helper()
	return newFixtureWith(tb, change, func(*Options) {})
}

// clientReadBuffer is how much of what a client sends fits into the kernel of the resolver,
// in bytes. How large that is by itself, and so whether the end of a client is seen behind
// what is not read, differs between kernels.
const clientReadBuffer = 1 << 20

// newFixtureWith is newFixture with other options of the server.
func newFixtureWith(tb testing.TB, change func(*service.Config), tune func(*Options)) *fixture {
	tb.Helper()
	config := &service.Config{
		Mode:        v1alpha1.ModeProxy,
		HoldTimeout: 30 * time.Second,
		Limits:      hold.Limits{MaxPending: 100},
	}
	if change != nil {
		change(config)
	}
	f := &fixture{t: tb, budget: memory.NewBudget(memory.Limits{Process: 1 << 30})}
	f.service = service.New(service.Options{
		Namespace: "shop", Name: "cart", PublicService: "cart",
		Config: config, Budget: f.budget, Logger: klog.Background(),
		Finish: func(record *accesslog.Record) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.records = append(f.records, *record)
		},
	})
	options := Options{
		Fallback: &fallback.Policy{PassiveUserAgents: []string{"kube-probe/"}}, IdleTimeout: time.Minute, HeaderTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	tune(&options)
	f.server = New(options)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	f.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f.server.Run(ctx) })
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if err := conn.(*net.TCPConn).SetReadBuffer(clientReadBuffer); err != nil {
				return
			}
			running.Go(func() {
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				defer stop()
				ended := make(chan struct{})
				f.server.Serve(ctx, conn.(*net.TCPConn), nil, f.service.Memory(), destination.Fixed(f.service, service.Port{Number: 80}), func() { close(ended) })
				<-ended
			})
		}
	})
	tb.Cleanup(func() {
		listener.Close()
		f.service.Close()
		cancel()
		running.Wait()
	})
	return f
}

// pods makes pods at these addresses the ready ones.
func (f *fixture) pods(addresses ...string) {
	f.service.SetPods(podsAt(addresses...))
}

func podsAt(addresses ...string) []endpoint.Description {
	var pods []endpoint.Description
	for _, address := range addresses {
		at := netip.MustParseAddrPort(address)
		pods = append(pods, endpoint.Description{
			ID: address, Name: address, Addresses: []netip.Addr{at.Addr()},
			Ports: map[string]uint16{"": at.Port()}, Ready: true,
		})
	}
	return pods
}

// client opens a connection to the server.
func (f *fixture) client() *net.TCPConn {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.address)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		f.t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// record waits for the nth record.
func (f *fixture) record(n int) accesslog.Record {
	f.t.Helper()
	var found accesslog.Record
	eventually(f.t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.records) < n {
			return false
		}
		found = f.records[n-1]
		return true
	})
	return found
}

func (f *fixture) held(n int) {
	f.t.Helper()
	eventually(f.t, func() bool { return f.service.Queue().Held() == n })
}

func (f *fixture) inFlight(n int) {
	f.t.Helper()
	eventually(f.t, func() bool { return f.service.Queue().InFlight() == n })
}

func eventually(tb testing.TB, condition func() bool) {
	tb.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			tb.Fatal("the condition did not come true in time")
		}
	}
}

// rawPod accepts connections and hands them to serve, which owns them.
func rawPod(tb testing.TB, serve func(*net.TCPConn)) string {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				serve(conn.(*net.TCPConn))
			})
		}
	})
	tb.Cleanup(func() {
		listener.Close()
		running.Wait()
	})
	return listener.Addr().String()
}

// scriptPod responds on each connection with a fixed text once it has read the
// wanted bytes, and fails the test when it reads others.
func scriptPod(tb testing.TB, want, reply string) string {
	tb.Helper()
	return rawPod(tb, func(conn *net.TCPConn) {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(conn, got); err != nil {
			tb.Errorf("the pod read %q: %v", got, err)
			return
		}
		if string(got) != want {
			tb.Errorf("the pod read\n%q, want\n%q", got, want)
		}
		if _, err := io.WriteString(conn, reply); err != nil {
			tb.Errorf("the pod cannot respond: %v", err)
		}
	})
}

// httpPod serves a handler with net/http.
func httpPod(tb testing.TB, handler http.HandlerFunc) string {
	tb.Helper()
	return httpPodWith(tb, handler, nil)
}

// httpPodWith is httpPod that reports what becomes of its connections.
func httpPodWith(tb testing.TB, handler http.HandlerFunc, state func(net.Conn, http.ConnState)) string {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := &http.Server{Handler: handler, ConnState: state}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	tb.Cleanup(func() {
		server.Close()
		running.Wait()
	})
	return listener.Addr().String()
}

func send(tb testing.TB, conn net.Conn, text string) {
	tb.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		tb.Fatalf("sending: %v", err)
	}
}

func readAll(tb testing.TB, conn net.Conn) string {
	tb.Helper()
	data, err := io.ReadAll(conn)
	if err != nil {
		tb.Fatalf("reading: %v (after %q)", err, data)
	}
	return string(data)
}

func expect(tb testing.TB, conn net.Conn, want string) {
	tb.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		tb.Fatalf("read %q (%v), want %q", got[:n], err, want)
	}
}

// readResponse reads one response and its body.
func readResponse(tb testing.TB, reader *bufio.Reader, method string) (*http.Response, string) {
	tb.Helper()
	response, err := http.ReadResponse(reader, &http.Request{Method: method})
	if err != nil {
		tb.Fatalf("reading the response: %v", err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		tb.Fatalf("reading the body: %v", err)
	}
	return response, string(body)
}

func get(path string, fields ...string) string {
	return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: cart\r\n%s\r\n", path, strings.Join(append(fields, ""), "\r\n"))
}
