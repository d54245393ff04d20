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

package route

import (
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// Listeners opens and closes ports.
type Listeners interface {
	// OpenPort assigns the connections to a proxy port to a port of a service, also when
	// they were assigned to another one before. It may be called again for the same.
	OpenPort(svc *service.Service, port service.Port) error
	// ClosePort ends the assignment. Accepted connections continue.
	ClosePort(svc *service.Service, port service.Port)
}

// slot identifies what has one owner: a proxy port, or a port of a Service on the shared
// port.
type slot struct {
	proxyPort int32
	// Set for the shared port only.
	service types.NamespacedName
	number  int32
}

// claim is a port of a service that claims a slot.
type claim struct {
	service *service.Service
	port    service.Port
}

// place is the state of a slot.
type place struct {
	// claims are the claims on the slot in the order of arrival. The first one owns it.
	// Empty while the slot lingers.
	claims []claim
	// owner is the owner of the connections: the first claim, or the last one that
	// existed.
	owner claim
	// open is true when the listener is open and assigned to owner.
	open bool
	// until is when the slot closes. Set only while it lingers. Zero without claims: the
	// slot stays.
	until time.Time
}

// lingering is a slot without claims and when it closes.
type lingering struct {
	slot  slot
	until time.Time
}

// ports reconciles the open ports with those that services claim, on each change. It is
// not safe for concurrent use.
type ports struct {
	// Immutable.
	listeners  Listeners
	linger     time.Duration
	clock      clock.PassiveClock
	sharedPort int32
	logger     klog.Logger
	// conflicts is called with the number of conflicting claims. Optional.
	conflicts func(int)

	places map[slot]*place
	// lingering has the slots that had no claim at some time, in the order in which they
	// close.
	lingering []lingering
	// desired has the slots that each service claims.
	desired map[*service.Service][]slot
	// waiting is the number of conflicting claims, which an earlier claim precedes.
	waiting int
}

func newPorts(options *Options) *ports {
	return &ports{
		listeners:  options.Listeners,
		linger:     options.Linger,
		clock:      options.Clock,
		sharedPort: options.SharedPort,
		logger:     options.Logger,
		conflicts:  options.Conflicts,
		places:     map[slot]*place{},
		desired:    map[*service.Service][]slot{},
	}
}

// slotOf returns the slot of a port of a service.
func (p *ports) slotOf(svc *service.Service, port service.Port) slot {
	if port.ProxyPort != p.sharedPort {
		return slot{proxyPort: port.ProxyPort}
	}
	return slot{
		proxyPort: port.ProxyPort,
		service:   svc.PublicServiceKey(),
		number:    port.Number,
	}
}

// set replaces the ports that a service claims, and opens and closes ports accordingly.
// It fails when some cannot be opened; the next call with the same arguments retries.
func (p *ports) set(svc *service.Service, desired []service.Port) error {
	before := p.desired[svc]
	var now []slot
	for _, port := range desired {
		s := p.slotOf(svc, port)
		if slices.Contains(now, s) {
			// When a service claims a slot twice, its first port gets it.
			continue
		}
		now = append(now, s)
		p.claim(s, claim{svc, port})
	}
	for _, s := range before {
		if !slices.Contains(now, s) {
			p.withdraw(s, svc)
		}
	}
	if len(now) > 0 {
		p.desired[svc] = now
	} else {
		delete(p.desired, svc)
	}
	p.reportConflicts()
	var failed []error
	for _, s := range now {
		failed = append(failed, p.reconcile(s))
	}
	for _, s := range before {
		if !slices.Contains(now, s) {
			failed = append(failed, p.reconcile(s))
		}
	}
	return errors.Join(failed...)
}

// claim adds the claim of a port of a service to a slot.
func (p *ports) claim(s slot, c claim) {
	at := p.places[s]
	if at == nil {
		at = &place{}
		p.places[s] = at
	}
	if i := at.indexOf(c.service); i >= 0 {
		at.claims[i] = c
		return
	}
	at.claims = append(at.claims, c)
	if first := at.claims[0]; len(at.claims) > 1 {
		p.waiting++
		p.logger.Error(nil, "Two ElastiServices claim one proxy port, the first one keeps it", "proxyPort", s.proxyPort,
			"first", klog.KRef(first.service.Namespace, first.service.Name), "other", klog.KRef(c.service.Namespace, c.service.Name))
	}
}

// withdraw removes the claim of a service from a slot.
func (p *ports) withdraw(s slot, svc *service.Service) {
	at := p.places[s]
	i := at.indexOf(svc)
	if len(at.claims) > 1 {
		p.waiting--
	}
	at.claims = slices.Delete(at.claims, i, i+1)
	if len(at.claims) == 0 {
		at.until = p.clock.Now().Add(p.linger)
		p.lingering = append(p.lingering, lingering{s, at.until})
	}
}

// stay has the slots stay open that a service had last and that nothing claims, until
// lingerNow is called or one is claimed.
func (p *ports) stay(svc *service.Service) {
	p.ofLast(svc, func(_ slot, at *place) { at.until = time.Time{} })
}

// lingerNow has the slots linger from now on that a service had last and that nothing
// claims.
func (p *ports) lingerNow(svc *service.Service) {
	p.ofLast(svc, func(s slot, at *place) {
		at.until = p.clock.Now().Add(p.linger)
		p.lingering = append(p.lingering, lingering{s, at.until})
	})
}

// ofLast calls do with the slots that a service had last and that nothing claims.
func (p *ports) ofLast(svc *service.Service, do func(slot, *place)) {
	for s, at := range p.places {
		if len(at.claims) == 0 && at.open && at.owner.service == svc {
			do(s, at)
		}
	}
}

func (a *place) indexOf(svc *service.Service) int {
	return slices.IndexFunc(a.claims, func(c claim) bool { return c.service == svc })
}

func (p *ports) reportConflicts() {
	if p.conflicts != nil {
		p.conflicts(p.waiting)
	}
}

// reconcile assigns the connections to a slot to the first of its claims.
func (p *ports) reconcile(s slot) error {
	at := p.places[s]
	if len(at.claims) == 0 {
		if !at.open {
			// A slot that was never opened does not linger.
			delete(p.places, s)
		}
		return nil
	}
	first := at.claims[0]
	if at.open && at.owner == first {
		return nil
	}
	if err := p.listeners.OpenPort(first.service, first.port); err != nil {
		return err
	}
	at.open, at.owner = true, first
	return nil
}

// expire closes the slots whose linger period is over.
func (p *ports) expire() {
	now := p.clock.Now()
	for until := p.next(); !until.IsZero() && !now.Before(until); until = p.next() {
		s := p.lingering[0].slot
		at := p.places[s]
		p.listeners.ClosePort(at.owner.service, at.owner.port)
		delete(p.places, s)
	}
}

// next returns when expire has to be called next, for the first slot of lingering. It
// returns the zero time when none lingers.
func (p *ports) next() time.Time {
	for len(p.lingering) > 0 {
		first := p.lingering[0]
		if at := p.places[first.slot]; at != nil && len(at.claims) == 0 && at.until.Equal(first.until) {
			return first.until
		}
		// The slot has a claim, or has had one since.
		p.lingering = p.lingering[1:]
	}
	return time.Time{}
}

// closeAll closes all ports at once.
func (p *ports) closeAll() {
	for s, at := range p.places {
		if at.open {
			p.listeners.ClosePort(at.owner.service, at.owner.port)
		}
		delete(p.places, s)
	}
	p.lingering = nil
	clear(p.desired)
}
