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
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/metrics"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// counted are connections of the test, which are connected to nothing.
type counted struct {
	*connections
	t      *testing.T
	budget *memory.Budget
}

func newCounted(t *testing.T, process, perService int) *counted {
	t.Helper()
	budget := memory.NewBudget(memory.Limits{Process: 1 << 30})
	return &counted{
		connections: newConnections(connectionLimits{process: func() int { return process }, perService: perService}, budget.Open(nil)),
		t:           t, budget: budget,
	}
}

// fill opens connections to a service until one is rejected, and returns how many
// there are and why.
func (c *counted) fill(service *memory.Account) (opened []*net.TCPConn, why metrics.RejectionReason) {
	for {
		conn := &net.TCPConn{}
		rejection, ok := c.add(conn, service)
		if !ok {
			return opened, rejection
		}
		opened = append(opened, conn)
	}
}

func TestConnectionsOfAServiceLeaveRoomForOthers(t *testing.T) {
	c := newCounted(t, 100, 0)
	first, second, third := c.budget.Open(nil), c.budget.Open(nil), c.budget.Open(nil)
	opened, why := c.fill(first)
	if len(opened) != 80 || why != metrics.RejectedService {
		t.Errorf("one service has %d connections of 100, then %s", len(opened), why)
	}
	if got, _ := c.fill(second); len(got) != 16 {
		t.Errorf("the second has %d of the 20 that are left", len(got))
	}
	if got, _ := c.fill(third); len(got) == 0 {
		t.Error("there is no room for a third")
	}
	for _, conn := range opened {
		c.remove(conn)
	}
	if got := first.Used(); got != 0 || len(c.byService) != 2 {
		t.Errorf("%d bytes are taken by a service without connections, %d services have some", got, len(c.byService))
	}
}

func TestLastConnectionIsForAServiceWithoutOne(t *testing.T) {
	c := newCounted(t, 1, 0)
	if got, why := c.fill(c.budget.Open(nil)); len(got) != 1 || why != metrics.RejectedProcess {
		t.Errorf("%d connections, then %s", len(got), why)
	}
}

func TestConnectionsPerService(t *testing.T) {
	c := newCounted(t, 100, 5)
	for range 2 {
		if got, why := c.fill(c.budget.Open(nil)); len(got) != 5 || why != metrics.RejectedService {
			t.Errorf("%d connections, then %s", len(got), why)
		}
	}
}

func TestConnectionsCostMemory(t *testing.T) {
	c := newCounted(t, 1000, 0)
	c.budget = memory.NewBudget(memory.Limits{Process: 8 * connectionBytes})
	if got, why := c.fill(c.budget.Open(nil)); len(got) != 4 || why != metrics.RejectedMemory {
		t.Errorf("%d connections, then %s", len(got), why)
	}
}

// A service that holds all there is keeps no other from being reached.
func TestConnectionsAreNotRejectedForWhatAnotherServiceHolds(t *testing.T) {
	c := newCounted(t, 1000, 0)
	const all = 64 * connectionBytes
	c.budget = memory.NewBudget(memory.Limits{Process: all})
	var flood *memory.Account
	flood = c.budget.Open(func(bytes int64) int64 {
		flood.Give(bytes)
		return bytes
	})
	if err := flood.Take(all); err != nil {
		t.Fatal(err)
	}
	if rejection, ok := c.add(&net.TCPConn{}, c.budget.Open(nil)); !ok {
		t.Errorf("a connection to another service is rejected: %s", rejection)
	}
}

// A connection over a limit is reset, one that ends makes room, and both can be
// seen.
func TestConnectionOverALimitIsReset(t *testing.T) {
	port := freePort(t)
	c := newCluster(t, func(o *Options) { o.Limits.ConnectionsPerClient = 2 }, elastiService("cart", port))
	address := fmt.Sprintf("127.0.0.1:%d", port)
	first := resolvertest.Dial(t, address)
	resolvertest.Dial(t, address)
	c.eventually(func() bool { return c.metric("elasti_resolver_connections") == 2 })
	// The reset may be faster than the client.
	third, err := net.Dial("tcp", address)
	if err == nil {
		defer third.Close()
		_, err = third.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the third connection gets %v, want a reset", err)
	}
	if got := c.counter("elasti_resolver_connections_rejected_total", "reason", "client_limit"); got != 1 {
		t.Errorf("%v connections are counted as rejected", got)
	}
	// After a plain end, it could still wait for what the server says first.
	if err := errors.Join(first.SetLinger(0), first.Close()); err != nil {
		t.Fatal(err)
	}
	c.eventually(func() bool { return c.metric("elasti_resolver_connections") == 1 })
	again := resolvertest.Dial(t, address)
	if _, err := io.WriteString(again, "GET / HTTP/1.1\r\nHost: cart\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	c.eventually(func() bool { return c.metric("elasti_resolver_queued_count") == 1 })
}

// TestPanicEndsItsConnectionOnly serves a connection with something that
// panics, beside one that is held.
func TestPanicEndsItsConnectionOnly(t *testing.T) {
	registry := prometheus.NewRegistry()
	r, err := New(Options{Registerer: registry, Logger: klog.Background(), Limits: Limits{HeldBytes: 1 << 20, HeaderBytes: 64 << 10}, Timeouts: Timeouts{Idle: time.Minute, Sniff: time.Second, Header: time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	// It is not run, but what New has started must end.
	ended, end := context.WithCancel(t.Context())
	end()
	defer r.reporter.Run(ended)
	account := r.budget.Open(nil)
	address := resolvertest.Listen(t, func(conn *net.TCPConn) {
		r.admit(t.Context(), conn, &connection{memory: account, other: func([]byte) []byte { panic("a fault of the resolver") }})()
	})
	for range 2 {
		client := resolvertest.Dial(t, address)
		if _, err := client.Write([]byte{0, 1, 2}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client gets %v, want a reset", err)
		}
	}
	c := &cluster{t: t, registry: registry}
	c.eventually(func() bool { return c.counter("elasti_resolver_panics_total") == 2 })
	c.eventually(func() bool { return r.connections.count() == 0 })
	if got := account.Used(); got != 0 {
		t.Errorf("%d bytes are still taken", got)
	}
}

// TestLocalFaultIsNamedAsOne takes all file descriptors of the resolver away: a
// health check of an awake application gets a local reply, nothing is woken, and all is
// well again once there are some.
func TestLocalFaultIsNamedAsOne(t *testing.T) {
	if !resolvertest.InOwnProcess(t, false) {
		return
	}
	port := freePort(t)
	es := elastiService("cart", port)
	es.Status.ProxyPorts[0].AppProtocol = "http"
	c := newCluster(t, func(o *Options) { o.PassiveUserAgents = []string{"kube-probe/"} }, es)
	c.apply(slice(es, true, forgetfulPod(t)))
	c.eventually(func() bool { status, _, _ := fetch(port, "/"); return status == http.StatusOK })
	address := fmt.Sprintf("127.0.0.1:%d", port)
	open := float64(0)
	clients := map[string]net.Conn{}
	for _, agent := range []string{"kube-probe/1.37", "curl/8"} {
		clients[agent] = resolvertest.Dial(t, address)
		open++
		c.eventually(func() bool { return c.metric("elasti_resolver_connections") == open })
	}
	woken := c.wakes.Load()
	restore := resolvertest.LimitFiles(t, 0)
	for agent, client := range clients {
		got := c.queryOn(client, agent)
		if got.status != http.StatusServiceUnavailable || got.reason != "ResolverExhausted" || got.retryAfter == "" {
			t.Errorf("%s gets %+v", agent, got)
		}
	}
	restore()
	if got := c.counter("elasti_resolver_local_faults_total", "kind", "descriptors"); got < 2 {
		t.Errorf("%v local faults are counted", got)
	}
	if status, _, err := fetch(port, "/"); status != http.StatusOK {
		t.Errorf("after the fault: %d, %v", status, err)
	}
	if c.wakes.Load() != woken || c.metric("elasti_resolver_queued_count") != 0 {
		t.Error("the target was woken, or something is held")
	}
}

// forgetfulPod is a pod that closes each connection after its response.
func forgetfulPod(t *testing.T) string {
	t.Helper()
	return resolvertest.ListenHTTP(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") })
}

// queryOn sends a request on a connection that is open already.
func (c *cluster) queryOn(conn net.Conn, agent string) rejected {
	c.t.Helper()
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: cart\r\nUser-Agent: %s\r\n\r\n", agent); err != nil {
		c.t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	return rejectedBy(c.t, response)
}

// A connection that has not said which service it is for has limits of its own, and
// then those of the service.
func TestConnectionMovesToTheServiceThatItNames(t *testing.T) {
	c := newCounted(t, 100, 5)
	first, second := c.budget.Open(nil), c.budget.Open(nil)
	open := func() *net.TCPConn {
		t.Helper()
		conn := &net.TCPConn{}
		if rejection, ok := c.add(conn, c.undeclared.Branch()); !ok {
			t.Fatalf("a connection that names no service is rejected: %s", rejection)
		}
		return conn
	}
	var conns []*net.TCPConn
	for range 5 {
		conn := open()
		if err := c.move(conn, first); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	late := open()
	if err := c.move(late, first); !errors.Is(err, localreply.ErrTooManyConnections) {
		t.Errorf("the sixth connection to a service that may have five: %v", err)
	}
	if err := errors.Join(c.move(late, second), c.move(late, second), c.move(conns[0], second), c.move(late, first)); err != nil {
		t.Errorf("between services with room: %v", err)
	}
	if first.Used() != 5*connectionBytes || second.Used() != connectionBytes || c.undeclared.Used() != 0 {
		t.Errorf("%d and %d bytes are counted, %d for no service", first.Used(), second.Used(), c.undeclared.Used())
	}
	for _, conn := range append(conns, late) {
		c.remove(conn)
	}
	if err := c.move(late, second); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection that has ended: %v", err)
	}
	if c.budget.Used() != 0 || len(c.byService) != 0 || c.waiting.Len() != 0 {
		t.Errorf("%d bytes, %d services and %d connections are left", c.budget.Used(), len(c.byService), c.waiting.Len())
	}
}

// Connections that name no service make room for one another, and leave room for services.
func TestOldestConnectionThatNamesNoServiceMakesRoom(t *testing.T) {
	c := newCounted(t, 20, 0)
	var displaced []metrics.RejectionReason
	c.displaced = func(_ netip.Addr, why metrics.RejectionReason) { displaced = append(displaced, why) }
	var conns []*net.TCPConn
	for range 50 {
		conn := &net.TCPConn{}
		if rejection, ok := c.add(conn, c.undeclared.Branch()); !ok {
			t.Fatalf("connection %d is rejected: %s", len(conns), rejection)
		}
		conns = append(conns, conn)
	}
	if c.count() != 10 || len(displaced) != 40 || displaced[0] != metrics.RejectedService {
		t.Errorf("%d connections are open, %d were displaced", c.count(), len(displaced))
	}
	service := c.budget.Open(nil)
	if err := c.move(conns[39], service); !errors.Is(err, net.ErrClosed) {
		t.Errorf("one that was displaced: %v", err)
	}
	if err := c.move(conns[40], service); err != nil {
		t.Errorf("the oldest that is open: %v", err)
	}
	if got, _ := c.fill(c.budget.Open(nil)); len(got) < 5 {
		t.Errorf("another service has %d connections", len(got))
	}
	for _, conn := range conns {
		c.remove(conn)
	}
}

// Nor does a fault of what makes room keep a place.
func TestConnectionThatPanicsAtItsMoveKeepsNoPlace(t *testing.T) {
	c := newCounted(t, 10, 0)
	c.budget = memory.NewBudget(memory.Limits{Process: 4 * connectionBytes})
	c.undeclared = c.budget.Open(nil)
	conn := &net.TCPConn{}
	if rejection, ok := c.add(conn, c.undeclared.Branch()); !ok {
		t.Fatal(rejection)
	}
	flood := c.budget.Open(func(int64) int64 { panic("a fault of the resolver") })
	if err := flood.Take(3 * connectionBytes); err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("nothing had to make room")
			}
		}()
		_ = c.move(conn, c.budget.Open(nil))
	}()
	c.remove(conn)
	if len(c.byService) != 0 || c.undeclared.Used() != 0 {
		t.Errorf("%d places and %d bytes are left", len(c.byService), c.undeclared.Used())
	}
}
