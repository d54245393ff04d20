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
			t.Errorf("%s is dialled, which is not a health port", address)
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
		if checker.Check(t.Context(), known, about(10000, 10001), ready) || known.Accepting("10.0.0.1") {
			t.Errorf("the resolver is listed, and does not accept on one of the ports: %d", less)
		}
	}
	state.Store(int32(portcheck.Accepting))
	if !checker.Check(t.Context(), known, about(10000, 10001), ready) || !known.Accepting("10.0.0.1") {
		t.Error("the resolver is not listed, and accepts on both ports")
	}
	// An ElastiService of the same name is another one.
	again := about(10000, 10001)
	again.UID = "decaf"
	if checker.Check(t.Context(), known, again, ready) {
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
	network.Respond("10.0.0.1:10000", resolverstest.Refused())
	if checker.Check(t.Context(), &PortChecks{}, about(10000), ready) {
		t.Error("listed although connections to it are refused")
	}
	network.Respond("10.0.0.1:10000", nil)
	if !checker.Check(t.Context(), &PortChecks{}, about(10000), ready) {
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

	network.Respond("10.0.0.2:10001", resolverstest.Refused())
	if listeners.Check(t.Context(), known, ports, ready) || !known.resolvers["10.0.0.1"].accepts || known.resolvers["10.0.0.2"].accepts {
		t.Errorf("known is %+v", known)
	}
	known.RecordListed(slicesOf("10.0.0.1"))
	network.TakeDials()
	network.Respond("10.0.0.2:10001", nil)
	if !listeners.Check(t.Context(), known, ports, ready) {
		t.Errorf("known is %+v", known)
	}
	if dials := network.TakeDials(); dials != 2 {
		t.Errorf("%d dials, want those to the one that is not listed", dials)
	}
	// No slice could be written.
	if !listeners.Check(t.Context(), known, ports, ready) || network.TakeDials() != 2 {
		t.Error("one that accepted before is not checked again before it is listed")
	}
	known.RecordListed(slicesOf("10.0.0.1", "10.0.0.2"))
	if !listeners.Check(t.Context(), known, ports, ready) || network.TakeDials() != 0 {
		t.Error("dialled what is listed")
	}
	// A resolver that comes back, and other ports, are checked again.
	listeners.Check(t.Context(), known, ports, ready[:1])
	listeners.Check(t.Context(), known, ports, ready)
	if dials := network.TakeDials(); dials != 2 {
		t.Errorf("%d dials after a resolver came back, want 2", dials)
	}
	listeners.Check(t.Context(), known, about(10002), ready)
	if dials := network.TakeDials(); dials != 2 {
		t.Errorf("%d dials after a change of the ports, want 2", dials)
	}
	// So are those that were taken out of the path, also when the cache still has the
	// slices.
	known.RecordListed(slicesOf("10.0.0.1", "10.0.0.2"))
	known.Forget()
	known.Trust(about(10002), nil, slicesOf("10.0.0.1", "10.0.0.2"), clock.Now())
	listeners.Check(t.Context(), known, about(10002), ready)
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
	NewPortChecker(network.Dial, unknown, clock).Check(t.Context(), known, about(10000), ready)
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
	network.Respond("10.0.0.1:10000", resolverstest.Refused())
	clock := clocktesting.NewFakeClock(time.Now())
	listeners := NewPortChecker(network.Dial, unknown, clock)
	known := &PortChecks{}
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	if listeners.Check(t.Context(), known, about(10000), ready) {
		t.Error("listed although connections to it are refused")
	}
	clock.Step(portCheckTimeout)
	if !listeners.Check(t.Context(), known, about(10000), ready) {
		t.Error("still not listed")
	}
}

func TestResolverThatCannotBeReachedIsListedAtOnce(t *testing.T) {
	network := &resolverstest.Network{}
	network.Respond("10.0.0.1:10000", context.DeadlineExceeded)
	clock := clocktesting.NewFakeClock(time.Now())
	listeners := NewPortChecker(network.Dial, unknown, clock)
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	for range 10 {
		if !listeners.Check(t.Context(), &PortChecks{}, about(10000), ready) {
			t.Error("not listed")
		}
	}
	if dials := network.TakeDials(); dials != 1 {
		t.Errorf("%d dials for 10 ElastiServices, want 1", dials)
	}
}
