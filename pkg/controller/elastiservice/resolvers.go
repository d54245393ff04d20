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

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
)

// reconcileMissingResolvers is the phase missing resolvers. It wakes a sleeping
// target when no resolver has been ready to hold its traffic for too long.
func (c *Controller) reconcileMissingResolvers(ctx context.Context, p *pass) {
	p.result.failed(c.wakeWithoutResolvers(ctx, p))
}

func (c *Controller) wakeWithoutResolvers(ctx context.Context, p *pass) error {
	if availability, _, _ := c.resolvers.Availability(); availability != resolvers.Unavailable || !p.target.AtZero() || !p.managed() {
		return nil
	}
	result, err := c.scaling.Wake(ctx, target.Of(p.elastiService), target.AutoscalerOf(p.elastiService.Spec.Autoscaler), target.MinReplicas(p.elastiService), false)
	if err != nil {
		return fmt.Errorf("waking the target while no resolver is ready: %w", err)
	}
	if result.Scaled {
		c.event(p.elastiService, corev1.EventTypeWarning, v1alpha1.ReasonNoReadyResolver, actionWake, "scaled %s %s to %d: no resolver is ready to hold its traffic", p.elastiService.Spec.ScaleTargetRef.Kind, p.elastiService.Spec.ScaleTargetRef.Name, result.Replicas)
	}
	return nil
}

func (c *Controller) resolverService() types.NamespacedName {
	return types.NamespacedName{Namespace: c.options.ResolverNamespace, Name: c.options.ResolverService}
}

// resolversChanged records the slices of the resolvers' Service and reports whether
// the ready resolvers changed.
func (c *Controller) resolversChanged(ctx context.Context) bool {
	return c.resolvers.Update(func() []*discoveryv1.EndpointSlice {
		var found []*discoveryv1.EndpointSlice
		defer func() { c.liveness.Watch(ctx, found) }()
		for _, slice := range indexed[*observedSlice](c.resolverSlices, byService, c.resolverService()) {
			if slice.slice != nil && !slice.managed() {
				found = append(found, slice.slice)
			}
		}
		return found
	})
}

// checkResolvers has every ElastiService synced when resolvers become ready, stop to
// be, or have been missing for the grace period.
func (c *Controller) checkResolvers(ctx context.Context) {
	changed := c.resolversChanged(ctx)
	availability, since, wait := c.resolvers.Availability()
	if availability == resolvers.Missing {
		c.queue.AddAfter(resolverCheck, wait)
	}
	if availability == resolvers.Unavailable {
		klog.FromContext(ctx).Info("No resolver is ready, waking sleeping targets", "since", since)
	}
	if changed || availability == resolvers.Unavailable {
		c.enqueueAll()
	}
}
