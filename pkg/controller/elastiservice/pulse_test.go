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
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// process is a resolver's, as the network sees it: real sockets on loopback.
type process struct {
	t        *testing.T
	listener net.Listener

	mu    sync.Mutex
	conns []net.Conn
}

// startProcess starts one that listens on an address.
func startProcess(t *testing.T, address string) *process {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, listener: listener}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, conn)
			p.mu.Unlock()
		}
	}()
	t.Cleanup(p.kill)
	return p
}

// hangUp closes the connections that there are, as a server does with one that
// asks nothing.
func (p *process) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		conn.Close()
	}
	p.conns = nil
}

func (p *process) connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) > 0
}

// kill closes everything, as the kernel does for a process that has ended.
func (p *process) kill() {
	p.listener.Close()
	p.hangUp()
}

// toProcesses dials the process of a host.
func toProcesses(addresses map[string]string) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, _ := net.SplitHostPort(address)
		to, ok := addresses[host]
		if !ok {
			// Something in between drops what is sent.
			return nil, &net.OpError{Op: "dial", Net: network, Err: os.ErrDeadlineExceeded}
		}
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, to)
	}
}

// withHealthPort gives the slice of the resolvers the port that they have.
func (c *cluster) withHealthPort() {
	c.t.Helper()
	slice, err := c.host.DiscoveryV1().EndpointSlices("elasti-system").Get(c.t.Context(), "elasti-resolver-abcde", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	slice.Ports = []discoveryv1.EndpointPort{
		{Name: ptr.To("metrics"), Port: ptr.To[int32](8081), Protocol: ptr.To(corev1.ProtocolTCP)},
		{Name: ptr.To(healthPortName), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)},
	}
	c.create(slice)
}

// eventuallyListed waits until the resolver slice of a Service lists addresses.
func (c *cluster) eventuallyListed(service string, want ...string) {
	c.t.Helper()
	c.eventually(func() string {
		var listed []string
		for _, slice := range c.resolverSlices(service) {
			for _, endpoint := range slice.Endpoints {
				listed = append(listed, endpoint.Addresses...)
			}
		}
		if strings.Join(listed, " ") != strings.Join(want, " ") {
			return "the slice lists " + strings.Join(want, " ") + ", it lists " + strings.Join(listed, " ")
		}
		return ""
	})
}

// Kubernetes says all the time that both resolvers are ready.
func TestResolverWhoseProcessEndedIsLeftOut(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.withHealthPort()
	first, second := startProcess(t, "127.0.0.1:0"), startProcess(t, "127.0.0.1:0")
	address := second.listener.Addr().String()
	c.options.DialResolver = toProcesses(map[string]string{"10.0.0.1": first.listener.Addr().String(), "10.0.0.2": address})
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyListed("cart", "10.0.0.1", "10.0.0.2")

	second.kill()
	c.eventuallyListed("cart", "10.0.0.1")
	startProcess(t, address)
	c.eventuallyListed("cart", "10.0.0.1", "10.0.0.2")
}

func TestWithoutAnyResolverProcessTheSliceStaysAsItIs(t *testing.T) {
	t.Parallel()
	one, other := startProcess(t, "127.0.0.1:0"), startProcess(t, "127.0.0.1:0")
	looks := make(chan struct{}, 100)
	p := newPulses(toProcesses(map[string]string{"10.0.0.1": one.listener.Addr().String(), "10.0.0.2": other.listener.Addr().String()}),
		func(feel func()) { go feel() }, func() { looks <- struct{}{} })
	endpoints := p.followBoth(t)
	eventually(t, "both are followed", func() bool { return one.connected() && other.connected() })
	one.kill()
	<-looks
	if living := p.living(endpoints); len(living) != 1 || living[0].Addresses[0] != "10.0.0.2" {
		t.Errorf("living are %+v", living)
	}
	other.kill()
	<-looks
	if living := p.living(endpoints); len(living) != 2 {
		t.Errorf("living are %+v although nobody is", living)
	}
}

func TestOnlyARefusalSaysThatAResolverIsGone(t *testing.T) {
	t.Parallel()
	quiet := startProcess(t, "127.0.0.1:0")
	p := newPulses(toProcesses(map[string]string{"10.0.0.1": quiet.listener.Addr().String()}),
		func(feel func()) { go feel() }, func() { t.Error("something changed") })
	endpoints := p.followBoth(t)
	// A connection that asks nothing is closed by and by.
	for range 3 {
		eventually(t, "it is connected again", quiet.connected)
		quiet.hangUp()
	}
	eventually(t, "it is connected again", quiet.connected)
	if living := p.living(endpoints); len(living) != 2 {
		t.Errorf("living are %+v, but neither refuses", living)
	}
}

// followBoth follows two resolvers until the test ends.
func (p *pulses) followBoth(t *testing.T) []discoveryv1.Endpoint {
	t.Helper()
	conditions := discoveryv1.EndpointConditions{Ready: ptr.To(true)}
	endpoints := []discoveryv1.Endpoint{
		{Addresses: []string{"10.0.0.1"}, Conditions: conditions}, {Addresses: []string{"10.0.0.2"}, Conditions: conditions},
	}
	p.follow(t.Context(), []*discoveryv1.EndpointSlice{{
		Ports:     []discoveryv1.EndpointPort{{Name: ptr.To(healthPortName), Port: ptr.To[int32](8080)}},
		Endpoints: endpoints,
	}})
	return endpoints
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, patience, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("still missing: %s", what)
	}
}
