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

package proxyports_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports/proxyportstest"
)

// references are the proxy ports that resolver slices refer to, by the ElastiService of these.
type references map[types.NamespacedName][]int32

func (r references) byPort() map[int32][]types.NamespacedName {
	owners := map[int32][]types.NamespacedName{}
	for owner, proxyPorts := range r {
		for _, proxyPort := range proxyPorts {
			owners[proxyPort] = append(owners[proxyPort], owner)
		}
	}
	return owners
}

func newReferencedPorts(t *testing.T, size int, claims *proxyportstest.Claims, slices references) *ports {
	t.Helper()
	p := &ports{T: t, claims: claims, clock: clocktesting.NewFakeClock(time.Now())}
	p.Allocator = proxyports.New(proxyports.Options{
		Range:  utilnet.PortRange{Base: 10000, Size: size},
		Claims: claims,
		Freed:  func(owner types.NamespacedName) { p.notified = append(p.notified, owner) },
		Refers: func(owner types.NamespacedName, proxyPort int32) bool {
			for _, referenced := range slices[owner] {
				if referenced == proxyPort {
					return true
				}
			}
			return false
		},
		Clock: p.clock,
	})
	return p
}

// The only port of the range goes to another when no slice refers to it any more, whichever
// ElastiService had it and whether a claim says so.
func TestPortStaysForAsLongAsAResolverSliceLeadsThere(t *testing.T) {
	previous, other, wanting := service(1), service(2), service(3)
	for name, test := range map[string]struct {
		claims *proxyportstest.Claims
		slices references
		begin  func(*ports)
	}{
		"released": {
			claims: proxyportstest.New(),
			slices: references{previous.NamespacedName: {10000}},
			begin: func(p *ports) {
				p.restore()
				p.assign(previous, []int32{80}, nil)
				p.Release(previous.NamespacedName)
			},
		},
		"claimed by one that was deleted": {
			claims: proxyportstest.New(claimFor(previous, 80, 10000)),
			slices: references{previous.NamespacedName: {10000}},
			begin:  func(p *ports) { p.restore() },
		},
		"of one that was lost": {
			claims: proxyportstest.New(),
			slices: references{previous.NamespacedName: {10000}},
			begin:  func(p *ports) { p.restore() },
		},
		"claimed by another one that was deleted": {
			claims: proxyportstest.New(claimFor(other, 80, 10000)),
			slices: references{previous.NamespacedName: {10000}},
			begin:  func(p *ports) { p.restore() },
		},
		"of two that were lost": {
			claims: proxyportstest.New(),
			slices: references{previous.NamespacedName: {10000}, other.NamespacedName: {10000}},
			begin:  func(p *ports) { p.restore() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			ports := newReferencedPorts(t, 1, test.claims, test.slices)
			test.begin(ports)
			ports.Hold(test.slices.byPort())
			given := func() int {
				ports.DeleteReleasedClaims(t.Context())
				return len(ports.assign(wanting, []int32{80}, nil))
			}
			for len(test.slices) > 0 {
				ports.clock.Step(time.Hour)
				if given() != 0 {
					t.Fatalf("the port was given to another, and %v refer to it", test.slices)
				}
				for owner := range test.slices {
					delete(test.slices, owner)
					break
				}
			}
			if given() != 1 {
				t.Error("the port is not used any more")
			}
			if len(ports.notified) != 1 || ports.notified[0] != wanting.NamespacedName {
				t.Errorf("%v were notified of the free port, want the one that waits", ports.notified)
			}
		})
	}
}

// A slice says what its last writer wanted, so that its ports count as those of its
// namespace, and what is claimed counts first.
func TestEditedSlicesKeepNoMorePortsThanTheirNamespaceMayHave(t *testing.T) {
	owner := service(1)
	slices := references{owner.NamespacedName: nil}
	for proxyPort := range int32(30000) {
		slices[owner.NamespacedName] = append(slices[owner.NamespacedName], proxyPort)
	}
	claimed := service(2)
	ports := newReferencedPorts(t, 800, proxyportstest.New(claimFor(claimed, 80, 10001)), slices)
	ports.restore(proxyports.Recorded{Owner: claimed, Ports: map[int32]int32{80: 10001}})
	ports.Hold(slices.byPort())
	if got := ports.assign(claimed, []int32{80}, nil); got[80] != 10001 {
		t.Errorf("the one that has port 10001 was given %v", got)
	}
	if !ports.IsOfAnother(owner.NamespacedName, 10001) || ports.IsOfAnother(claimed.NamespacedName, 10001) {
		t.Error("port 10001 is not that of the one that claims it")
	}
	elsewhere := service(3)
	elsewhere.Namespace = "elsewhere"
	if got := ports.assign(elsewhere, []int32{80, 81}, nil); len(got) != 2 {
		t.Errorf("another namespace was given %v", got)
	}
	if got := ports.assign(service(4), []int32{80}, nil); len(got) != 0 {
		t.Errorf("the namespace was given %v beside all that it may have", got)
	}
}
