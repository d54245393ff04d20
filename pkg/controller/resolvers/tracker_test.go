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
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

func TestAvailabilityOfFamilies(t *testing.T) {
	const grace = 30 * time.Second
	ipv4, ipv6 := discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	tracker := NewTracker(clock, grace, func([]string) {}, func(all []discoveryv1.Endpoint) []discoveryv1.Endpoint { return all })
	update := func(families ...discoveryv1.AddressType) {
		tracker.Update(func() (found []*discoveryv1.EndpointSlice) {
			for _, family := range families {
				found = append(found, &discoveryv1.EndpointSlice{AddressType: family, Endpoints: []discoveryv1.Endpoint{
					{Addresses: []string{"of " + string(family)}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}},
				}})
			}
			return found
		})
	}
	check := func(when string, one, both, first Availability) {
		t.Helper()
		if got, _, _ := tracker.Availability(); got != one {
			t.Errorf("%s: of any family %d, want %d", when, got, one)
		}
		if got, _, _ := tracker.AvailabilityOf([]discoveryv1.AddressType{ipv6, ipv4}); got != both {
			t.Errorf("%s: of both families %d, want %d", when, got, both)
		}
		if got, _, _ := tracker.AvailabilityOf([]discoveryv1.AddressType{ipv4}); got != first {
			t.Errorf("%s: of IPv4 %d, want %d", when, got, first)
		}
	}
	check("at first", Missing, Missing, Missing)
	update(ipv4, ipv6)
	check("with both", Available, Available, Available)
	clock.SetTime(clock.Now().Add(grace))
	update(ipv4)
	check("without IPv6", Available, Missing, Available)
	clock.SetTime(clock.Now().Add(grace))
	check("without IPv6 for long", Available, Unavailable, Available)
	update()
	check("without any", Missing, Unavailable, Missing)
	clock.SetTime(clock.Now().Add(grace / 2))
	if _, since, wait := tracker.Availability(); !since.Equal(time.Unix(1000, 0).Add(2*grace)) || wait != grace/2 {
		t.Errorf("missing since %s, unavailable in %s", since, wait)
	}
	update(ipv6)
	check("with IPv6 alone", Available, Missing, Missing)
	clock.SetTime(clock.Now().Add(grace))
	check("with IPv6 alone for long", Available, Unavailable, Unavailable)
}
