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
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/portcheck"
	"github.com/truefoundry/elasti-apiserver/pkg/sharedport"
)

const (
	// dialTimeout is how long a resolver may take to accept a connection, and
	// responseTimeout how long it may take to respond on it.
	dialTimeout     = 250 * time.Millisecond
	responseTimeout = 500 * time.Millisecond
	// PortCheckRetryDelay is the pause between the checks of a resolver that does
	// not accept connections yet.
	PortCheckRetryDelay = 250 * time.Millisecond
	// portCheckTimeout is how long the other resolvers wait for one that does not
	// accept. After that something else is wrong: see PortChecks.Overdue.
	portCheckTimeout = 5 * time.Second
	// OverdueRetryDelay is the pause between the checks of a resolver that has not
	// accepted for portCheckTimeout. It may be so for all ElastiServices.
	OverdueRetryDelay = time.Minute
	// unreachableTime is how long a resolver is listed without a check after it
	// could not be reached: between the controller and it may be a network policy.
	unreachableTime = time.Minute
)

// errUnreachable means that a resolver cannot be reached, or does not respond in time.
var errUnreachable = errors.New("the resolver cannot be reached")

// DialFunc connects, as net.Dialer.DialContext does.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Query is the query whether a resolver serves proxy ports of an ElastiService.
type Query struct {
	portcheck.Query
	// SharedPort is the proxy port on which Services are distinguished by host name.
	// 0: none.
	SharedPort int32
}

func (q *Query) equal(other *Query) bool {
	return q.UID == other.UID && q.Service == other.Service && q.SharedPort == other.SharedPort && slices.Equal(q.Ports, other.Ports)
}

// PortChecker checks which resolvers accept connections on proxy ports. A resolver
// that is ready may not have observed a new proxy port yet, and would reject the
// connections that a resolver slice sends it; nor a Service on the shared port, and
// would reject its requests; nor that resolvers are about to be in the path of a
// Service whose target was awake, and would let connections wait. So each is queried
// right before a slice names it, which also tells it to accept from now on. Resolvers
// are queried on their health ports: a connection to a proxy port would be traffic of
// its Service. It is safe for concurrent use.
type PortChecker struct {
	// dial is nil when no resolver is checked.
	dial DialFunc
	// health returns the address with the health port of a resolver, or "".
	health func(address string) string
	clock  clock.PassiveClock

	mu sync.Mutex
	// unreachable is until when resolvers are not checked, by address. Entries whose
	// time is over are dropped when another one is added.
	unreachable map[string]time.Time
}

// NewPortChecker returns a PortChecker that dials with dial. Without it every
// resolver counts as accepting. health returns the address with the health port of a
// resolver, or "" where it is not known.
func NewPortChecker(dial DialFunc, health func(address string) string, clock clock.PassiveClock) *PortChecker {
	return &PortChecker{dial: dial, health: health, clock: clock, unreachable: map[string]time.Time{}}
}

// PortChecks is the state of the resolvers that accept connections on the proxy ports
// of one ElastiService. The zero value is empty. It is not safe for concurrent use.
type PortChecks struct {
	// query is what the rest is about. Nil: nothing was checked.
	query *Query
	// resolvers are the ready resolvers, by address.
	resolvers map[string]portCheck
}

// portCheck is the state of one resolver.
type portCheck struct {
	// since is when it was checked first.
	since time.Time
	// accepts is true when it accepts connections to all of the ports, as far as is
	// known: it says so, or cannot be checked.
	accepts bool
	// trusted is true while accepting is assumed because a slice that existed before
	// this process lists it.
	trusted bool
	// overdue is true when it has not accepted for portCheckTimeout.
	overdue bool
	// listed is true once a resolver slice names it with the ports. A resolver that
	// accepts is not checked any more then: the slice may not be in the cache yet, and
	// the resolver accepts for as long as there is one.
	listed bool
}

// Check checks those of the ready resolvers that no resolver slice names yet with the
// ports of the query, and those that do not accept. It reports whether all others
// accept, or have had their time to: until then it is worth waiting for them. With
// thorough, resolvers that are only trusted are checked too: a target with ready
// endpoints is about to depend on them. The caller records the resolvers that it lists next
// with RecordListed.
func (l *PortChecker) Check(ctx context.Context, known *PortChecks, query Query, ready []discoveryv1.Endpoint, thorough bool) bool {
	if known.query == nil || !known.query.equal(&query) {
		*known = PortChecks{query: &query}
	}
	// Without those that are not ready any more: they are checked again when they
	// come back.
	current := make(map[string]portCheck, len(ready))
	var mu sync.Mutex
	var checks sync.WaitGroup
	for i := range ready {
		address := ready[i].Addresses[0]
		resolver, ok := known.resolvers[address]
		if !ok {
			resolver.since = l.clock.Now()
		}
		if resolver.trusted && thorough {
			resolver = portCheck{since: l.clock.Now()}
		}
		if l.dial == nil || resolver.listed && resolver.accepts || l.isUnreachable(address) {
			resolver.accepts, resolver.overdue = true, false
			mu.Lock()
			current[address] = resolver
			mu.Unlock()
			continue
		}
		checks.Go(func() {
			resolver.accepts = l.accepts(ctx, address, &query)
			resolver.overdue = !resolver.accepts && l.clock.Since(resolver.since) >= portCheckTimeout
			resolver.listed = resolver.listed && resolver.accepts
			mu.Lock()
			defer mu.Unlock()
			current[address] = resolver
		})
	}
	checks.Wait()
	known.resolvers = current
	for _, resolver := range current {
		if !resolver.accepts && !resolver.overdue {
			return false
		}
	}
	return true
}

// accepts reports whether a resolver accepts connections to all ports of a query. A resolver
// that cannot be checked counts as accepting: it cannot be reached, or is of an earlier
// version whose response says nothing. After an unexpected response it does not, for this
// Service alone: the response may be due to it.
func (l *PortChecker) accepts(ctx context.Context, address string, query *Query) bool {
	accepts, err := l.query(ctx, address, query)
	earlier := errors.Is(err, portcheck.ErrNotSupported)
	if earlier {
		accepts, err = l.connect(ctx, address, query)
	}
	switch {
	case err == nil:
		return accepts
	case errors.Is(err, errUnreachable):
		l.setUnreachable(address)
		return true
	default:
		return earlier
	}
}

// query queries a resolver on its health port, and tells it to accept. A Service may
// have more ports than one query may be about.
func (l *PortChecker) query(ctx context.Context, address string, query *Query) (accepts bool, err error) {
	health := l.health(address)
	if health == "" {
		return false, portcheck.ErrNotSupported
	}
	for ports := range slices.Chunk(query.Ports, portcheck.MaxPorts) {
		part := query.Query
		part.Ports, part.Accept = ports, true
		accepts, err = l.with(ctx, health, func(connection net.Conn) (bool, error) {
			return exchange(connection, func(connection net.Conn) (bool, error) {
				state, err := part.Send(connection)
				return state == portcheck.Accepting, err
			})
		})
		if !accepts || err != nil {
			return false, err
		}
	}
	return true, nil
}

// connect checks a resolver of an earlier version, which cannot be queried, by
// connecting to its proxy ports. Without a byte such a connection wakes nothing.
func (l *PortChecker) connect(ctx context.Context, address string, query *Query) (bool, error) {
	for _, port := range query.Ports {
		serves, err := l.with(ctx, net.JoinHostPort(address, strconv.Itoa(int(port.Proxy))), func(connection net.Conn) (bool, error) {
			if port.Proxy != query.SharedPort {
				return true, nil
			}
			name := sharedport.HostName(query.Service.Namespace, query.Service.Name, port.Service)
			return exchange(connection, func(connection net.Conn) (bool, error) { return sharedport.Knows(connection, name) })
		})
		if !serves || err != nil {
			return false, err
		}
	}
	return true, nil
}

// with connects to an address and returns what check returns for the connection. A
// refused connection is a negative response; an error means that the result is unknown.
func (l *PortChecker) with(ctx context.Context, address string, check func(net.Conn) (bool, error)) (bool, error) {
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	connection, err := l.dial(dialCtx, "tcp", address)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	defer func() { _ = connection.Close() }()
	return check(connection)
}

// exchange sends a request on a connection, and waits for the response for
// responseTimeout. The error matches errUnreachable when none comes in that time.
func exchange(connection net.Conn, request func(net.Conn) (bool, error)) (bool, error) {
	// Deadlines are those of the network: the real time, whatever the clock.
	if err := connection.SetDeadline(time.Now().Add(responseTimeout)); err != nil {
		return false, err
	}
	ok, err := request(connection)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		err = fmt.Errorf("%w: %w", errUnreachable, err)
	}
	return ok, err
}

func (l *PortChecker) isUnreachable(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	until, ok := l.unreachable[address]
	return ok && l.clock.Now().Before(until)
}

func (l *PortChecker) setUnreachable(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	maps.DeleteFunc(l.unreachable, func(_ string, until time.Time) bool { return !now.Before(until) })
	l.unreachable[address] = now.Add(unreachableTime)
}

// Trust records the resolvers of resolver slices that are in place, and have the
// ports, as listed, so that a restart of the controller does not check all of
// them. It does nothing once anything was checked.
func (known *PortChecks) Trust(query Query, ports []discoveryv1.EndpointPort, inPlace []*discoveryv1.EndpointSlice, now time.Time) {
	if known.query != nil {
		return
	}
	trusted := map[string]portCheck{}
	for _, slice := range inPlace {
		if !equality.Semantic.DeepEqual(slice.Ports, ports) {
			continue
		}
		for i := range slice.Endpoints {
			if addresses := slice.Endpoints[i].Addresses; len(addresses) > 0 {
				trusted[addresses[0]] = portCheck{since: now, accepts: true, trusted: true, listed: true}
			}
		}
	}
	*known = PortChecks{query: &query, resolvers: trusted}
}

// Accepting reports whether the resolver with an address is known to accept connections
// to all of the ports.
func (known *PortChecks) Accepting(address string) bool { return known.resolvers[address].accepts }

// Overdue reports whether the resolver with an address is known not to accept connections
// to all of the ports, for longer than it is waited for. Where no endpoint is ready
// either, a slice that names it is no worse for clients than one that names none.
func (known *PortChecks) Overdue(address string) bool { return known.resolvers[address].overdue }

// RecordListed records that resolver slices, which were written since the check, name
// resolvers with the ports.
func (known *PortChecks) RecordListed(written []*discoveryv1.EndpointSlice) {
	for _, slice := range written {
		for i := range slice.Endpoints {
			address := slice.Endpoints[i].Addresses[0]
			if resolver, ok := known.resolvers[address]; ok {
				resolver.listed = true
				known.resolvers[address] = resolver
			}
		}
	}
}

// Forget records that no resolver slice names a resolver any more, whatever the cache
// has: each is checked again before one does.
func (known *PortChecks) Forget() { *known = PortChecks{query: &Query{}} }
