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
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Recorded is what the status of an ElastiService says of its proxy ports.
type Recorded struct {
	Owner Owner
	// Ports are the proxy ports by Service port.
	Ports map[int32]int32
}

// Restore takes over the claims that are stored, before anything is assigned. A
// claim whose owner does not exist any more is released. A recorded port without
// a claim, as an earlier version left it, is claimed for the first in the list
// that records it; those that record a port of another owner get a new one when
// they request it. exists reports whether an ElastiService is stored, for owners
// that are not in the list. After an error it is to be called again.
func (a *Allocator) Restore(ctx context.Context, recorded []Recorded, exists func(ctx context.Context, owner Owner) (bool, error)) error {
	claims, err := a.options.Claims.List(ctx)
	if err != nil {
		return err
	}
	known := map[types.UID]bool{}
	for _, record := range recorded {
		known[record.Owner.UID] = true
	}
	taken := map[int32]bool{}
	for _, claim := range claims {
		taken[claim.ProxyPort] = true
		owner := ownerOf(claim)
		alive, checked := known[owner.UID]
		if !checked {
			if alive, err = exists(ctx, owner); err != nil {
				return fmt.Errorf("reading the owner of proxy port %d: %w", claim.ProxyPort, err)
			}
			known[owner.UID] = alive
		}
		a.restore(claim, alive)
	}
	var missing []v1alpha1.ProxyPortClaimSpec
	for _, record := range recorded {
		for servicePort, proxyPort := range record.Ports {
			if a.contains(proxyPort) && !taken[proxyPort] {
				taken[proxyPort] = true
				missing = append(missing, v1alpha1.ProxyPortClaimSpec{
					ProxyPort: proxyPort,
					Port:      servicePort,
					Owner:     v1alpha1.ProxyPortOwner{Namespace: record.Owner.Namespace, Name: record.Owner.Name, UID: record.Owner.UID},
				})
			}
		}
	}
	return forEach(missing, func(desired v1alpha1.ProxyPortClaimSpec) error {
		stored, err := a.storeClaim(ctx, desired)
		switch {
		case err != nil:
		case isUnreadable(stored):
			a.withhold(ownerOf(desired), desired, nil)
		default:
			a.restore(stored, true)
		}
		return err
	})
}

// Hold keeps the proxy ports that resolver slices refer to from all but their owners, as
// far as they are not claimed: the storage may have lost the ElastiServices that the slices
// were made for, or have older claims of them. referring has the ElastiServices of these
// slices by proxy port. The ports of a slice are not signed, so a namespace has no more ports
// held than it could be assigned. It must be called after Restore, before anything is
// assigned.
func (a *Allocator) Hold(referring map[int32][]types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for proxyPort, owners := range referring {
		held := &portState{phase: referenced, referencedBy: owners}
		state, taken := a.ports[proxyPort]
		switch {
		case taken && state.phase != referenced && state.phase != coolingDown:
			continue
		case taken:
			held.claim = state.claim
		default:
			first := slices.IndexFunc(owners, func(owner types.NamespacedName) bool { return a.hasRoom(owner.Namespace) })
			if first < 0 || !a.contains(proxyPort) {
				continue
			}
			owner := v1alpha1.ProxyPortOwner{Namespace: owners[first].Namespace, Name: owners[first].Name}
			held.claim = v1alpha1.ProxyPortClaimSpec{ProxyPort: proxyPort, Owner: owner}
		}
		a.set(proxyPort, held)
	}
}

// restore records a stored claim.
func (a *Allocator) restore(claim v1alpha1.ProxyPortClaimSpec, alive bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.set(claim.ProxyPort, &portState{phase: claimed, claim: claim})
	if !alive {
		a.startCooldown(claim.ProxyPort)
		return
	}
	owned := a.ownedBy(ownerOf(claim))
	if owned.uid != claim.Owner.UID {
		// Of two with one name, the one before is deleted.
		a.startCooldown(claim.ProxyPort)
		return
	}
	if previous, twice := owned.ports[claim.Port]; twice && previous != claim.ProxyPort {
		// An assignment ended between two claims: one of them is enough.
		a.startCooldown(claim.ProxyPort)
		return
	}
	owned.ports[claim.Port] = claim.ProxyPort
}

func ownerOf(claim v1alpha1.ProxyPortClaimSpec) Owner {
	return Owner{NamespacedName: types.NamespacedName{Namespace: claim.Owner.Namespace, Name: claim.Owner.Name}, UID: claim.Owner.UID}
}

// forEach works on all items, a bounded number at a time, and joins the errors.
func forEach[T any](items []T, work func(T) error) error {
	problems := make([]error, len(items))
	group := errgroup.Group{}
	group.SetLimit(claimConcurrency)
	for i := range items {
		group.Go(func() error {
			problems[i] = work(items[i])
			return nil
		})
	}
	_ = group.Wait()
	return errors.Join(problems...)
}
