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

	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/portcheck"
)

// acceptingResolvers returns the resolvers to list in the slices of an
// ElastiService, and whether those are all that are ready.
func (c *Controller) acceptingResolvers(ctx context.Context, p *pass) (func(discoveryv1.AddressType) []discoveryv1.Endpoint, bool) {
	query := c.queryOf(p)
	var inPlace []*discoveryv1.EndpointSlice
	for _, slice := range p.ownSlices {
		inPlace = append(inPlace, slice.slice)
	}
	p.state.portChecks.Trust(query, resources.SlicePorts(p.result.ports), inPlace, c.clock.Now())
	var ready []discoveryv1.Endpoint
	for _, family := range resources.AddressTypes(p.service) {
		ready = append(ready, c.resolvers.Ready(family)...)
	}
	complete := c.portChecker.Check(ctx, &p.state.portChecks, query, ready)
	if !complete {
		c.queue.AddAfter(p.key(), resolvers.PortCheckRetryDelay)
	}
	return func(family discoveryv1.AddressType) []discoveryv1.Endpoint {
		var accepting []discoveryv1.Endpoint
		for _, endpoint := range c.resolvers.Ready(family) {
			// One that became ready just now is checked next time.
			if p.state.portChecks.Accepting(endpoint.Addresses[0]) {
				accepting = append(accepting, endpoint)
			}
		}
		return accepting
	}, complete
}

// queryOf returns the query of the ports of a pass.
func (c *Controller) queryOf(p *pass) resolvers.Query {
	query := resolvers.Query{
		Query:      portcheck.Query{Service: types.NamespacedName{Namespace: p.service.Namespace, Name: p.service.Name}, UID: p.elastiService.UID},
		SharedPort: c.options.SharedProxyPort,
	}
	for _, port := range p.result.ports {
		query.Ports = append(query.Ports, portcheck.Port{Service: port.Port, Proxy: port.ProxyPort})
	}
	return query
}
