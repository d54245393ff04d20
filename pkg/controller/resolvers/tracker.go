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
	"cmp"
	"net"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// allFamilies are those that Services may have.
var allFamilies = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}

// Tracker tracks the resolvers that are ready. It is safe for concurrent use.
type Tracker struct {
	clock clock.PassiveClock
	// grace is how long there may be no ready resolver before targets are woken.
	grace time.Duration
	// namesChanged is called with the names of the ready resolvers, in order, with the
	// lock held.
	namesChanged func(names []string)
	// alive leaves out of ready endpoints those whose process has ended.
	alive func([]discoveryv1.Endpoint) []discoveryv1.Endpoint

	mu sync.Mutex
	// endpoints are the ready endpoints by family, sorted by address. The
	// slices are replaced, never changed.
	endpoints map[discoveryv1.AddressType][]discoveryv1.Endpoint
	// health are the addresses with health ports of those that are ready, by address.
	health map[string]string
	// missingSince is since when a family has no ready resolver, for the families that
	// have none.
	missingSince map[discoveryv1.AddressType]time.Time
	// names are those of the pods of the ready resolvers, sorted. Nil before the
	// first update.
	names []string
}

// NewTracker returns a Tracker without a ready resolver. grace is how long there may
// be none before they count as Unavailable. namesChanged is called with the sorted
// names of the ready resolvers when they change, and alive leaves out endpoints whose
// process has ended.
func NewTracker(clock clock.PassiveClock, grace time.Duration, namesChanged func([]string), alive func([]discoveryv1.Endpoint) []discoveryv1.Endpoint) *Tracker {
	missingSince := map[discoveryv1.AddressType]time.Time{}
	for _, family := range allFamilies {
		missingSince[family] = clock.Now()
	}
	return &Tracker{clock: clock, grace: grace, namesChanged: namesChanged, alive: alive, missingSince: missingSince}
}

// Update records what list returns as the slices of the resolvers' Service, and
// reports whether the ready resolvers changed.
func (r *Tracker) Update(list func() []*discoveryv1.EndpointSlice) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Listing under the lock: of two updates at a time, the later one stays.
	found := list()
	if names := readyResolverNames(found); r.names == nil || !slices.Equal(r.names, names) {
		r.names = names
		r.namesChanged(names)
	}
	r.health = map[string]string{}
	for address := range healthAddresses(found) {
		host, _, _ := net.SplitHostPort(address)
		r.health[host] = address
	}
	endpoints := readyResolvers(found)
	for family := range endpoints {
		endpoints[family] = r.alive(endpoints[family])
	}
	if equality.Semantic.DeepEqual(r.endpoints, endpoints) {
		return false
	}
	r.endpoints = endpoints
	for _, family := range allFamilies {
		_, missing := r.missingSince[family]
		switch {
		case len(endpoints[family]) > 0:
			delete(r.missingSince, family)
		case !missing:
			r.missingSince[family] = r.clock.Now()
		}
	}
	return true
}

// Ready returns the ready resolvers of a family. Callers must not modify them.
func (r *Tracker) Ready(family discoveryv1.AddressType) []discoveryv1.Endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.endpoints[family]
}

// HealthAddress returns the address with the health port of a ready resolver, or ""
// where its Service does not say which port that is.
func (r *Tracker) HealthAddress(address string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.health[address]
}

// Availability is whether resolvers can receive traffic.
type Availability int

const (
	// Available means that there is a ready resolver.
	Available Availability = iota
	// Missing means that there has been none for less than the grace period.
	Missing
	// Unavailable means that there has been none for the grace period.
	Unavailable
)

// Availability returns whether there are ready resolvers of any family, since when
// there are none, and how long it takes until Missing becomes Unavailable.
func (r *Tracker) Availability() (state Availability, since time.Time, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, family := range allFamilies {
		missing, ok := r.missingSince[family]
		if !ok {
			return Available, time.Time{}, 0
		}
		if missing.After(since) {
			since = missing
		}
	}
	return r.availability(since)
}

// AvailabilityOf returns whether there are ready resolvers of all of some families, since
// when one of these has none, and how long it takes until Missing becomes Unavailable.
func (r *Tracker) AvailabilityOf(families []discoveryv1.AddressType) (state Availability, since time.Time, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, family := range families {
		if missing, ok := r.missingSince[family]; ok && (since.IsZero() || missing.Before(since)) {
			since = missing
		}
	}
	if since.IsZero() {
		return Available, time.Time{}, 0
	}
	return r.availability(since)
}

// availability returns what it means that resolvers have been missing since a time. It
// must be called with mu held.
func (r *Tracker) availability(since time.Time) (Availability, time.Time, time.Duration) {
	if missing := r.clock.Since(since); missing < r.grace {
		return Missing, since, r.grace - missing
	}
	return Unavailable, since, 0
}

// readyResolverNames returns the names of the pods of the ready resolvers,
// sorted; one that is ready in both families has one. It is never nil.
func readyResolverNames(found []*discoveryv1.EndpointSlice) []string {
	names := []string{}
	for _, slice := range found {
		for i := range slice.Endpoints {
			endpoint := &slice.Endpoints[i]
			switch {
			case !resources.IsReady(endpoint) || len(endpoint.Addresses) == 0:
			case endpoint.TargetRef != nil && endpoint.TargetRef.Kind == "Pod":
				names = append(names, endpoint.TargetRef.Name)
			default:
				names = append(names, endpoint.Addresses[0])
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// readyResolvers returns endpoints for resolver slices: explicit conditions,
// where the resolver runs, and nothing that refers into another namespace.
func readyResolvers(found []*discoveryv1.EndpointSlice) map[discoveryv1.AddressType][]discoveryv1.Endpoint {
	endpoints := map[discoveryv1.AddressType][]discoveryv1.Endpoint{}
	for _, slice := range found {
		for i := range slice.Endpoints {
			endpoint := &slice.Endpoints[i]
			if !resources.IsReady(endpoint) || len(endpoint.Addresses) == 0 {
				continue
			}
			endpoints[slice.AddressType] = append(endpoints[slice.AddressType], discoveryv1.Endpoint{
				Addresses:  endpoint.Addresses[:1],
				Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
				NodeName:   endpoint.NodeName,
				Zone:       endpoint.Zone,
			})
		}
	}
	byAddress := func(one, other discoveryv1.Endpoint) int { return cmp.Compare(one.Addresses[0], other.Addresses[0]) }
	sameAddress := func(one, other discoveryv1.Endpoint) bool { return one.Addresses[0] == other.Addresses[0] }
	for family := range endpoints {
		slices.SortFunc(endpoints[family], byAddress)
		endpoints[family] = slices.CompactFunc(endpoints[family], sameAddress)
	}
	return endpoints
}
