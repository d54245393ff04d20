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
	"context"
	"fmt"
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

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const (
	// reuseCooldown is how long a proxy port stays unused after its release, as
	// long as there are others. A node whose rules are behind could otherwise
	// send the traffic of one Service to the pods of another.
	reuseCooldown = 2 * time.Minute
	// withheldTime is how long a proxy port is left alone whose claim cannot be read or
	// deleted: the stored object is damaged, and may be repaired.
	withheldTime = 10 * time.Minute
	// releaseInterval is how often the claims of released ports are checked
	// for those whose time is over.
	releaseInterval = 30 * time.Second
	// claimTimeout bounds a call of the storage.
	claimTimeout = 10 * time.Second
	// claimConcurrency is how many claims are written at a time where there may
	// be many.
	claimConcurrency = 16
	// One of reservedPart proxy ports is for namespaces that have few, fewer than one of
	// fewPart: a single Service may have thousands of ports.
	reservedPart = 8
	fewPart      = 400
)

// Claims stores the owners of proxy ports. It is safe for concurrent use.
type Claims interface {
	// Claim claims a proxy port for an owner and returns the claim that is stored
	// afterwards: the desired one, or that of another owner or Service port. It is
	// empty when there was one before that cannot be read.
	Claim(ctx context.Context, desired v1alpha1.ProxyPortClaimSpec) (v1alpha1.ProxyPortClaimSpec, error)
	// Release deletes the claim of a proxy port if it is that of the owner.
	Release(ctx context.Context, proxyPort int32, owner types.UID) error
	// List returns all claims.
	List(ctx context.Context) ([]v1alpha1.ProxyPortClaimSpec, error)
}

// Owner is an ElastiService.
type Owner struct {
	types.NamespacedName
	UID types.UID
}

// phase is the state of a proxy port that is not free.
type phase int

const (
	// claimed: the claim is stored.
	claimed phase = iota
	// pending: the claim is being stored, or the result is unknown.
	pending
	// referenced: the owner has released the port or does not exist, and a resolver slice
	// still refers to it. The port is not given to another, and counts as the owner's.
	referenced
	// coolingDown: the owner has released the port, and no resolver slice refers to it. The
	// claim stays stored until the port may have another owner.
	coolingDown
	// releasing: the claim is being deleted.
	releasing
	// withheld: there is a claim that cannot be read, or not be deleted.
	withheld
)

// portState is a proxy port that is not free.
type portState struct {
	phase phase
	claim v1alpha1.ProxyPortClaimSpec
	// previous is the claim that has to be deleted before. Nil while pending or withheld
	// if none is known, and always otherwise.
	previous *v1alpha1.ProxyPortClaimSpec
	// since is when the port was withheld, or since when it is cooling down. Set in these
	// two phases.
	since time.Time
	// referencedBy are the ElastiServices beside the owner whose resolver slices may refer
	// to the port.
	referencedBy []types.NamespacedName
}

// Options configure an Allocator. Fields without a default are required.
type Options struct {
	// Range is the range that proxy ports are taken from.
	Range utilnet.PortRange
	// Claims stores the owners of ports.
	Claims Claims
	// Freed is called, without a lock and by several goroutines, for each owner that
	// found no free proxy port before when there is one again.
	Freed func(owner types.NamespacedName)
	// Refers reports whether a resolver slice of an ElastiService refers to a proxy port.
	// It is called with a lock held. Optional: none does.
	Refers func(owner types.NamespacedName, proxyPort int32) bool
	// Used is called with the number of proxy ports that are in use, whenever that has
	// changed. It is called with a lock held, and must not block. Optional.
	Used func(ports int32)
	// Clock is the time.
	Clock clock.Clock
}

// Allocator allocates proxy ports. Restore must be called before everything else, and
// then Hold. It is safe for concurrent use, but for one owner by one goroutine at a time.
type Allocator struct {
	options     Options
	first, size int32

	mu sync.Mutex
	// The rest is guarded by mu.

	// ports has the proxy ports that are not free. It is bounded by the range, and by
	// what was claimed when the range was another one.
	ports map[int32]*portState
	// inUse counts the proxy ports of the range that are claimed, being claimed or
	// referenced by namespace, and total all of them.
	inUse map[string]int32
	total int32
	// owned are the proxy ports of the ElastiServices that have some.
	owned map[types.NamespacedName]*ownedPorts
	// waiting are the owners that found no proxy port for a Service port. They are notified
	// of the next port that becomes free.
	waiting sets.Set[types.NamespacedName]
}

// ownedPorts are the proxy ports of one owner by Service port.
type ownedPorts struct {
	uid   types.UID
	ports map[int32]int32
}

// New returns an allocator without ports.
func New(options Options) *Allocator {
	if options.Refers == nil {
		options.Refers = func(types.NamespacedName, int32) bool { return false }
	}
	if options.Used == nil {
		options.Used = func(int32) {}
	}
	return &Allocator{
		options: options,
		first:   int32(options.Range.Base),
		size:    int32(options.Range.Size),
		ports:   map[int32]*portState{},
		inUse:   map[string]int32{},
		owned:   map[types.NamespacedName]*ownedPorts{},
		waiting: sets.New[types.NamespacedName](),
	}
}

// Run deletes the claims of ports that were released, once these can be given to
// others, until ctx ends.
func (a *Allocator) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.options.Clock.After(releaseInterval):
			a.deleteReleasedClaims(ctx)
		}
	}
}

// Assign claims and returns a proxy port for each of the owner's Service ports, and
// releases those of Service ports that the owner does not have any more. It prefers
// the proxy ports that it assigned before, then those that are recorded, unless
// another owner has them. There was no free proxy port for Service ports that are
// missing in the result. After an error it must be called again.
func (a *Allocator) Assign(ctx context.Context, owner Owner, servicePorts []int32, recorded map[int32]int32) (map[int32]int32, error) {
	var waiting []types.NamespacedName
	defer func() { a.notify(waiting) }()
	waiting = a.keep(owner, servicePorts)
	for _, servicePort := range servicePorts {
		if err := a.assignOne(ctx, owner, servicePort, recorded[servicePort]); err != nil {
			return nil, err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.ownedBy(owner).ports), nil
}

// Release releases all proxy ports of an owner.
func (a *Allocator) Release(owner types.NamespacedName) {
	a.notify(a.release(owner))
}

func (a *Allocator) release(owner types.NamespacedName) []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting.Delete(owner)
	return a.releaseLocked(owner)
}

// releaseLocked releases the ports of an owner and returns those that wait for
// one. It must be called with mu held.
func (a *Allocator) releaseLocked(owner types.NamespacedName) []types.NamespacedName {
	owned, ok := a.owned[owner]
	if !ok {
		return nil
	}
	delete(a.owned, owner)
	for _, proxyPort := range owned.ports {
		a.startCooldown(proxyPort)
	}
	if len(owned.ports) == 0 {
		return nil
	}
	return a.takeWaiting()
}

// IsOfAnother reports whether a proxy port belongs to another ElastiService.
func (a *Allocator) IsOfAnother(owner types.NamespacedName, proxyPort int32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	state, taken := a.ports[proxyPort]
	return taken && (state.phase == claimed || state.phase == pending) && ownerOf(state.claim).NamespacedName != owner
}

// keep releases the ports that an owner does not need any more, or may not have,
// and returns those that wait for one. The owner does not wait any more: it searches.
func (a *Allocator) keep(owner Owner, servicePorts []int32) []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting.Delete(owner.NamespacedName)
	var waiting []types.NamespacedName
	if before, ok := a.owned[owner.NamespacedName]; ok && before.uid != owner.UID {
		waiting = a.releaseLocked(owner.NamespacedName)
	}
	owned, needed, released := a.ownedBy(owner), sets.New(servicePorts...), false
	for servicePort, proxyPort := range owned.ports {
		if !needed.Has(servicePort) || !a.contains(proxyPort) {
			delete(owned.ports, servicePort)
			a.startCooldown(proxyPort)
			released = true
		}
	}
	if released {
		waiting = append(waiting, a.takeWaiting()...)
	}
	return waiting
}

// ownedBy returns the ports of an owner. It must be called with mu held.
func (a *Allocator) ownedBy(owner Owner) *ownedPorts {
	owned, ok := a.owned[owner.NamespacedName]
	if !ok {
		owned = &ownedPorts{uid: owner.UID, ports: map[int32]int32{}}
		a.owned[owner.NamespacedName] = owned
	}
	return owned
}

// assignOne claims a proxy port for a Service port that has none yet.
func (a *Allocator) assignOne(ctx context.Context, owner Owner, servicePort, recorded int32) error {
	for {
		desired, previous, needed := a.reserve(owner, servicePort, recorded)
		if !needed {
			return nil
		}
		if previous != nil {
			if err := a.deleteClaim(ctx, *previous); err != nil {
				// Nothing was claimed yet: the next attempt takes another port.
				a.withhold(owner, desired, previous)
				return err
			}
			a.deletedPrevious(desired.ProxyPort)
		}
		stored, err := a.storeClaim(ctx, desired)
		if err != nil {
			// The port stays reserved: it may be claimed.
			return err
		}
		if a.recordStored(owner, desired, stored) {
			return nil
		}
	}
}

// reserve finds the proxy port that is to be claimed for a Service port. previous
// is the claim that has to be deleted before. It reports false when there is
// nothing to be done: the Service port has a proxy port, or none is free, and the owner
// waits for one.
func (a *Allocator) reserve(owner Owner, servicePort, recorded int32) (desired v1alpha1.ProxyPortClaimSpec, previous *v1alpha1.ProxyPortClaimSpec, needed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	owned := a.ownedBy(owner)
	proxyPort, ok := owned.ports[servicePort]
	if ok && a.ports[proxyPort].phase == claimed {
		return desired, nil, false
	}
	if !ok {
		if proxyPort, ok = a.find(owner, servicePort, recorded); !ok {
			a.waiting.Insert(owner.NamespacedName)
			return desired, nil, false
		}
	}
	desired = v1alpha1.ProxyPortClaimSpec{
		ProxyPort: proxyPort,
		Port:      servicePort,
		Owner:     v1alpha1.ProxyPortOwner{Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID},
	}
	if before, ok := a.ports[proxyPort]; ok {
		previous = before.previous
		if before.phase != withheld && before.claim != desired {
			previous = &before.claim
		}
	}
	a.set(proxyPort, &portState{phase: pending, claim: desired, previous: previous})
	owned.ports[servicePort] = proxyPort
	return desired, previous, true
}

// deletedPrevious records that the claim before that of a reserved port is deleted.
func (a *Allocator) deletedPrevious(proxyPort int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ports[proxyPort].previous = nil
}

// recordStored records which claim is stored and reports whether it is the desired
// one.
func (a *Allocator) recordStored(owner Owner, desired, stored v1alpha1.ProxyPortClaimSpec) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if isUnreadable(stored) {
		a.withholdLocked(owner, desired, nil)
		return false
	}
	a.set(desired.ProxyPort, &portState{phase: claimed, claim: stored})
	if stored == desired {
		return true
	}
	delete(a.ownedBy(owner).ports, desired.Port)
	return false
}

// isUnreadable reports whether a claim is the empty one, which Claims return for one that
// is stored and cannot be read.
func isUnreadable(stored v1alpha1.ProxyPortClaimSpec) bool {
	return stored == v1alpha1.ProxyPortClaimSpec{}
}

// withhold records that the claim of a reserved port cannot be read, or with previous that
// this one cannot be deleted. The owner gets another port. Those that wait for one are not
// notified now: one after the other would try the same port.
func (a *Allocator) withhold(owner Owner, desired v1alpha1.ProxyPortClaimSpec, previous *v1alpha1.ProxyPortClaimSpec) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.withholdLocked(owner, desired, previous)
}

func (a *Allocator) withholdLocked(owner Owner, desired v1alpha1.ProxyPortClaimSpec, previous *v1alpha1.ProxyPortClaimSpec) {
	a.set(desired.ProxyPort, &portState{phase: withheld, claim: v1alpha1.ProxyPortClaimSpec{ProxyPort: desired.ProxyPort}, previous: previous, since: a.options.Clock.Now()})
	delete(a.ownedBy(owner).ports, desired.Port)
}

// find chooses a proxy port for a Service port. It must be called with mu held.
func (a *Allocator) find(owner Owner, servicePort, recorded int32) (int32, bool) {
	if !a.hasRoom(owner.Namespace) {
		return 0, false
	}
	if state, taken := a.ports[recorded]; a.contains(recorded) && (!taken || (state.phase == referenced || state.phase == coolingDown) && state.claim.Owner.UID == owner.UID) {
		return recorded, true
	}
	return a.choose(owner, servicePort)
}

// hasRoom reports whether a namespace may have another proxy port. It must be called
// with mu held.
func (a *Allocator) hasRoom(namespace string) bool {
	return a.size-a.total > a.size/reservedPart || a.inUse[namespace] < max(1, a.size/fewPart)
}

// choose finds a free proxy port. It starts where the hash of the names says,
// so that an ElastiService that is made again gets the port that it had. It must
// be called with mu held.
func (a *Allocator) choose(owner Owner, servicePort int32) (int32, bool) {
	hash := fnv.New32a()
	// Writing to a hash never fails.
	_, _ = hash.Write([]byte(owner.String() + ":" + strconv.Itoa(int(servicePort))))
	start := int32(hash.Sum32() % uint32(a.size))
	var fallback, undeleted int32
	for i := range a.size {
		candidate := a.first + (start+i)%a.size
		state, taken := a.ports[candidate]
		switch {
		case !taken, state.phase == coolingDown && a.options.Clock.Since(state.since) >= reuseCooldown,
			state.phase == withheld && a.options.Clock.Since(state.since) >= withheldTime:
			return candidate, true
		case state.phase == coolingDown && fallback == 0:
			fallback = candidate
		case state.phase == withheld && state.previous != nil && undeleted == 0:
			undeleted = candidate
		}
	}
	if fallback == 0 {
		// There is no other, and whatever kept its claim from being deleted may be over.
		fallback = undeleted
	}
	return fallback, fallback != 0
}

// deleteReleasedClaims deletes the claims of ports whose cooldown is over, after it has
// ended what kept other ports from those that wait for one.
func (a *Allocator) deleteReleasedClaims(ctx context.Context) {
	a.notify(a.startCooldowns())
	a.notify(a.endWithholdings())
	due := a.beginReleases()
	// A claim that could not be deleted is due again in the next round.
	_ = forEach(due, func(claim v1alpha1.ProxyPortClaimSpec) error {
		err := a.deleteClaim(ctx, claim)
		a.notify(a.endRelease(claim.ProxyPort, err == nil))
		return err
	})
}

// beginReleases returns the claims of ports whose cooldown is over. No owner finds these
// ports until the release has ended.
func (a *Allocator) beginReleases() []v1alpha1.ProxyPortClaimSpec {
	a.mu.Lock()
	defer a.mu.Unlock()
	var due []v1alpha1.ProxyPortClaimSpec
	for _, state := range a.ports {
		if state.phase == coolingDown && a.options.Clock.Since(state.since) >= reuseCooldown {
			state.phase = releasing
			due = append(due, state.claim)
		}
	}
	return due
}

// endRelease records whether the claim of a port was deleted, and returns the owners that
// wait for a port: they find this one again in either case.
func (a *Allocator) endRelease(proxyPort int32, deleted bool) []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	if deleted {
		delete(a.ports, proxyPort)
	} else {
		a.ports[proxyPort].phase = coolingDown
	}
	return a.takeWaiting()
}

func (a *Allocator) storeClaim(ctx context.Context, desired v1alpha1.ProxyPortClaimSpec) (v1alpha1.ProxyPortClaimSpec, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	stored, err := a.options.Claims.Claim(ctx, desired)
	if err != nil {
		return stored, fmt.Errorf("for port %d of ElastiService %s/%s: %w", desired.Port, desired.Owner.Namespace, desired.Owner.Name, err)
	}
	return stored, nil
}

func (a *Allocator) deleteClaim(ctx context.Context, claim v1alpha1.ProxyPortClaimSpec) error {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	return a.options.Claims.Release(ctx, claim.ProxyPort, claim.Owner.UID)
}

// startCooldowns starts the cooldown of released ports that no resolver slice refers to
// any more, and returns the owners that wait for a port.
func (a *Allocator) startCooldowns() []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	started := false
	for proxyPort, state := range a.ports {
		if state.phase == referenced {
			a.startCooldown(proxyPort)
			started = started || state.phase == coolingDown
		}
	}
	if !started {
		return nil
	}
	return a.takeWaiting()
}

// endWithholdings ends the time for which ports are withheld, and returns the owners that
// wait for a port. A claim that could not be deleted is due as that of any released port, and
// an owner that finds no other port tries it before.
func (a *Allocator) endWithholdings() []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := false
	for proxyPort, state := range a.ports {
		if state.phase != withheld {
			continue
		}
		ended := a.options.Clock.Since(state.since) >= withheldTime
		switch {
		case ended && state.previous == nil:
			delete(a.ports, proxyPort)
		case ended:
			a.ports[proxyPort] = &portState{phase: coolingDown, claim: *state.previous, since: state.since}
		}
		found = found || ended || state.previous != nil
	}
	if !found {
		return nil
	}
	return a.takeWaiting()
}

// startCooldown starts the cooldown of a proxy port that its owner has released, unless a
// resolver slice still refers to it: then the port is referenced. It must be called with mu
// held.
func (a *Allocator) startCooldown(proxyPort int32) {
	state := a.ports[proxyPort]
	if a.isReferenced(state) {
		state.phase = referenced
		return
	}
	a.count(state, -1)
	state.phase, state.since, state.referencedBy = coolingDown, a.options.Clock.Now(), nil
}

// isReferenced reports whether a resolver slice refers to a proxy port. Only slices of its
// last owner and of the ElastiServices that Hold was called with count: a tenant that edits
// a slice keeps no port from others that was not its own. It must be called with mu held.
func (a *Allocator) isReferenced(state *portState) bool {
	refers := func(owner types.NamespacedName) bool { return a.options.Refers(owner, state.claim.ProxyPort) }
	return refers(ownerOf(state.claim).NamespacedName) || slices.ContainsFunc(state.referencedBy, refers)
}

// set records the state of a proxy port. It must be called with mu held.
func (a *Allocator) set(proxyPort int32, state *portState) {
	if before, ok := a.ports[proxyPort]; ok {
		a.count(before, -1)
	}
	a.ports[proxyPort] = state
	a.count(state, 1)
}

// count counts a proxy port that is claimed, being claimed or referenced once more or once
// less. It must be called with mu held.
func (a *Allocator) count(state *portState, by int32) {
	if !a.contains(state.claim.ProxyPort) || state.phase != claimed && state.phase != pending && state.phase != referenced {
		return
	}
	namespace := state.claim.Owner.Namespace
	a.total += by
	a.options.Used(a.total)
	if a.inUse[namespace] += by; a.inUse[namespace] == 0 {
		delete(a.inUse, namespace)
	}
}

func (a *Allocator) contains(proxyPort int32) bool {
	return proxyPort >= a.first && proxyPort < a.first+a.size
}

// takeWaiting returns those that wait for a proxy port. They wait again when
// they find none. It must be called with mu held.
func (a *Allocator) takeWaiting() []types.NamespacedName {
	waiting := a.waiting.UnsortedList()
	a.waiting.Clear()
	return waiting
}

func (a *Allocator) notify(owners []types.NamespacedName) {
	for _, owner := range owners {
		a.options.Freed(owner)
	}
}
