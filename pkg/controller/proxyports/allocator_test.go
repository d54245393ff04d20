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
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports/proxyportstest"
)

func service(number int) proxyports.Owner {
	name := "service-" + strconv.Itoa(number)
	return proxyports.Owner{NamespacedName: types.NamespacedName{Namespace: "shop", Name: name}, UID: types.UID("uid-of-" + name)}
}

func claimFor(owner proxyports.Owner, servicePort, proxyPort int32) v1alpha1.ProxyPortClaimSpec {
	return v1alpha1.ProxyPortClaimSpec{ProxyPort: proxyPort, Port: servicePort, Owner: v1alpha1.ProxyPortOwner{Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID}}
}

// ports is an allocator under test.
type ports struct {
	*testing.T
	*proxyports.Allocator
	claims   *proxyportstest.Claims
	clock    *clocktesting.FakeClock
	notified []types.NamespacedName
}

func newPorts(t *testing.T, size int, claims *proxyportstest.Claims) *ports {
	t.Helper()
	p := &ports{T: t, claims: claims, clock: clocktesting.NewFakeClock(time.Now())}
	p.Allocator = proxyports.New(proxyports.Options{
		Range:  utilnet.PortRange{Base: 10000, Size: size},
		Claims: claims,
		Freed:  func(owner types.NamespacedName) { p.notified = append(p.notified, owner) },
		Clock:  p.clock,
	})
	return p
}

func (p *ports) assign(owner proxyports.Owner, servicePorts []int32, recorded map[int32]int32) map[int32]int32 {
	p.Helper()
	assigned, err := p.Assign(p.Context(), owner, servicePorts, recorded)
	if err != nil {
		p.Fatal(err)
	}
	for servicePort, proxyPort := range assigned {
		if got := p.claims.Stored()[proxyPort]; got != claimFor(owner, servicePort, proxyPort) {
			p.Errorf("%s was given port %d, and the claim is %+v", owner, proxyPort, got)
		}
	}
	return assigned
}

// restore restores with no ElastiService existing but those in the list.
func (p *ports) restore(recorded ...proxyports.Recorded) {
	p.Helper()
	if err := p.Restore(p.Context(), recorded, func(context.Context, proxyports.Owner) (bool, error) { return false, nil }); err != nil {
		p.Fatal(err)
	}
}

func TestProxyPortsAreUniqueUntilExhausted(t *testing.T) {
	ports := newPorts(t, 50, proxyportstest.New())
	seen := map[int32]bool{}
	elsewhere := func(number int) proxyports.Owner {
		owner := service(number)
		owner.Namespace += strconv.Itoa(number)
		return owner
	}
	for number := range 50 {
		for _, proxyPort := range ports.assign(elsewhere(number), []int32{80}, nil) {
			if seen[proxyPort] || proxyPort < 10000 || proxyPort >= 10050 {
				t.Errorf("port %d", proxyPort)
			}
			seen[proxyPort] = true
		}
	}
	if len(seen) != 50 {
		t.Errorf("%d ports were assigned, want 50", len(seen))
	}
	if got := ports.assign(elsewhere(50), []int32{80}, nil); len(got) != 0 {
		t.Errorf("got %v when all are taken", got)
	}
	ports.Release(elsewhere(7).NamespacedName)
	if got := ports.assign(elsewhere(50), []int32{80}, nil); len(got) != 1 {
		t.Error("the released port was not assigned")
	}
}

// A tenant's Service may have as many ports as resolvers have proxy ports.
func TestANamespaceLeavesProxyPortsToOthers(t *testing.T) {
	const size = 800
	greedy, thousands := service(1), make([]int32, size)
	for i := range thousands {
		thousands[i] = int32(i + 1)
	}
	ports := newPorts(t, size, proxyportstest.New())
	got := ports.assign(greedy, thousands, nil)
	if len(got) < size/2 || len(got) == size {
		t.Errorf("one namespace got %d of %d proxy ports", len(got), size)
	}
	if again := ports.assign(greedy, thousands, nil); !maps.Equal(again, got) {
		t.Errorf("it had %d proxy ports, and has %d", len(got), len(again))
	}
	for number := range 20 {
		other := service(number)
		other.Namespace += strconv.Itoa(number)
		if got := ports.assign(other, []int32{80, 443}, nil); len(got) != 2 {
			t.Errorf("%s got %v", other, got)
		}
	}
	// What counts is what is in use, also after a restart.
	restarted := newPorts(t, size, ports.claims)
	restarted.restore(proxyports.Recorded{Owner: greedy, Ports: got})
	if again := restarted.assign(greedy, thousands, got); !maps.Equal(again, got) {
		t.Errorf("it had %d proxy ports, and has %d after a restart", len(got), len(again))
	}
	ports.notified = nil
	ports.assign(greedy, thousands[:10], nil)
	another := service(2)
	if got := ports.assign(another, thousands[:size/2], nil); len(got) != size/2 {
		t.Errorf("%d of the released proxy ports were assigned", len(got))
	}
}

func TestProxyPortsStay(t *testing.T) {
	ports := newPorts(t, 100, proxyportstest.New())
	first := ports.assign(service(1), []int32{80, 81}, nil)
	if again := ports.assign(service(1), []int32{80, 81, 82}, nil); again[80] != first[80] || again[81] != first[81] || len(again) != 3 {
		t.Errorf("got %v after %v", again, first)
	}
	calls := ports.claims.Calls()
	ports.assign(service(1), []int32{80, 81, 82}, nil)
	if ports.claims.Calls() != calls {
		t.Error("the storage was called for ports that are claimed already")
	}
	if fewer := ports.assign(service(1), []int32{81}, nil); !maps.Equal(fewer, map[int32]int32{81: first[81]}) {
		t.Errorf("got %v after %v", fewer, first)
	}

	// A new process takes over what is stored.
	restarted := newPorts(t, 100, ports.claims)
	restarted.restore(proxyports.Recorded{Owner: service(1)})
	if got := restarted.assign(service(1), []int32{81}, nil); !maps.Equal(got, map[int32]int32{81: first[81]}) {
		t.Errorf("got %v after a restart, want %d", got, first[81])
	}
	if got := restarted.assign(service(4), []int32{80}, map[int32]int32{80: 9}); got[80] == 9 {
		t.Error("a port outside of the range was assigned")
	}

	// And so does one with another range, as far as it can.
	moved := proxyports.New(proxyports.Options{Range: utilnet.PortRange{Base: 20000, Size: 10}, Claims: ports.claims, Freed: func(types.NamespacedName) {}, Clock: ports.clock})
	if err := moved.Restore(t.Context(), []proxyports.Recorded{{Owner: service(1)}, {Owner: service(4)}}, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := moved.Assign(t.Context(), service(1), []int32{81}, map[int32]int32{81: first[81]}); err != nil || got[81] < 20000 {
		t.Errorf("got %v (%v), want a port of the new range", got, err)
	}
}

// Whose a port is, is stored, and not what the status of an ElastiService says.
func TestARecordedPortOfAnotherOwnerIsReplaced(t *testing.T) {
	ports := newPorts(t, 100, proxyportstest.New())
	victim := ports.assign(service(1), []int32{80}, nil)[80]
	if got := ports.assign(service(2), []int32{80}, map[int32]int32{80: victim})[80]; got == victim || got == 0 {
		t.Errorf("got %d, want another port than %d, which is taken", got, victim)
	}

	// A process that has not read the claim finds it when it claims the port.
	other := newPorts(t, 100, ports.claims)
	if got := other.assign(service(3), []int32{80}, map[int32]int32{80: victim})[80]; got == victim || got == 0 {
		t.Errorf("got %d, want another port than %d, which is taken", got, victim)
	}
}

// Statuses of a version that stored no claims are claimed for the oldest.
func TestStatusesWithoutClaimsAreClaimedOldestFirst(t *testing.T) {
	claims := proxyportstest.New(claimFor(service(9), 80, 10009))
	ports := newPorts(t, 100, claims)
	ports.restore(
		proxyports.Recorded{Owner: service(1), Ports: map[int32]int32{80: 10001, 81: 10002}},
		proxyports.Recorded{Owner: service(2), Ports: map[int32]int32{80: 10001, 81: 10009}},
		proxyports.Recorded{Owner: service(9), Ports: map[int32]int32{80: 10009}},
		proxyports.Recorded{Owner: service(3), Ports: map[int32]int32{80: 9}},
	)
	for proxyPort, want := range map[int32]string{10001: "service-1", 10002: "service-1", 10009: "service-9", 9: ""} {
		if got := claims.Stored()[proxyPort].Owner.Name; got != want {
			t.Errorf("port %d belongs to %q, want %q", proxyPort, got, want)
		}
	}
	got := ports.assign(service(2), []int32{80, 81}, map[int32]int32{80: 10001, 81: 10009})
	if got[80] == 10001 || got[81] == 10009 || len(got) != 2 {
		t.Errorf("got %v, want two ports that nothing else has", got)
	}
}

func TestClaimsOfDeletedOwnersAreReleased(t *testing.T) {
	again := service(2)
	again.UID = "another"
	claims := proxyportstest.New(
		claimFor(service(1), 80, 10000), claimFor(service(2), 80, 10001), claimFor(service(3), 80, 10002), claimFor(service(4), 80, 10003),
	)
	ports := newPorts(t, 4, claims)
	checked := map[string]bool{}
	err := ports.Restore(t.Context(), []proxyports.Recorded{{Owner: service(1)}, {Owner: again}}, func(_ context.Context, owner proxyports.Owner) (bool, error) {
		checked[owner.Name] = true
		return owner == service(3), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]bool{"service-2": true, "service-3": true, "service-4": true}; !maps.Equal(checked, want) {
		t.Errorf("checked whether %v exist, want %v", checked, want)
	}
	ports.DeleteReleasedClaims(t.Context())
	if len(claims.Stored()) != 4 {
		t.Errorf("%v: released before its time", claims.Stored())
	}
	ports.clock.Step(proxyports.ReuseCooldown)
	ports.DeleteReleasedClaims(t.Context())
	if len(claims.Stored()) != 2 || claims.Stored()[10000].Owner.Name != "service-1" || claims.Stored()[10002].Owner.Name != "service-3" {
		t.Errorf("%v: want the claims of those that exist", claims.Stored())
	}
	if err := ports.Restore(t.Context(), nil, func(context.Context, proxyports.Owner) (bool, error) { return false, errors.New("away") }); err == nil {
		t.Error("a claim whose owner could not be read was restored")
	}
}

// Which proxy port an ElastiService gets first follows from its name: it would want one
// with a damaged claim for ever.
func TestADamagedClaimKeepsNoElastiServiceFromAnotherPort(t *testing.T) {
	first := newPorts(t, 1000, proxyportstest.New()).assign(service(1), []int32{80}, nil)[80]
	for name, recorded := range map[string][]proxyports.Recorded{
		"not recorded": nil,
		"recorded":     {{Owner: service(1), Ports: map[int32]int32{80: first}}},
	} {
		t.Run(name, func(t *testing.T) {
			claims := proxyportstest.New()
			claims.Damage(first)
			ports := newPorts(t, 1000, claims)
			ports.restore(recorded...)
			other := ports.assign(service(1), []int32{80}, map[int32]int32{80: first})[80]
			if other == first || other == 0 {
				t.Errorf("got %d, want another port than %d, whose claim is damaged", other, first)
			}
			calls := claims.Calls()
			ports.Release(service(1).NamespacedName)
			ports.assign(service(1), []int32{80}, nil)
			if got := claims.Calls() - calls; got != 1 {
				t.Errorf("%d calls: the damaged claim is not remembered", got)
			}
			// It is repaired.
			claims.Damage()
			ports.clock.Step(proxyports.WithheldTime)
			ports.Release(service(1).NamespacedName)
			ports.clock.Step(proxyports.ReuseCooldown)
			ports.DeleteReleasedClaims(t.Context())
			if got := ports.assign(service(1), []int32{80}, nil)[80]; got != first {
				t.Errorf("got %d, want %d, as that can be claimed again", got, first)
			}
		})
	}
}

// The claim of the owner before is to be deleted first, and was damaged since.
func TestAClaimThatCannotBeDeletedKeepsNoElastiServiceFromAnotherPort(t *testing.T) {
	claims := proxyportstest.New()
	ports := newPorts(t, 1000, claims)
	first := ports.assign(service(1), []int32{80}, nil)[80]
	ports.Release(service(1).NamespacedName)
	ports.clock.Step(proxyports.ReuseCooldown)
	claims.Damage(first)
	again := service(1)
	again.UID = "another"
	if _, err := ports.Assign(t.Context(), again, []int32{80}, nil); err == nil {
		t.Error("the damaged claim was deleted")
	}
	if got := ports.assign(again, []int32{80}, nil)[80]; got == first || got == 0 {
		t.Errorf("got %d, want another port than %d, whose claim is damaged", got, first)
	}
	claims.Damage()
	ports.Release(service(1).NamespacedName)
	ports.clock.Step(proxyports.WithheldTime)
	ports.DeleteReleasedClaims(t.Context())
	if got := ports.assign(again, []int32{80}, nil)[80]; got != first {
		t.Errorf("got %d, want %d, as the claim before can be deleted now", got, first)
	}
}

func TestAnElastiServiceThatIsMadeAgainIsAnotherOwner(t *testing.T) {
	ports := newPorts(t, 100, proxyportstest.New())
	first := ports.assign(service(1), []int32{80}, nil)[80]
	again := service(1)
	again.UID = "another"
	second := ports.assign(again, []int32{80}, map[int32]int32{80: first})[80]
	if second == first || second == 0 {
		t.Errorf("got %d, want another port than that of its predecessor, %d", second, first)
	}
	ports.clock.Step(proxyports.ReuseCooldown)
	ports.DeleteReleasedClaims(t.Context())
	if owner := ports.claims.Stored()[first].Owner.Name; owner != "" {
		t.Errorf("the port of the predecessor belongs to %q still", owner)
	}
}

func TestReleasedProxyPortsCoolDown(t *testing.T) {
	ports := newPorts(t, 2, proxyportstest.New())
	released := ports.assign(service(1), []int32{80}, nil)[80]
	ports.Release(service(1).NamespacedName)
	if got := ports.assign(service(1), []int32{80}, nil)[80]; got == released {
		t.Error("a port was used again at once while another was free")
	}
	if got := ports.assign(service(2), []int32{80}, nil)[80]; got != released {
		t.Errorf("got %d, want the port that is cooling down, as there is no other", got)
	}
	ports.Release(service(1).NamespacedName)
	ports.Release(service(2).NamespacedName)
	ports.clock.Step(proxyports.ReuseCooldown)
	if got := ports.assign(service(1), []int32{80}, nil)[80]; got != released {
		t.Errorf("got %d, want %d, where the hash says", got, released)
	}

	// The time does not end with the process.
	claims := proxyportstest.New()
	before := newPorts(t, 2, claims)
	released = before.assign(service(1), []int32{80}, nil)[80]
	before.Release(service(1).NamespacedName)
	restarted := newPorts(t, 2, claims)
	restarted.restore()
	if got := restarted.assign(service(1), []int32{80}, nil)[80]; got == released || got == 0 {
		t.Errorf("got %d after a restart, want the port that is free and not %d, which is cooling down", got, released)
	}
}

func TestRunReleasesPortsAfterTheirCooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claims := proxyportstest.New()
		allocator := proxyports.New(proxyports.Options{Range: utilnet.PortRange{Base: 10000, Size: 2}, Claims: claims, Freed: func(types.NamespacedName) {}, Clock: clock.RealClock{}})
		assigned, err := allocator.Assign(t.Context(), service(1), []int32{80}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { allocator.Run(ctx) })
		allocator.Release(service(1).NamespacedName)
		<-time.After(proxyports.ReuseCooldown / 2)
		if owner := claims.Stored()[assigned[80]].Owner.Name; owner != "service-1" {
			t.Errorf("before its time the port belongs to %q", owner)
		}
		<-time.After(proxyports.ReuseCooldown)
		if owner := claims.Stored()[assigned[80]].Owner.Name; owner != "" {
			t.Errorf("after its time the port belongs to %q still", owner)
		}
		cancel()
		running.Wait()
	})
}

// A write of which it is not known whether it was carried out is made again, and
// nothing else gets the port meanwhile.
func TestClaimsThatFailAreTriedAgain(t *testing.T) {
	for name, failures := range map[string][2]error{
		"not stored": {errors.New("away"), nil},
		"stored":     {nil, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			ports := newPorts(t, 2, proxyportstest.New())
			ports.claims.Fail(failures[0], failures[1])
			if got, err := ports.Assign(t.Context(), service(1), []int32{80}, nil); err == nil {
				t.Fatalf("assigned %v without a claim", got)
			}
			ports.claims.Fail(nil, nil)
			other := ports.assign(service(2), []int32{80}, nil)[80]
			if got := ports.assign(service(1), []int32{80}, nil)[80]; got == other || got == 0 {
				t.Errorf("got %d, beside %d of another owner", got, other)
			}
			if len(ports.claims.Stored()) != 2 {
				t.Errorf("the claims are %v, want one for each", ports.claims.Stored())
			}
		})
	}

	t.Run("release before a claim", func(t *testing.T) {
		ports := newPorts(t, 1, proxyportstest.New())
		ports.assign(service(1), []int32{80}, nil)
		ports.Release(service(1).NamespacedName)
		ports.claims.Fail(errors.New("away"), nil)
		if got, err := ports.Assign(t.Context(), service(2), []int32{80}, nil); err == nil {
			t.Fatalf("assigned %v without a claim", got)
		}
		ports.claims.Fail(nil, nil)
		if got := ports.assign(service(2), []int32{80}, nil); got[80] != 10000 {
			t.Errorf("got %v, want the port that was released", got)
		}
	})

	t.Run("release after the cooldown", func(t *testing.T) {
		ports := newPorts(t, 1, proxyportstest.New())
		ports.assign(service(1), []int32{80}, nil)
		ports.Release(service(1).NamespacedName)
		ports.clock.Step(proxyports.ReuseCooldown)
		ports.claims.Fail(errors.New("away"), nil)
		ports.DeleteReleasedClaims(t.Context())
		ports.claims.Fail(nil, nil)
		ports.DeleteReleasedClaims(t.Context())
		if len(ports.claims.Stored()) != 0 {
			t.Errorf("the claims are %v, want none", ports.claims.Stored())
		}
	})
}

func TestServicesWithoutAProxyPortAreNotifiedWhenOneIsFree(t *testing.T) {
	ports := newPorts(t, 2, proxyportstest.New())
	ports.assign(service(1), []int32{80, 81}, nil)
	if assigned := ports.assign(service(2), []int32{80}, nil); len(assigned) > 0 {
		t.Fatalf("assigned %v of a range that is in use", assigned)
	}
	ports.assign(service(3), []int32{80}, nil)
	ports.Release(service(3).NamespacedName)
	if len(ports.notified) > 0 {
		t.Errorf("notified %v although nothing was released", ports.notified)
	}
	ports.assign(service(1), []int32{80}, nil)
	if len(ports.notified) != 1 || ports.notified[0] != service(2).NamespacedName {
		t.Fatalf("notified %v, want the one that waits", ports.notified)
	}
	if assigned := ports.assign(service(2), []int32{80}, nil); len(assigned) != 1 {
		t.Errorf("assigned %v", assigned)
	}
	ports.Release(service(1).NamespacedName)
	if len(ports.notified) != 1 {
		t.Errorf("notified %v although none waits", ports.notified)
	}
}

// Two processes hand out ports of one range at the same time, and take some of
// them back: no port has two owners.
func TestProcessesThatAssignAtTheSameTime(t *testing.T) {
	const owners = 1000
	claims := proxyportstest.New()
	var mu sync.Mutex
	given := map[int32]proxyports.Owner{}
	give := func(owner proxyports.Owner, assigned map[int32]int32) error {
		mu.Lock()
		defer mu.Unlock()
		if len(assigned) != 2 {
			return fmt.Errorf("%s got %v, want two ports", owner, assigned)
		}
		for _, proxyPort := range assigned {
			if other, taken := given[proxyPort]; taken && other != owner {
				return fmt.Errorf("port %d was given to %s and to %s", proxyPort, other, owner)
			}
			given[proxyPort] = owner
		}
		return nil
	}
	group, ctx := errgroup.WithContext(t.Context())
	for process := range 2 {
		ports := newPorts(t, 2*owners+200, claims)
		for worker := range 4 {
			group.Go(func() error {
				for number := worker; number < owners/2; number += 4 {
					owner := service(process*owners/2 + number)
					assigned, err := ports.Assign(ctx, owner, []int32{80, 81}, map[int32]int32{80: 10000, 81: 10001})
					if err == nil {
						err = give(owner, assigned)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(given) != 2*owners {
		t.Errorf("%d ports have owners, want %d", len(given), 2*owners)
	}
	for proxyPort, owner := range given {
		if got := claims.Stored()[proxyPort].Owner.UID; got != owner.UID {
			t.Errorf("port %d was given to %s, and is stored as that of %s", proxyPort, owner, got)
		}
	}
}

// Ports that are cooling down are not in use.
func TestUsedPortsAreReported(t *testing.T) {
	used := int32(-1)
	allocator := proxyports.New(proxyports.Options{
		Range:  utilnet.PortRange{Base: 10000, Size: 50},
		Claims: proxyportstest.New(),
		Freed:  func(types.NamespacedName) {},
		Used:   func(ports int32) { used = ports },
		Clock:  clocktesting.NewFakeClock(time.Now()),
	})
	for _, step := range []struct {
		servicePorts []int32
		want         int32
	}{{[]int32{80, 443}, 2}, {[]int32{80}, 1}, {[]int32{80, 8080, 8081}, 3}} {
		if _, err := allocator.Assign(t.Context(), service(1), step.servicePorts, nil); err != nil {
			t.Fatal(err)
		}
		if used != step.want {
			t.Errorf("%d ports are in use with the Service ports %v, want %d", used, step.servicePorts, step.want)
		}
	}
	allocator.Release(service(1).NamespacedName)
	if used != 0 {
		t.Errorf("%d ports are in use after all were released", used)
	}
}
