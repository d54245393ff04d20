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
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers/resolverstest"
)

func TestResolversAreListedOnceTheyListen(t *testing.T) {
	network := &resolverstest.Network{}
	clock := clocktesting.NewFakeClock(time.Now())
	listeners := NewPortChecker(network.Dial, clock)
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"10.0.0.2"}}}
	known := &PortChecks{}
	ports := []Destination{{ProxyPort: 10000}, {ProxyPort: 10001}}

	network.Respond("10.0.0.2:10001", resolverstest.Refused())
	if listeners.Check(t.Context(), known, ports, ready) || !known.resolvers["10.0.0.1"].listens || known.resolvers["10.0.0.2"].listens {
		t.Errorf("known is %+v", known)
	}
	network.TakeDials()
	network.Respond("10.0.0.2:10001", nil)
	if !listeners.Check(t.Context(), known, ports, ready) {
		t.Errorf("known is %+v", known)
	}
	if dials := network.TakeDials(); dials != 2 {
		t.Errorf("%d dials, want those to the one that was not known", dials)
	}
	if !listeners.Check(t.Context(), known, ports, ready) || network.TakeDials() != 0 {
		t.Error("dialled what is known")
	}
	// A resolver that comes back, and other ports, are looked at again.
	listeners.Check(t.Context(), known, ports, ready[:1])
	listeners.Check(t.Context(), known, ports, ready)
	if dials := network.TakeDials(); dials != 2 {
		t.Errorf("%d dials after a resolver came back, want 2", dials)
	}
	listeners.Check(t.Context(), known, []Destination{{ProxyPort: 10002}}, ready)
	if dials := network.TakeDials(); dials != 2 {
		t.Errorf("%d dials after a change of the ports, want 2", dials)
	}
}

func TestResolverThatNeverListensIsListedInTheEnd(t *testing.T) {
	network := &resolverstest.Network{}
	network.Respond("10.0.0.1:10000", resolverstest.Refused())
	clock := clocktesting.NewFakeClock(time.Now())
	listeners := NewPortChecker(network.Dial, clock)
	known := &PortChecks{}
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	if listeners.Check(t.Context(), known, []Destination{{ProxyPort: 10000}}, ready) {
		t.Error("listed although it refuses")
	}
	clock.Step(portCheckTimeout)
	if !listeners.Check(t.Context(), known, []Destination{{ProxyPort: 10000}}, ready) {
		t.Error("still not listed")
	}
}

func TestResolverThatCannotBeReachedIsListedAtOnce(t *testing.T) {
	network := &resolverstest.Network{}
	network.Respond("10.0.0.1:10000", context.DeadlineExceeded)
	clock := clocktesting.NewFakeClock(time.Now())
	listeners := NewPortChecker(network.Dial, clock)
	ready := []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	for range 10 {
		if !listeners.Check(t.Context(), &PortChecks{}, []Destination{{ProxyPort: 10000}}, ready) {
			t.Error("not listed")
		}
	}
	if dials := network.TakeDials(); dials != 1 {
		t.Errorf("%d dials for 10 ElastiServices, want 1", dials)
	}
}
