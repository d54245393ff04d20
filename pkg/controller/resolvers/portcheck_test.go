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

package resolvers

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers/resolverstest"
	"github.com/truefoundry/elasti-apiserver/pkg/portcheck"
)

// about returns the query for proxy ports of an ElastiService.
func about(proxyPorts ...int32) Query {
	query := Query{Query: portcheck.Query{Service: types.NamespacedName{Namespace: "shop", Name: "cart"}, UID: "c0ffee"}}
	for i, port := range proxyPorts {
		query.Ports = append(query.Ports, portcheck.Port{Service: int32(80 + i), Proxy: port})
	}
	return query
}

// unknown is the health port of resolvers whose Service does not name it.
func unknown(string) string { return "" }

// queryable starts a resolver that can be queried, at 10.0.0.1, and returns what dials it
// and returns its health port. Connections to other ports fail the test.
func queryable(t *testing.T, handler http.Handler) (DialFunc, func(string) string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		if address != "10.0.0.1:8080" {
			t.Errorf("%s is dialed, which is not a health port", address)
		}
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}
	return dial, func(address string) string { return net.JoinHostPort(address, "8080") }
}

// TestResolversAreQueriedOnTheirHealthPort queries a resolver that observes a port later.
func TestResolversAreQueriedOnTheirHealthPort(t *testing.T) {
	var state atomic.Int32
	dial, health := queryable(t, portcheck.Handler(func(q *portcheck.Query, port portcheck.Port) portcheck.State {
		switch {
		case q.UID != "c0ffee":
			return portcheck.Unknown
		case !q.Accept:
			t.Error("the resolver is not reported to accept")
		case port.Proxy == 10000:
			return portcheck.Accepting
		}
		return portcheck.State(state.Load())
	}))
	checker := NewPortChecker(dial, health, clocktesting.NewFakeClock(time.Now()))
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	known := &PortChecks{}
	for _, less := range []portcheck.State{portcheck.Unknown, portcheck.Listening} {
		state.Store(int32(less))
		if checker.Check(t.Context(), known, about(10000, 10001), ready, false) || known.Accepting("10.0.0.1") {
			t.Errorf("the resolver is listed, and does not accept on one of the ports: %d", less)
		}
	}
	state.Store(int32(portcheck.Accepting))
	if !checker.Check(t.Context(), known, about(10000, 10001), ready, false) || !known.Accepting("10.0.0.1") {
		t.Error("the resolver is not listed, and accepts on both ports")
	}
	// An ElastiService of the same name is another one.
	again := about(10000, 10001)
	again.UID = "decaf"
	if checker.Check(t.Context(), known, again, ready, false) {
		t.Error("the resolver is listed for an ElastiService that it does not know")
	}
}

// TestResolversOfAnEarlierVersionAreConnectedTo meets a resolver during an upgrade.
func TestResolversOfAnEarlierVersionAreConnectedTo(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	network := &resolverstest.Network{}
	dial := func(ctx context.Context, protocol, address string) (net.Conn, error) {
		if address == "10.0.0.1:8080" {
			return (&net.Dialer{}).DialContext(ctx, protocol, server.Listener.Addr().String())
		}
		return network.Dial(ctx, protocol, address)
	}
	checker := NewPortChecker(dial, func(address string) string { return net.JoinHostPort(address, "8080") }, clocktesting.NewFakeClock(time.Now()))
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	network.Respond("10.0.0.1:10000", resolverstest.ConnectionRefused())
	if checker.Check(t.Context(), &PortChecks{}, about(10000), ready, false) {
		t.Error("listed although connections to it are refused")
	}
	network.Respond("10.0.0.1:10000", nil)
	if !checker.Check(t.Context(), &PortChecks{}, about(10000), ready, false) {
		t.Error("not listed although it accepts")
	}
}

func TestResolversAreListedOnceTheyListen(t *testing.T) {
	network := &resolverstest.Network{}
	clock := clocktesting.NewFakeClock(time.Now())
	listeners := NewPortChecker(network.Dial, unknown, clock)
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"10.0.0.2"}}}
	known := &PortChecks{}
	ports := about(10000, 10001)

	network.Respond("10.0.0.2:10001", resolverstest.ConnectionRefused())
	if listeners.Check(t.Context(), known, ports, ready, false) || !known.resolvers["10.0.0.1"].accepts || known.resolvers["10.0.0.2"].accepts {
		t.Errorf("known is %+v", known)
	}
	known.RecordListed(slicesOf("10.0.0.1"))
	network.TakeDials()
	network.Respond("10.0.0.2:10001", nil)
	if !listeners.Check(t.Context(), known, ports, ready, false) {
		t.Errorf("known is %+v", known)
	}
	if dials := network.TakeDials(); dials != 2 {
		t.Errorf("%d dials, want those to the one that is not listed", dials)
	}
	// No slice could be written.
	if !listeners.Check(t.Context(), known, ports, ready, false) || network.TakeDials() != 2 {
		t.Error("one that accepted before is not checked again before it is listed")
	}
	known.RecordListed(slicesOf("10.0.0.1", "10.0.0.2"))
	if !listeners.Check(t.Context(), known, ports, ready, false) || network.TakeDials() != 0 {
		t.Error("dialed what is listed")
	}
	// A resolver that comes back, and other ports, are checked again.
	listeners.Check(t.Context(), known, ports, ready[:1], false)
	listeners.Check(t.Context(), known, ports, ready, false)
	if dials := network.TakeDials(); dials != 2 {
		t.Errorf("%d dials after a resolver came back, want 2", dials)
	}
	listeners.Check(t.Context(), known, about(10002), ready, false)
	if dials := network.TakeDials(); dials != 2 {
		t.Errorf("%d dials after a change of the ports, want 2", dials)
	}
	// So are those that were taken out of the path, also when the cache still has the
	// slices.
	known.RecordListed(slicesOf("10.0.0.1", "10.0.0.2"))
	known.Forget()
	known.Trust(about(10002), nil, slicesOf("10.0.0.1", "10.0.0.2"), clock.Now())
	listeners.Check(t.Context(), known, about(10002), ready, false)
	if dials := network.TakeDials(); dials != 2 {
		t.Errorf("%d dials after the slices were removed, want 2", dials)
	}
}

// TestResolversThatAreInThePathAreTrustedAfterARestart checks none of them again.
func TestResolversThatAreInThePathAreTrustedAfterARestart(t *testing.T) {
	network := &resolverstest.Network{}
	clock := clocktesting.NewFakeClock(time.Now())
	known := &PortChecks{}
	known.Trust(about(10000), nil, slicesOf("10.0.0.1"), clock.Now())
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"10.0.0.2"}}}
	NewPortChecker(network.Dial, unknown, clock).Check(t.Context(), known, about(10000), ready, false)
	if dials := network.TakeDials(); dials != 1 {
		t.Errorf("%d dials, want that to the one that is not in the path", dials)
	}
}

// slicesOf returns a resolver slice that names resolvers.
func slicesOf(addresses ...string) []*discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{}
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return []*discoveryv1.EndpointSlice{slice}
}

func TestResolverThatNeverListensIsListedInTheEnd(t *testing.T) {
	network := &resolverstest.Network{}
	network.Respond("10.0.0.1:10000", resolverstest.ConnectionRefused())
	clock := clocktesting.NewFakeClock(time.Now())
	listeners := NewPortChecker(network.Dial, unknown, clock)
	known := &PortChecks{}
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	if listeners.Check(t.Context(), known, about(10000), ready, false) {
		t.Error("listed although connections to it are refused")
	}
	clock.Step(portCheckTimeout)
	for range 2 {
		if !listeners.Check(t.Context(), known, about(10000), ready, false) || known.Accepting("10.0.0.1") || !known.Overdue("10.0.0.1") {
			t.Error("it is still waited for, or counts as accepting")
		}
		known.RecordListed(slicesOf("10.0.0.1"))
	}
	network.Respond("10.0.0.1:10000", nil)
	if !listeners.Check(t.Context(), known, about(10000), ready, false) || !known.Accepting("10.0.0.1") || known.Overdue("10.0.0.1") {
		t.Error("it accepts, and was not checked again because a slice named it")
	}
}

// A target that works is about to depend on resolvers that a slice named when the
// controller started: they may have been named because there was no better one.
func TestTrustedResolversAreCheckedBeforeATargetDependsOnThem(t *testing.T) {
	network := &resolverstest.Network{}
	network.Respond("10.0.0.1:10000", resolverstest.ConnectionRefused())
	clock := clocktesting.NewFakeClock(time.Now())
	checker := NewPortChecker(network.Dial, unknown, clock)
	known := &PortChecks{}
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"10.0.0.2"}}}
	known.Trust(about(10000), nil, slicesOf("10.0.0.1", "10.0.0.2"), clock.Now())
	clock.Step(time.Hour)
	if !checker.Check(t.Context(), known, about(10000), ready, false) || network.TakeDials() != 0 {
		t.Error("resolvers that slices name are checked at rest")
	}
	if checker.Check(t.Context(), known, about(10000), ready, true) || known.Accepting("10.0.0.1") || !known.Accepting("10.0.0.2") {
		t.Errorf("known is %+v", known)
	}
	known.RecordListed(slicesOf("10.0.0.2"))
	network.TakeDials()
	if checker.Check(t.Context(), known, about(10000), ready, true); network.TakeDials() != 1 {
		t.Error("the resolver that accepted is checked again")
	}
}

// What a resolver responds to the query about one Service may be due to that Service.
func TestAServiceWithManyPortsDoesNotEndTheChecksOfOthers(t *testing.T) {
	var serves, broken atomic.Bool
	handler := portcheck.Handler(func(*portcheck.Query, portcheck.Port) portcheck.State {
		if serves.Load() {
			return portcheck.Accepting
		}
		return portcheck.Unknown
	})
	dial, health := queryable(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	checker := NewPortChecker(dial, health, clocktesting.NewFakeClock(time.Now()))
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	ports := make([]int32, 2*portcheck.MaxPorts+1)
	for i := range ports {
		ports[i] = 10000 + int32(i)
	}
	for _, broke := range []bool{false, true} {
		broken.Store(broke)
		if checker.Check(t.Context(), &PortChecks{}, about(ports...), ready, false) {
			t.Error("the resolver serves none of the many ports, and counts as accepting")
		}
		if checker.Check(t.Context(), &PortChecks{}, about(10000), ready, false) {
			t.Error("after a query about many ports of another Service, a resolver that does not serve a port counts as accepting")
		}
	}
	broken.Store(false)
	serves.Store(true)
	if !checker.Check(t.Context(), &PortChecks{}, about(ports...), ready, false) {
		t.Error("the resolver serves all of the many ports, and is not listed")
	}
}

func TestResolverThatCannotBeReachedIsListedAtOnce(t *testing.T) {
	network := &resolverstest.Network{}
	network.Respond("10.0.0.1:10000", context.DeadlineExceeded)
	clock := clocktesting.NewFakeClock(time.Now())
	listeners := NewPortChecker(network.Dial, unknown, clock)
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	for range 10 {
		if !listeners.Check(t.Context(), &PortChecks{}, about(10000), ready, false) {
			t.Error("not listed")
		}
	}
	if dials := network.TakeDials(); dials != 1 {
		t.Errorf("%d dials for 10 ElastiServices, want 1", dials)
	}
}
