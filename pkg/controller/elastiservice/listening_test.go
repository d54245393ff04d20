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

package elastiservice

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// network answers dials.
type network struct {
	mu sync.Mutex
	// answers are the errors of dials, by address. Others are accepted.
	answers map[string]error
	dials   int
}

func (n *network) dial(_ context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dials++
	if err := n.answers[address]; err != nil {
		return nil, &net.OpError{Op: "dial", Err: err}
	}
	client, server := net.Pipe()
	_ = server.Close()
	return client, nil
}

func (n *network) answer(address string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answers[address] = err
}

func (n *network) takeDials() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	dials := n.dials
	n.dials = 0
	return dials
}

var refused = os.NewSyscallError("connect", syscall.ECONNREFUSED)

func TestResolversAreListedOnceTheyListen(t *testing.T) {
	network := &network{answers: map[string]error{}}
	clock := clocktesting.NewFakeClock(time.Now())
	listeners := newListeners(network.dial, clock)
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"10.0.0.2"}}}
	known := &confirmation{}
	ports := []destination{{proxyPort: 10000}, {proxyPort: 10001}}

	network.answer("10.0.0.2:10001", refused)
	if listeners.confirm(t.Context(), known, ports, ready) || !known.resolvers["10.0.0.1"].listens || known.resolvers["10.0.0.2"].listens {
		t.Errorf("known is %+v", known)
	}
	network.takeDials()
	network.answer("10.0.0.2:10001", nil)
	if !listeners.confirm(t.Context(), known, ports, ready) {
		t.Errorf("known is %+v", known)
	}
	if dials := network.takeDials(); dials != 2 {
		t.Errorf("%d dials, want those to the one that was not known", dials)
	}
	if !listeners.confirm(t.Context(), known, ports, ready) || network.takeDials() != 0 {
		t.Error("dialled what is known")
	}
	// A resolver that comes back, and other ports, are looked at again.
	listeners.confirm(t.Context(), known, ports, ready[:1])
	listeners.confirm(t.Context(), known, ports, ready)
	if dials := network.takeDials(); dials != 2 {
		t.Errorf("%d dials after a resolver came back, want 2", dials)
	}
	listeners.confirm(t.Context(), known, []destination{{proxyPort: 10002}}, ready)
	if dials := network.takeDials(); dials != 2 {
		t.Errorf("%d dials after a change of the ports, want 2", dials)
	}
}

func TestResolverThatNeverListensIsListedInTheEnd(t *testing.T) {
	network := &network{answers: map[string]error{"10.0.0.1:10000": refused}}
	clock := clocktesting.NewFakeClock(time.Now())
	listeners := newListeners(network.dial, clock)
	known := &confirmation{}
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	if listeners.confirm(t.Context(), known, []destination{{proxyPort: 10000}}, ready) {
		t.Error("listed although it refuses")
	}
	clock.Step(listenPatience)
	if !listeners.confirm(t.Context(), known, []destination{{proxyPort: 10000}}, ready) {
		t.Error("still not listed")
	}
}

func TestResolverThatCannotBeReachedIsListedAtOnce(t *testing.T) {
	network := &network{answers: map[string]error{"10.0.0.1:10000": context.DeadlineExceeded}}
	clock := clocktesting.NewFakeClock(time.Now())
	listeners := newListeners(network.dial, clock)
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	for range 10 {
		if !listeners.confirm(t.Context(), &confirmation{}, []destination{{proxyPort: 10000}}, ready) {
			t.Error("not listed")
		}
	}
	if dials := network.takeDials(); dials != 1 {
		t.Errorf("%d dials for 10 ElastiServices, want 1", dials)
	}
}

func TestSliceWaitsForTheListeners(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	network := &network{answers: map[string]error{}}
	c.options.DialResolver = func(ctx context.Context, protocol, address string) (net.Conn, error) {
		if host, _, _ := net.SplitHostPort(address); host == "10.0.0.2" {
			address = host
		}
		return network.dial(ctx, protocol, address)
	}
	network.answer("10.0.0.2", refused)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if endpoints := c.resolverSlices("cart")[0].Endpoints; len(endpoints) != 1 || endpoints[0].Addresses[0] != "10.0.0.1" {
		t.Errorf("endpoints are %+v, want the one that listens", endpoints)
	}
	network.answer("10.0.0.2", nil)
	c.eventually(func() string {
		if len(c.resolverSlices("cart")[0].Endpoints) != 2 {
			return "the other resolver"
		}
		return ""
	})
}

// A Service that gets another port needs its resolvers meanwhile.
func TestResolversStayWhileNoneListensOnANewPort(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	network := &network{answers: map[string]error{}}
	var closed sync.Map
	c.options.DialResolver = func(ctx context.Context, protocol, address string) (net.Conn, error) {
		if _, all := closed.Load("new"); all {
			address = "closed"
		}
		return network.dial(ctx, protocol, address)
	}
	network.answer("closed", refused)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventually(func() string {
		if slices := c.resolverSlices("cart"); len(slices) == 0 || len(slices[0].Endpoints) != 2 {
			return "both resolvers are listed"
		}
		return ""
	})
	closed.Store("new", true)
	service := cartService()
	service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: "new", Port: 82, Protocol: corev1.ProtocolTCP})
	c.create(service)
	c.eventually(func() string {
		if len(c.elastiService("cart").Status.ProxyPorts) != 3 {
			return "the new port has a proxy port"
		}
		return ""
	})
	if slice := c.resolverSlices("cart")[0]; len(slice.Endpoints) != 2 {
		t.Errorf("the slice has the endpoints %+v while nobody listens on the new port", slice.Endpoints)
	}
	network.answer("closed", nil)
	c.eventually(func() string {
		if slice := c.resolverSlices("cart")[0]; len(slice.Ports) != 3 || len(slice.Endpoints) != 2 {
			return "the slice has the new port"
		}
		return ""
	})
}
