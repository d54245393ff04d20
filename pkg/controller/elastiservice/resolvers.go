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

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
)

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

// checkResolvers enqueues every ElastiService when the ready resolvers have changed, or none
// has been ready for the grace period.
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
