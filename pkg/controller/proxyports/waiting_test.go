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
	"errors"
	"slices"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports/proxyportstest"
)

// wantNotified checks which owners were notified since the last time.
func (p *ports) wantNotified(want ...types.NamespacedName) {
	p.Helper()
	if !slices.Equal(p.notified, want) {
		p.Errorf("%v were notified, want %v", p.notified, want)
	}
	p.notified = nil
}

// searchWhileStored has an owner search for a port, which it does not find, while the storage
// is about to do what it is called for next.
func (p *ports) searchWhileStored(owner proxyports.Owner, then func()) {
	p.claims.Before(func() {
		if got, err := p.Assign(p.Context(), owner, []int32{80}, nil); err != nil || len(got) != 0 {
			p.Errorf("%s was assigned %v (%v), want none", owner, got, err)
		}
		then()
	})
}

// An owner that finds a port for one of its Service ports only, waits from when it has
// searched for the other one.
func TestPortThatIsReleasedDuringAnAssignmentIsNotMissed(t *testing.T) {
	const size = 800
	waiting, slices := service(1), references{}
	ports := newReferencedPorts(t, size, proxyportstest.New(), slices)
	recorded := ports.assign(waiting, []int32{81}, nil)
	slices[waiting.NamespacedName] = []int32{recorded[81]}
	ports.assign(waiting, nil, nil)

	elsewhere := func(name string) proxyports.Owner {
		owner := service(0)
		owner.Namespace = name
		return owner
	}
	thousands := make([]int32, size)
	for i := range thousands {
		thousands[i] = int32(i + 1)
	}
	ports.assign(elsewhere("greedy"), thousands, nil)
	given := 2
	for number := 0; given == 2; number++ {
		given = len(ports.assign(elsewhere(strconv.Itoa(number)), []int32{80, 81}, nil))
	}

	ports.claims.Before(func() { ports.Release(elsewhere("0").NamespacedName) })
	if got := ports.assign(waiting, []int32{80, 81}, recorded); len(got) != 1 || got[81] != recorded[81] {
		t.Errorf("got %v, want the port that a slice refers to and no other", got)
	}
	if !containsOwner(ports.notified, waiting) {
		t.Errorf("%v were notified of the ports that were released meanwhile", ports.notified)
	}
	if got := ports.assign(waiting, []int32{80, 81}, recorded); len(got) != 2 {
		t.Errorf("got %v once others are free", got)
	}
}

func containsOwner(owners []types.NamespacedName, owner proxyports.Owner) bool {
	return slices.Contains(owners, owner.NamespacedName)
}

// No owner finds a port whose claim is being deleted.
func TestPortWhoseClaimIsBeingDeletedIsNotMissed(t *testing.T) {
	for name, failure := range map[string]error{"deleted": nil, "not deleted": errors.New("away")} {
		t.Run(name, func(t *testing.T) {
			ports := newPorts(t, 1, proxyportstest.New())
			ports.assign(service(1), []int32{80}, nil)
			ports.Release(service(1).NamespacedName)
			ports.clock.Step(proxyports.ReuseCooldown)
			ports.searchWhileStored(service(2), func() { ports.claims.Fail(failure, nil) })
			ports.DeleteReleasedClaims(t.Context())
			ports.claims.Fail(nil, nil)
			ports.wantNotified(service(2).NamespacedName)
			if got := ports.assign(service(2), []int32{80}, nil); len(got) != 1 {
				t.Errorf("got %v, want the port that was being released", got)
			}
		})
	}
}

func TestPortThatIsNotWithheldAnyMoreIsNotMissed(t *testing.T) {
	claims := proxyportstest.New()
	claims.Damage(10000)
	ports := newPorts(t, 1, claims)
	if got := ports.assign(service(1), []int32{80}, nil); len(got) != 0 {
		t.Errorf("got %v, whose claim is damaged", got)
	}
	ports.DeleteReleasedClaims(t.Context())
	ports.wantNotified()

	ports.clock.Step(proxyports.WithheldTime)
	ports.DeleteReleasedClaims(t.Context())
	ports.wantNotified(service(1).NamespacedName)
	if got := ports.assign(service(1), []int32{80}, nil); len(got) != 0 {
		t.Errorf("got %v, whose claim is damaged still", got)
	}
	ports.DeleteReleasedClaims(t.Context())
	ports.wantNotified()

	claims.Damage()
	ports.clock.Step(proxyports.WithheldTime)
	ports.DeleteReleasedClaims(t.Context())
	ports.wantNotified(service(1).NamespacedName)
	if got := ports.assign(service(1), []int32{80}, nil); len(got) != 1 {
		t.Errorf("got %v, want the port whose claim is repaired", got)
	}
}

// The owner that was given the port may be deleted before it searches again.
func TestPortWhoseClaimCannotBeDeletedIsNotMissed(t *testing.T) {
	ports := newPorts(t, 1, proxyportstest.New())
	ports.assign(service(1), []int32{80}, nil)
	ports.Release(service(1).NamespacedName)
	ports.searchWhileStored(service(3), func() { ports.claims.Damage(10000) })
	if got, err := ports.Assign(t.Context(), service(2), []int32{80}, nil); err == nil {
		t.Errorf("got %v, whose claim before was not deleted", got)
	}
	ports.Release(service(2).NamespacedName)
	ports.wantNotified()
	ports.DeleteReleasedClaims(t.Context())
	ports.wantNotified(service(3).NamespacedName)
	ports.claims.Damage()
	if got := ports.assign(service(3), []int32{80}, nil); len(got) != 1 {
		t.Errorf("got %v, want the port of which the claim before can be deleted", got)
	}
}
