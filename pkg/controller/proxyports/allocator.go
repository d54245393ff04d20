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
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
)

// reuseCooldown is how long a proxy port stays unused after its release, as long
// as there are others. A node whose rules are behind could otherwise send the
// traffic of one Service to the pods of another.
const reuseCooldown = 2 * time.Minute

// Allocator hands out the ports that resolvers listen on. Each belongs to one
// port of one ElastiService's public Service. It is safe for concurrent use.
type Allocator struct {
	first, size int32
	clock       clock.PassiveClock
	// freed is called, without a lock, for each owner that found no free proxy
	// port before when there is one again.
	freed func(owner types.NamespacedName)

	mu sync.Mutex
	// owned holds the proxy port of each Service port.
	owned map[types.NamespacedName]map[int32]int32
	// taken are the proxy ports that are in use.
	taken map[int32]bool
	// released is when proxy ports that are not in use were last in use. It
	// never holds more than the range.
	released map[int32]time.Time
	// waiting are the owners that have fewer proxy ports than Service ports.
	waiting sets.Set[types.NamespacedName]
}

// New returns an Allocator of a range of ports. freed is called, without a lock,
// for each owner that found no free proxy port before when there is one again.
func New(ports utilnet.PortRange, clock clock.PassiveClock, freed func(types.NamespacedName)) *Allocator {
	return &Allocator{
		first:    int32(ports.Base),
		size:     int32(ports.Size),
		clock:    clock,
		freed:    freed,
		waiting:  sets.New[types.NamespacedName](),
		owned:    map[types.NamespacedName]map[int32]int32{},
		taken:    map[int32]bool{},
		released: map[int32]time.Time{},
	}
}

// Assign returns a proxy port for each of the owner's Service ports, and
// releases those of Service ports that it has no more. It keeps what it
// assigned before, then what is recorded, unless another owner has it. The
// Service ports that are missing in the result found no free proxy port.
func (p *Allocator) Assign(owner types.NamespacedName, servicePorts []int32, recorded map[int32]int32) map[int32]int32 {
	var waiting []types.NamespacedName
	defer func() { p.tell(waiting) }()
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := len(p.taken)
	before := p.owned[owner]
	assigned := make(map[int32]int32, len(servicePorts))
	for _, servicePort := range servicePorts {
		if proxyPort, ok := before[servicePort]; ok {
			assigned[servicePort] = proxyPort
		}
	}
	for servicePort, proxyPort := range before {
		if _, ok := assigned[servicePort]; !ok {
			p.free(proxyPort)
		}
	}
	for _, servicePort := range servicePorts {
		if _, ok := assigned[servicePort]; ok {
			continue
		}
		proxyPort, ok := recorded[servicePort]
		if !ok || !p.contains(proxyPort) || p.taken[proxyPort] {
			if proxyPort, ok = p.choose(owner, servicePort); !ok {
				continue
			}
		}
		p.taken[proxyPort] = true
		delete(p.released, proxyPort)
		assigned[servicePort] = proxyPort
	}
	p.owned[owner] = assigned
	p.waiting.Delete(owner)
	if len(p.taken) < taken {
		waiting = p.takeWaiting()
	}
	if len(assigned) < len(servicePorts) {
		p.waiting.Insert(owner)
	}
	result := make(map[int32]int32, len(assigned))
	for servicePort, proxyPort := range assigned {
		result[servicePort] = proxyPort
	}
	return result
}

// Restore records the proxy ports that an owner had before this process started.
// It is called for each owner, in the order of their precedence, before anything
// is assigned. An owner whose proxy port is taken or outside of the range gets
// another one.
func (p *Allocator) Restore(owner types.NamespacedName, recorded map[int32]int32) {
	p.Assign(owner, slices.Sorted(maps.Keys(recorded)), recorded)
}

// Release frees all proxy ports of an owner.
func (p *Allocator) Release(owner types.NamespacedName) {
	var waiting []types.NamespacedName
	defer func() { p.tell(waiting) }()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting.Delete(owner)
	if len(p.owned[owner]) > 0 {
		waiting = p.takeWaiting()
	}
	for _, proxyPort := range p.owned[owner] {
		p.free(proxyPort)
	}
	delete(p.owned, owner)
}

// takeWaiting returns those that wait for a proxy port. They wait again when
// they find none.
func (p *Allocator) takeWaiting() []types.NamespacedName {
	waiting := p.waiting.UnsortedList()
	p.waiting.Clear()
	return waiting
}

func (p *Allocator) tell(owners []types.NamespacedName) {
	for _, owner := range owners {
		p.freed(owner)
	}
}

func (p *Allocator) free(proxyPort int32) {
	delete(p.taken, proxyPort)
	p.released[proxyPort] = p.clock.Now()
}

func (p *Allocator) contains(proxyPort int32) bool {
	return proxyPort >= p.first && proxyPort < p.first+p.size
}

// choose finds a free proxy port. It starts where the hash of the names says,
// so that an ElastiService that is made again gets the port that it had.
func (p *Allocator) choose(owner types.NamespacedName, servicePort int32) (int32, bool) {
	if int32(len(p.taken)) >= p.size {
		return 0, false
	}
	hash := fnv.New32a()
	// Writing to a hash never fails.
	_, _ = hash.Write([]byte(owner.String() + ":" + strconv.Itoa(int(servicePort))))
	start := int32(hash.Sum32() % uint32(p.size))
	var cooling int32
	for i := range p.size {
		candidate := p.first + (start+i)%p.size
		if p.taken[candidate] {
			continue
		}
		if at, ok := p.released[candidate]; ok && p.clock.Since(at) < reuseCooldown {
			if cooling == 0 {
				cooling = candidate
			}
			continue
		}
		return candidate, true
	}
	return cooling, cooling != 0
}
