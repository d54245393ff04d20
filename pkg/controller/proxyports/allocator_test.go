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

package proxyports

import (
	"maps"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clocktesting "k8s.io/utils/clock/testing"
)

func owned(number int) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: "service-" + strconv.Itoa(number)}
}

func newPorts(size int) (*Allocator, *clocktesting.FakeClock) {
	clock := clocktesting.NewFakeClock(metav1.Now().Time)
	return New(utilnet.PortRange{Base: 10000, Size: size}, clock, func(types.NamespacedName) {}), clock
}

func TestProxyPortsAreUniqueUntilExhausted(t *testing.T) {
	ports, _ := newPorts(50)
	seen := map[int32]bool{}
	for number := range 50 {
		for _, proxyPort := range ports.Assign(owned(number), []int32{80}, nil) {
			if seen[proxyPort] || proxyPort < 10000 || proxyPort >= 10050 {
				t.Errorf("port %d", proxyPort)
			}
			seen[proxyPort] = true
		}
	}
	if len(seen) != 50 {
		t.Errorf("%d ports were assigned, want 50", len(seen))
	}
	if got := ports.Assign(owned(50), []int32{80}, nil); len(got) != 0 {
		t.Errorf("got %v when all are taken", got)
	}
	ports.Release(owned(7))
	if got := ports.Assign(owned(50), []int32{80}, nil); len(got) != 1 {
		t.Error("the released port was not assigned")
	}
}

func TestProxyPortsStay(t *testing.T) {
	ports, _ := newPorts(100)
	first := ports.Assign(owned(1), []int32{80, 81}, nil)
	if again := ports.Assign(owned(1), []int32{80, 81, 82}, nil); again[80] != first[80] || again[81] != first[81] || len(again) != 3 {
		t.Errorf("got %v after %v", again, first)
	}
	if fewer := ports.Assign(owned(1), []int32{81}, nil); !maps.Equal(fewer, map[int32]int32{81: first[81]}) {
		t.Errorf("got %v after %v", fewer, first)
	}
	// A new process takes in what is recorded.
	restarted, _ := newPorts(100)
	if got := restarted.Assign(owned(2), []int32{80}, map[int32]int32{80: first[80]}); got[80] != first[80] {
		t.Errorf("recorded %d, got %v", first[80], got)
	}
	if got := restarted.Assign(owned(3), []int32{80}, map[int32]int32{80: first[80]}); got[80] == first[80] {
		t.Error("two owners have one port")
	}
	if got := restarted.Assign(owned(4), []int32{80}, map[int32]int32{80: 9}); got[80] == 9 {
		t.Error("a port outside of the range was kept")
	}
}

func TestReleasedProxyPortsCool(t *testing.T) {
	ports, clock := newPorts(2)
	released := ports.Assign(owned(1), []int32{80}, nil)[80]
	ports.Release(owned(1))
	if got := ports.Assign(owned(1), []int32{80}, nil)[80]; got == released {
		t.Error("a port was used again at once while another was free")
	}
	if got := ports.Assign(owned(2), []int32{80}, nil)[80]; got != released {
		t.Errorf("got %d, want the port that cools, as there is no other", got)
	}
	ports.Release(owned(1))
	ports.Release(owned(2))
	clock.Step(reuseCooldown)
	if got := ports.Assign(owned(1), []int32{80}, nil)[80]; got != released {
		t.Errorf("got %d, want %d, where the hash says", got, released)
	}
}

func TestThoseWithoutAProxyPortAreToldWhenOneIsFree(t *testing.T) {
	ports, _ := newPorts(2)
	var told []types.NamespacedName
	ports.freed = func(owner types.NamespacedName) { told = append(told, owner) }
	ports.Assign(owned(1), []int32{80, 81}, nil)
	if assigned := ports.Assign(owned(2), []int32{80}, nil); len(assigned) > 0 {
		t.Fatalf("assigned %v of a range that is in use", assigned)
	}
	ports.Assign(owned(3), []int32{80}, nil)
	ports.Release(owned(3))
	if len(told) > 0 {
		t.Errorf("told %v although nothing was released", told)
	}
	ports.Assign(owned(1), []int32{80}, nil)
	if len(told) != 1 || told[0] != owned(2) {
		t.Fatalf("told %v, want the one that waits", told)
	}
	if assigned := ports.Assign(owned(2), []int32{80}, nil); len(assigned) != 1 {
		t.Errorf("assigned %v", assigned)
	}
	ports.Release(owned(1))
	if len(told) != 1 {
		t.Errorf("told %v although nobody waits", told)
	}
}
