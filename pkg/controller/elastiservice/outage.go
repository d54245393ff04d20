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

package elastiservice

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// reconcileMissingResolvers is the phase missing resolvers.
func (c *Controller) reconcileMissingResolvers(ctx context.Context, p *pass) {
	p.result.failed(c.wakeWithoutResolvers(ctx, p))
}

// wakeWithoutResolvers wakes a sleeping target when nothing has been able to hold its
// traffic for too long: no resolver is ready, or none of an IP family of its Service, or
// the resolver slices are not in the path and cannot be put there, or the resolvers that
// they list do not accept connections. An outage of the resolvers concerns all sleeping
// targets of the cluster at once, and their pods may be more than its nodes can start
// together: each waits for its turn, and stays asleep when the resolvers are back before.
func (c *Controller) wakeWithoutResolvers(ctx context.Context, p *pass) error {
	if !p.target.AtZero() || !p.managed() {
		c.wakeQueue.remove(p.key())
		return nil
	}
	reason, why := c.cannotHold(p)
	if reason == "" {
		c.wakeQueue.remove(p.key())
		return nil
	}
	if !c.mayWake(p.key()) {
		p.result.problems = append(p.result.problems, conditionFalse(v1alpha1.ReasonWaitingForWake, "%s, and the target waits for its turn to be woken: --wake-rate of elasti-apiserver says how many are woken in a second", why))
		return nil
	}
	result, err := c.scaling.Wake(ctx, target.Of(p.elastiService), scaling.AutoscalerOf(p.elastiService.Spec.Autoscaler), target.MinReplicas(p.elastiService), false)
	if err != nil {
		return fmt.Errorf("waking the target, as %s: %w", why, err)
	}
	c.wakeQueue.remove(p.key())
	if result.Scaled {
		c.options.Woken(c.targetKeys.Of(p.elastiService), why)
		c.event(p.elastiService, corev1.EventTypeWarning, reason, actionWake, "scaled %s %s to %d: %s", p.elastiService.Spec.ScaleTargetRef.Kind, p.elastiService.Spec.ScaleTargetRef.Name, result.Replicas, why)
	}
	return nil
}

// cannotHold returns the reason of the Event, and why, when nothing has been able to hold
// the traffic of a sleeping target for too long. When that may be so later, it has the
// ElastiService synced then.
func (c *Controller) cannotHold(p *pass) (reason, why string) {
	availability, _, wait := c.resolvers.AvailabilityOf(resources.AddressTypes(p.service))
	switch availability {
	case resolvers.Missing:
		c.queue.AddAfter(p.key(), wait)
		return "", ""
	case resolvers.Unavailable:
		if ofAnyFamily, _, _ := c.resolvers.Availability(); ofAnyFamily == resolvers.Available {
			return v1alpha1.ReasonNoResolverOfIPFamily, fmt.Sprintf("no resolver with an address of %s is ready to hold its traffic", c.familiesWithoutResolver(p.service))
		}
		return v1alpha1.ReasonNoReadyResolver, "no resolver is ready to hold its traffic"
	}
	if !p.state.exposed() {
		return "", ""
	}
	if left := p.state.exposureLeft(c.clock.Now(), c.options.ResolverGrace); left > 0 {
		c.queue.AddAfter(p.key(), left)
		return "", ""
	}
	if families := slices.Concat(p.notAccepting, p.acceptanceUnknown); len(families) > 0 {
		return v1alpha1.ReasonNoAcceptingResolver, fmt.Sprintf("no resolver with an address of %s accepts connections to the proxy ports of Service %q", strings.Join(families, " and "), p.service.Name)
	}
	return v1alpha1.ReasonResolverSliceMissing, fmt.Sprintf("the resolver slice of Service %q is missing and cannot be written", p.service.Name)
}

// familiesWithoutResolver returns the IP families of a Service of which no resolver is
// ready, for messages.
func (c *Controller) familiesWithoutResolver(service *corev1.Service) string {
	var missing []string
	for _, family := range resources.AddressTypes(service) {
		if len(c.resolvers.Ready(family)) == 0 {
			missing = append(missing, string(family))
		}
	}
	return strings.Join(missing, " and ")
}

// mayWake reports whether the rate of wakes allows that of the target of an ElastiService
// now. If not, the ElastiService waits, and is synced when its turn has come.
func (c *Controller) mayWake(key types.NamespacedName) bool {
	c.wakeQueue.add(key)
	c.admitWakes()
	return c.wakeQueue.isAdmitted(key)
}

// admitWakes enqueues the ElastiServices whose targets may be woken now, and itself for the
// next ones.
func (c *Controller) admitWakes() {
	admitted, next := c.wakeQueue.admit(c.clock.Now())
	for _, key := range admitted {
		c.enqueue(key)
	}
	if next > 0 {
		c.queue.AddAfter(nextWakes, next)
	}
}
