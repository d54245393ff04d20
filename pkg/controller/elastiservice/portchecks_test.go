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
	"fmt"
	"net"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers/resolverstest"
	"github.com/truefoundry/elasti-apiserver/pkg/portcheck"
)

func TestSliceWaitsForTheListeners(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	network := &resolverstest.Network{}
	c.options.DialResolver = func(ctx context.Context, protocol, address string) (net.Conn, error) {
		if host, _, _ := net.SplitHostPort(address); host == "10.0.0.2" {
			address = host
		}
		return network.Dial(ctx, protocol, address)
	}
	network.Respond("10.0.0.2", resolverstest.ConnectionRefused())
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if endpoints := c.resolverSlices("cart")[0].Endpoints; len(endpoints) != 1 || endpoints[0].Addresses[0] != "10.0.0.1" {
		t.Errorf("endpoints are %+v, want the one that listens", endpoints)
	}
	network.Respond("10.0.0.2", nil)
	c.eventually(func() string {
		if len(c.resolverSlices("cart")[0].Endpoints) != 2 {
			return "the other resolver"
		}
		return ""
	})
}

// Every resolver says that it does not serve the proxy ports of the Service. Its target
// works, and stays awake until one does.
func TestNothingSleepsBehindResolversThatDoNotAccept(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	network := &resolverstest.Network{}
	c.options.DialResolver = func(ctx context.Context, protocol, _ string) (net.Conn, error) {
		return network.Dial(ctx, protocol, "closed")
	}
	network.Respond("closed", resolverstest.ConnectionRefused())
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	remains := func() {
		t.Helper()
		c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoAcceptingResolver)
		c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNoAcceptingResolver)
		for range 3 {
			c.sync("cart")
		}
		if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
			t.Errorf("the target is at %d, and every resolver rejects connections to its proxy ports", replicas)
		}
		for _, slice := range c.resolverSlices("cart") {
			if len(slice.Endpoints) > 0 {
				t.Errorf("beside pods that are ready, a slice names the resolvers %+v", slice.Endpoints)
			}
		}
	}
	remains()
	// The next leader does not know better because of what it finds.
	stop()
	c.start()
	remains()
	network.Respond("closed", nil)
	c.sync("cart")
	c.eventuallyReplicas(0)
	c.eventuallyListed("cart", "10.0.0.1", "10.0.0.2")
	c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionTrue, v1alpha1.ReasonResolverReady)
}

// Resolvers stop accepting connections of a target that sleeps already: nothing that a
// client sends would wake it.
func TestATargetWakesBehindResolversThatDoNotAccept(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.ResolverGrace = 50 * time.Millisecond
	network := &resolverstest.Network{}
	c.options.DialResolver = func(ctx context.Context, protocol, _ string) (net.Conn, error) {
		return network.Dial(ctx, protocol, "closed")
	}
	network.Respond("closed", resolverstest.ConnectionRefused())
	c.create(cartElastiService())
	c.start()
	c.eventually(func() string {
		if c.scaling.replicas(t, "cart") != 2 {
			return "the target to be awake"
		}
		return ""
	})
	c.eventuallyEventWith(corev1.EventTypeWarning, v1alpha1.ReasonNoAcceptingResolver, "scaled Deployment cart to 2: no resolver with an address of IPv4 accepts connections to the proxy ports of Service \"cart\"")
}

// Resolvers are replaced again and again, as by a rollout of a version that does not work:
// each is given the time to accept connections, and none does.
func TestATargetWakesBehindResolversThatComeAndGoAndDoNotAccept(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.ResolverGrace = 12 * time.Second
	network := &resolverstest.Network{}
	c.options.DialResolver = func(ctx context.Context, protocol, _ string) (net.Conn, error) {
		return network.Dial(ctx, protocol, "closed")
	}
	network.Respond("closed", resolverstest.ConnectionRefused())
	c.create(cartElastiService())
	c.start()
	// The port check of each resolver is overdue after 5 s.
	for i := 0; c.scaling.replicas(t, "cart") == 0; i++ {
		if i == 10 {
			t.Fatal("the target is not woken")
		}
		c.setEndpoints("elasti-system", "elasti-resolver", fmt.Sprintf("10.0.1.%d", i))
		c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionTrue, v1alpha1.ReasonResolverReady)
		c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoAcceptingResolver)
	}
	c.eventuallyEventWith(corev1.EventTypeWarning, v1alpha1.ReasonNoAcceptingResolver, "scaled Deployment cart to 2")
}

// The slice that the leader before has written names resolvers that do not accept, as there
// was nothing better.
func TestANewLeaderWakesBehindResolversThatDoNotAccept(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.ResolverGrace = time.Hour
	network := &resolverstest.Network{}
	c.options.DialResolver = func(ctx context.Context, protocol, _ string) (net.Conn, error) {
		return network.Dial(ctx, protocol, "closed")
	}
	network.Respond("closed", resolverstest.ConnectionRefused())
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyListed("cart", "10.0.0.1", "10.0.0.2")
	c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoAcceptingResolver)
	stop()
	c.options.ResolverGrace = 50 * time.Millisecond
	c.start()
	c.eventuallyReplicas(2)
}

// A slice that names resolvers with closed ports was written while there was nothing better. It
// says nothing of a target that works by now.
func TestASliceFromBeforeARestartDoesNotSayThatResolversAccept(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	network := &resolverstest.Network{}
	c.options.DialResolver = func(ctx context.Context, protocol, _ string) (net.Conn, error) {
		return network.Dial(ctx, protocol, "closed")
	}
	network.Respond("closed", resolverstest.ConnectionRefused())
	elastiService := cartElastiService()
	elastiService.Spec.Proxy = &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways}
	c.create(elastiService)
	stop := c.start()
	c.eventuallyListed("cart", "10.0.0.1", "10.0.0.2")
	c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoAcceptingResolver)
	stop()
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.start()
	c.requestSleep("cart")
	c.eventuallyListed("cart")
	c.eventuallyCondition("cart", v1alpha1.ConditionResolverAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoAcceptingResolver)
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("the target is at %d, and every resolver rejects connections to its proxy ports", replicas)
	}
}

// One resolver that never accepts is left out, and is no reason to stay awake.
func TestAResolverThatDoesNotAcceptIsLeftOut(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	network := &resolverstest.Network{}
	c.options.DialResolver = func(ctx context.Context, protocol, address string) (net.Conn, error) {
		host, _, _ := net.SplitHostPort(address)
		return network.Dial(ctx, protocol, host)
	}
	network.Respond("10.0.0.2", resolverstest.ConnectionRefused())
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyReplicas(0)
	c.eventuallyListed("cart", "10.0.0.1")
}

// A Service that gets another port needs its resolvers meanwhile.
func TestResolversStayWhileNoneListensOnANewPort(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	network := &resolverstest.Network{}
	var closed sync.Map
	c.options.DialResolver = func(ctx context.Context, protocol, address string) (net.Conn, error) {
		if _, all := closed.Load("new"); all {
			address = "closed"
		}
		return network.Dial(ctx, protocol, address)
	}
	network.Respond("closed", resolverstest.ConnectionRefused())
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
		t.Errorf("the slice has the endpoints %+v while no resolver listens on the new port", slice.Endpoints)
	}
	network.Respond("closed", nil)
	c.eventually(func() string {
		if slice := c.resolverSlices("cart")[0]; len(slice.Ports) != 3 || len(slice.Endpoints) != 2 {
			return "the slice has the new port"
		}
		return ""
	})
}

// TestControllerConnectsToNoProxyPort has resolvers respond on their health ports: a
// connection to a proxy port is traffic of the Service.
func TestControllerConnectsToNoProxyPort(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.withHealthPort()
	server := httptest.NewServer(portcheck.Handler(func(q *portcheck.Query, _ portcheck.Port) portcheck.State {
		if q.Service.String() == "shop/cart" && q.UID != "" {
			return portcheck.Accepting
		}
		return portcheck.Unknown
	}))
	t.Cleanup(server.Close)
	c.options.DialResolver = func(ctx context.Context, network, address string) (net.Conn, error) {
		if _, port, _ := net.SplitHostPort(address); port != "8080" {
			t.Errorf("%s is dialed, which is no health port", address)
		}
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyListed("cart", "10.0.0.1", "10.0.0.2")
}

// TestSliceNamesAResolverOnceItAcceptsAgain has a target be awake and asleep in turn.
// Its resolvers listen all the time, and accept connections once they are queried.
func TestSliceNamesAResolverOnceItAcceptsAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.withHealthPort()
	var queries atomic.Int32
	server := httptest.NewServer(portcheck.Handler(func(q *portcheck.Query, port portcheck.Port) portcheck.State {
		if !q.Accept {
			t.Error("a resolver is queried without being to accept connections")
		}
		if port == q.Ports[0] {
			queries.Add(1)
		}
		return portcheck.Accepting
	}))
	t.Cleanup(server.Close)
	c.options.DialResolver = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}
	c.create(cartElastiService())
	c.start()
	for i := range 3 {
		c.eventuallyMode("cart", v1alpha1.ModeProxy)
		c.eventuallyListed("cart", "10.0.0.1", "10.0.0.2")
		// At first the ports may not all be known.
		if got := queries.Swap(0); got < 2 || i > 0 && got > 2 {
			t.Errorf("two resolvers were put in the path after %d queries", got)
		}
		c.setDeployment("cart", 2, 2)
		c.setEndpoints(shop, "cart", "10.1.0.1", "10.1.0.2")
		c.eventuallyMode("cart", v1alpha1.ModeServe)
		c.setEndpoints(shop, "cart")
		c.setDeployment("cart", 0, 0)
	}
}
