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
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/sharedport"
)

const (
	// dialTimeout is how long a resolver may take to accept a connection, and
	// answerTimeout how long it may take to answer on it.
	dialTimeout   = 250 * time.Millisecond
	answerTimeout = 500 * time.Millisecond
	// listenRetry is the pause between the looks at a resolver that does not
	// listen yet.
	listenRetry = 250 * time.Millisecond
	// listenPatience is how long a resolver that does not listen is left out.
	// After that it is listed all the same: something else is wrong then, and
	// clients are not better off with no resolver at all.
	listenPatience = 5 * time.Second
	// blindTime is how long a resolver is listed without a look after it could
	// not be reached: between the controller and it may be a network policy.
	blindTime = time.Minute
)

// DialFunc connects, as net.Dialer.DialContext does.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// destination is a proxy port as traffic finds it.
type destination struct {
	proxyPort int32
	// hostName is what tells the Service port apart on the shared port. Empty
	// when the proxy port belongs to it alone.
	hostName string
}

// listeners tells which resolvers listen on proxy ports. A resolver that is
// ready may not have heard of a new proxy port yet, and would refuse the
// connections that a resolver slice sends it; nor of a Service on the shared
// port, and would refuse its requests. Safe for concurrent use.
type listeners struct {
	// dial is nil when nobody is looked at.
	dial  DialFunc
	clock clock.PassiveClock

	mu sync.Mutex
	// blind is until when resolvers are not looked at, by address. Those whose
	// time is over are dropped when another one is added.
	blind map[string]time.Time
}

func newListeners(dial DialFunc, clock clock.PassiveClock) *listeners {
	return &listeners{dial: dial, clock: clock, blind: map[string]time.Time{}}
}

// confirmation is what an ElastiService knows of the resolvers that listen on
// its proxy ports.
type confirmation struct {
	// destinations are what the rest is about.
	destinations []destination
	// resolvers are the ready resolvers, by address.
	resolvers map[string]listener
}

// listener is what is known of one resolver.
type listener struct {
	// since is when it was looked at first.
	since time.Time
	// listens is true when it serves all destinations, as far as can be told.
	listens bool
}

// confirm looks at those of the ready resolvers that are not known to serve
// all destinations yet, and reports whether all of them are now.
func (l *listeners) confirm(ctx context.Context, known *confirmation, destinations []destination, ready []discoveryv1.Endpoint) bool {
	if !slices.Equal(known.destinations, destinations) {
		*known = confirmation{destinations: destinations}
	}
	// Without those that are not ready any more: they are looked at again when
	// they come back.
	current := make(map[string]listener, len(ready))
	var mu sync.Mutex
	var looks sync.WaitGroup
	for i := range ready {
		address := ready[i].Addresses[0]
		resolver, ok := known.resolvers[address]
		if !ok {
			resolver.since = l.clock.Now()
		}
		if l.dial == nil || l.isBlind(address) || l.clock.Since(resolver.since) >= listenPatience {
			resolver.listens = true
		}
		if resolver.listens {
			mu.Lock()
			current[address] = resolver
			mu.Unlock()
			continue
		}
		looks.Go(func() {
			resolver.listens = l.listens(ctx, address, destinations)
			mu.Lock()
			defer mu.Unlock()
			current[address] = resolver
		})
	}
	looks.Wait()
	known.resolvers = current
	for _, resolver := range current {
		if !resolver.listens {
			return false
		}
	}
	return true
}

// listens tells whether a resolver serves all destinations. One that does not
// answer at all counts: only a clear no says that it does not.
func (l *listeners) listens(ctx context.Context, address string, destinations []destination) bool {
	for _, destination := range destinations {
		serves, err := l.serves(ctx, address, destination)
		if err != nil {
			l.setBlind(address)
			return true
		}
		if !serves {
			return false
		}
	}
	return true
}

// serves tells whether a resolver serves a destination. An error says that this
// cannot be found out.
func (l *listeners) serves(ctx context.Context, address string, destination destination) (bool, error) {
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	connection, err := l.dial(dialCtx, "tcp", net.JoinHostPort(address, strconv.Itoa(int(destination.proxyPort))))
	if errors.Is(err, syscall.ECONNREFUSED) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// A resolver ignores a connection that says nothing.
	defer func() { _ = connection.Close() }()
	if destination.hostName == "" {
		return true, nil
	}
	// Deadlines are those of the network: the real time, whatever the clock.
	if err := connection.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return false, err
	}
	return sharedport.Knows(connection, destination.hostName)
}

func (l *listeners) isBlind(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	until, ok := l.blind[address]
	return ok && l.clock.Now().Before(until)
}

func (l *listeners) setBlind(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	maps.DeleteFunc(l.blind, func(_ string, until time.Time) bool { return !now.Before(until) })
	l.blind[address] = now.Add(blindTime)
}

// trustSlices takes the resolvers of slices that are in place for confirmed,
// so that a restart of the controller does not look at all of them.
func trustSlices(known *confirmation, destinations []destination, ports []v1alpha1.ProxyPort, owned []*observedSlice, now time.Time) {
	if known.destinations != nil {
		return
	}
	trusted := map[string]listener{}
	for _, slice := range owned {
		if !equality.Semantic.DeepEqual(slice.slice.Ports, slicePorts(ports)) {
			continue
		}
		for i := range slice.slice.Endpoints {
			if addresses := slice.slice.Endpoints[i].Addresses; len(addresses) > 0 {
				trusted[addresses[0]] = listener{since: now, listens: true}
			}
		}
	}
	*known = confirmation{destinations: destinations, resolvers: trusted}
}

// listeningResolvers returns the resolvers to list in the slices of an
// ElastiService, and whether those are all that are ready.
func (c *Controller) listeningResolvers(ctx context.Context, v *view, memory *memory, ports []v1alpha1.ProxyPort) (func(discoveryv1.AddressType) []discoveryv1.Endpoint, bool) {
	destinations := c.destinationsOf(v.service, ports)
	trustSlices(&memory.listeners, destinations, ports, v.ownSlices, c.clock.Now())
	var ready []discoveryv1.Endpoint
	for _, family := range addressTypes(v.service) {
		ready = append(ready, c.resolvers.ready(family)...)
	}
	complete := c.listeners.confirm(ctx, &memory.listeners, destinations, ready)
	if !complete {
		c.queue.AddAfter(keyOf(v.elastiService), listenRetry)
	}
	return func(family discoveryv1.AddressType) []discoveryv1.Endpoint {
		var listening []discoveryv1.Endpoint
		for _, endpoint := range c.resolvers.ready(family) {
			// One that became ready just now is looked at next time.
			if memory.listeners.resolvers[endpoint.Addresses[0]].listens {
				listening = append(listening, endpoint)
			}
		}
		return listening
	}, complete
}

func (c *Controller) destinationsOf(public *corev1.Service, ports []v1alpha1.ProxyPort) []destination {
	destinations := make([]destination, 0, len(ports))
	for _, port := range ports {
		destination := destination{proxyPort: port.ProxyPort}
		if port.ProxyPort == c.options.SharedProxyPort {
			destination.hostName = sharedport.HostName(public.Namespace, public.Name, port.Port)
		}
		destinations = append(destinations, destination)
	}
	return destinations
}
