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

	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	// healthPortName is the name of the port of the resolvers' Service to which
	// a connection is kept.
	healthPortName = "health"
	// pulseDialTimeout is how long a resolver may take to accept it.
	pulseDialTimeout = time.Second
	// shortLife is how long a connection lasts at least when all is well. After
	// one that was shorter the next is made after a pause, which doubles from
	// firstPause to lastPause.
	shortLife  = time.Second
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
	// deadPause is the pause between the looks at a resolver that is gone, and
	// unknownPause that between looks that tell nothing.
	deadPause    = 100 * time.Millisecond
	unknownPause = 10 * time.Second
)

// pulses notice that the process of a resolver has ended. Until the kubelet
// notices, and its report has gone through the EndpointSlice controller, one or
// two seconds pass, in which clients are sent to a port that nobody listens on.
// A connection to each ready resolver ends when its process does; when the next
// is refused, the resolver is gone. Nothing else counts as a sign: what lies
// between the controller and a resolver may not lie between it and its clients.
// Safe for concurrent use.
type pulses struct {
	// dial is nil when nobody is looked at.
	dial DialFunc
	// start runs a function until Run ends.
	start func(func())
	// changed is told that a resolver is gone, or is back.
	changed func()

	mu sync.Mutex
	// followed ends the looks at each address.
	followed map[string]context.CancelFunc
	// gone are the hosts of those whose process has ended.
	gone map[string]bool
}

func newPulses(dial DialFunc, start func(func()), changed func()) *pulses {
	return &pulses{dial: dial, start: start, changed: changed, followed: map[string]context.CancelFunc{}, gone: map[string]bool{}}
}

// follow looks at the ready endpoints of slices, and at no others any more,
// until ctx ends.
func (p *pulses) follow(ctx context.Context, found []*discoveryv1.EndpointSlice) {
	if p.dial == nil {
		return
	}
	ready := healthAddresses(found)
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, end := range p.followed {
		if !ready[address] {
			end()
			delete(p.followed, address)
			host, _, _ := net.SplitHostPort(address)
			delete(p.gone, host)
		}
	}
	for address := range ready {
		if p.followed[address] != nil {
			continue
		}
		ctx, end := context.WithCancel(ctx)
		p.followed[address] = end
		p.start(func() { p.feel(ctx, address) })
	}
}

// healthAddresses are the addresses and health ports of ready endpoints.
func healthAddresses(found []*discoveryv1.EndpointSlice) map[string]bool {
	addresses := map[string]bool{}
	for _, slice := range found {
		at := slices.IndexFunc(slice.Ports, func(port discoveryv1.EndpointPort) bool {
			return port.Name != nil && *port.Name == healthPortName && port.Port != nil
		})
		if at < 0 {
			continue
		}
		for i := range slice.Endpoints {
			if endpoint := &slice.Endpoints[i]; isReady(endpoint) && len(endpoint.Addresses) > 0 {
				addresses[net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*slice.Ports[at].Port)))] = true
			}
		}
	}
	return addresses
}

// living returns the endpoints of resolvers that are not known to be gone. When
// all of them are, it returns all: clients are no better off with nobody.
func (p *pulses) living(endpoints []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	p.mu.Lock()
	gone := maps.Clone(p.gone)
	p.mu.Unlock()
	if len(gone) == 0 {
		return endpoints
	}
	living := slices.DeleteFunc(slices.Clone(endpoints), func(endpoint discoveryv1.Endpoint) bool { return gone[endpoint.Addresses[0]] })
	if len(living) == 0 {
		return endpoints
	}
	return living
}

// feel keeps a connection to an address until ctx ends.
func (p *pulses) feel(ctx context.Context, address string) {
	pause := firstPause
	for ctx.Err() == nil {
		// Times here are those of the network: the real ones, whatever the clock.
		began := time.Now()
		connected, err := p.connect(ctx, address)
		switch {
		case connected:
			if time.Since(began) >= shortLife {
				pause = firstPause
				continue
			}
			sleep(ctx, pause)
			pause = min(2*pause, lastPause)
		case errors.Is(err, syscall.ECONNREFUSED):
			p.set(ctx, address, true)
			pause = firstPause
			sleep(ctx, deadPause)
		default:
			sleep(ctx, unknownPause)
		}
	}
}

// connect connects, and waits until the connection or ctx ends. It returns
// whether there was a connection, or why not.
func (p *pulses) connect(ctx context.Context, address string) (bool, error) {
	dialCtx, cancel := context.WithTimeout(ctx, pulseDialTimeout)
	connection, err := p.dial(dialCtx, "tcp", address)
	cancel()
	if err != nil {
		return false, err
	}
	p.set(ctx, address, false)
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	defer stop()
	defer func() { _ = connection.Close() }()
	// Nothing was asked, so whatever comes is the end.
	_, _ = connection.Read(make([]byte, 1))
	return true, nil
}

// set notes whether the resolver of an address is gone, unless its looks have
// ended.
func (p *pulses) set(ctx context.Context, address string, gone bool) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return
	}
	p.mu.Lock()
	before := p.gone[host]
	ended := ctx.Err() != nil
	switch {
	case ended:
	case gone:
		p.gone[host] = true
	default:
		delete(p.gone, host)
	}
	p.mu.Unlock()
	if !ended && before != gone {
		p.changed()
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
