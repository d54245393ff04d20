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
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

const (
	// HealthPortName is the name of the port of the resolvers' Service to which
	// a connection is kept.
	HealthPortName = "health"
	// livenessDialTimeout is how long a resolver may take to accept it.
	livenessDialTimeout = time.Second
	// minConnectionLife is how long a connection lasts at least when all is well. After
	// one that was shorter the next is made after a pause, which doubles from
	// minReconnectDelay to maxReconnectDelay.
	minConnectionLife = time.Second
	minReconnectDelay = 5 * time.Millisecond
	maxReconnectDelay = time.Second
	// deadRetryDelay is the pause between the attempts to connect to a resolver that
	// is dead, and unknownRetryDelay that after an attempt that says nothing.
	deadRetryDelay    = 100 * time.Millisecond
	unknownRetryDelay = 10 * time.Second
)

// Liveness detects that the process of a resolver has ended. The kubelet and the
// EndpointSlice controller take one or two seconds for that, in which connections are
// sent to a port that no process listens on. Liveness keeps a connection to each ready
// resolver, which ends with its process; when the next connection gets ECONNREFUSED,
// the resolver is dead. Other errors do not count: they may be caused between the
// controller and the resolver, and not concern its clients. It is safe for concurrent
// use.
type Liveness struct {
	// dial is nil when no resolver is watched.
	dial DialFunc
	// start runs a function until Run ends.
	start func(func())
	// changed is called when a resolver is dead, or alive again.
	changed func()

	mu sync.Mutex
	// watched ends the watch of each address.
	watched map[string]context.CancelFunc
	// dead are the hosts of the resolvers whose process has ended.
	dead map[string]bool
}

// NewLiveness returns a Liveness that watches nothing yet. start runs a function until
// the controller ends; changed is called when a resolver is dead, or alive again.
// Without a dial every resolver counts as alive.
func NewLiveness(dial DialFunc, start func(func()), changed func()) *Liveness {
	return &Liveness{dial: dial, start: start, changed: changed, watched: map[string]context.CancelFunc{}, dead: map[string]bool{}}
}

// Watch watches the ready endpoints of slices until ctx ends. They replace those that it
// watched before.
func (l *Liveness) Watch(ctx context.Context, found []*discoveryv1.EndpointSlice) {
	if l.dial == nil {
		return
	}
	ready := healthAddresses(found)
	l.mu.Lock()
	defer l.mu.Unlock()
	for address, end := range l.watched {
		if !ready[address] {
			end()
			delete(l.watched, address)
			host, _, _ := net.SplitHostPort(address)
			delete(l.dead, host)
		}
	}
	for address := range ready {
		if l.watched[address] != nil {
			continue
		}
		ctx, end := context.WithCancel(ctx)
		l.watched[address] = end
		l.start(func() { l.keepConnected(ctx, address) })
	}
}

// healthAddresses are the addresses and health ports of ready endpoints.
func healthAddresses(found []*discoveryv1.EndpointSlice) map[string]bool {
	addresses := map[string]bool{}
	for _, slice := range found {
		at := slices.IndexFunc(slice.Ports, func(port discoveryv1.EndpointPort) bool {
			return port.Name != nil && *port.Name == HealthPortName && port.Port != nil
		})
		if at < 0 {
			continue
		}
		for i := range slice.Endpoints {
			if endpoint := &slice.Endpoints[i]; resources.IsReady(endpoint) && len(endpoint.Addresses) > 0 {
				addresses[net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*slice.Ports[at].Port)))] = true
			}
		}
	}
	return addresses
}

// Alive returns the endpoints of resolvers that are not known to be dead. When all
// of them are, it returns all: none would not be better for clients.
func (l *Liveness) Alive(endpoints []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	l.mu.Lock()
	dead := maps.Clone(l.dead)
	l.mu.Unlock()
	if len(dead) == 0 {
		return endpoints
	}
	alive := slices.DeleteFunc(slices.Clone(endpoints), func(endpoint discoveryv1.Endpoint) bool { return dead[endpoint.Addresses[0]] })
	if len(alive) == 0 {
		return endpoints
	}
	return alive
}

// keepConnected keeps a connection to an address until ctx ends.
func (l *Liveness) keepConnected(ctx context.Context, address string) {
	pause := minReconnectDelay
	for ctx.Err() == nil {
		// Times here are those of the network: the real ones, whatever the clock.
		began := time.Now()
		connected, err := l.connect(ctx, address)
		switch {
		case connected:
			if time.Since(began) >= minConnectionLife {
				pause = minReconnectDelay
				continue
			}
			sleep(ctx, pause)
			pause = min(2*pause, maxReconnectDelay)
		case errors.Is(err, syscall.ECONNREFUSED):
			l.record(ctx, address, true)
			pause = minReconnectDelay
			sleep(ctx, deadRetryDelay)
		default:
			sleep(ctx, unknownRetryDelay)
		}
	}
}

// connect connects, and waits until the connection or ctx ends. It reports whether
// there was a connection, or returns why not.
func (l *Liveness) connect(ctx context.Context, address string) (bool, error) {
	dialCtx, cancel := context.WithTimeout(ctx, livenessDialTimeout)
	connection, err := l.dial(dialCtx, "tcp", address)
	cancel()
	if err != nil {
		return false, err
	}
	l.record(ctx, address, false)
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	defer stop()
	defer func() { _ = connection.Close() }()
	// Nothing was requested, so whatever comes is the end.
	_, _ = connection.Read(make([]byte, 1))
	return true, nil
}

// record records whether the resolver with an address is dead, unless the watch of
// it has ended.
func (l *Liveness) record(ctx context.Context, address string, dead bool) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return
	}
	l.mu.Lock()
	before := l.dead[host]
	ended := ctx.Err() != nil
	switch {
	case ended:
	case dead:
		l.dead[host] = true
	default:
		delete(l.dead, host)
	}
	l.mu.Unlock()
	if !ended && before != dead {
		l.changed()
	}
}

func sleep(ctx context.Context, duration time.Duration) {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
