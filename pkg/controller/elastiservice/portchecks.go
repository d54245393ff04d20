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
	"maps"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/portcheck"
)

// acceptingResolvers returns the resolvers to list in the slices of an ElastiService, by
// address type, and whether others may follow soon. It sets notAccepting and acceptanceUnknown.
func (c *Controller) acceptingResolvers(ctx context.Context, p *pass) (map[discoveryv1.AddressType][]discoveryv1.Endpoint, bool) {
	query := c.queryOf(p)
	var inPlace []*discoveryv1.EndpointSlice
	for _, slice := range p.ownSlices {
		inPlace = append(inPlace, slice.slice)
	}
	p.state.portChecks.Trust(query, resources.SlicePorts(p.result.ports), inPlace, c.clock.Now())
	ready := map[discoveryv1.AddressType][]discoveryv1.Endpoint{}
	for _, family := range resources.AddressTypes(p.service) {
		ready[family] = c.resolvers.Ready(family)
	}
	complete := c.portChecker.Check(ctx, &p.state.portChecks, query, slices.Concat(slices.Collect(maps.Values(ready))...), p.scaleDown.needsResolvers() || foundNotAccepting(p.elastiService))
	if !complete {
		c.queue.AddAfter(p.key(), resolvers.PortCheckRetryDelay)
	}
	listed := map[discoveryv1.AddressType][]discoveryv1.Endpoint{}
	for _, family := range resources.AddressTypes(p.service) {
		var overdue []discoveryv1.Endpoint
		for _, endpoint := range ready[family] {
			switch address := endpoint.Addresses[0]; {
			case p.state.portChecks.Accepting(address):
				listed[family] = append(listed[family], endpoint)
			case p.state.portChecks.Overdue(address):
				overdue = append(overdue, endpoint)
			}
		}
		if len(overdue) > 0 && complete {
			c.queue.AddAfter(p.key(), resolvers.OverdueRetryDelay)
		}
		if len(listed[family]) > 0 {
			continue
		}
		if len(overdue) == 0 || !complete {
			p.acceptanceUnknown = append(p.acceptanceUnknown, string(family))
		} else {
			p.notAccepting = append(p.notAccepting, string(family))
		}
		if len(overdue) == 0 {
			continue
		}
		// Without endpoints clients reach only these resolvers. Ready endpoints are better.
		if p.readyEndpoints == 0 || p.target.AtZero() {
			listed[family] = overdue
		}
	}
	return listed, complete
}

// foundNotAccepting reports whether resolvers were found not to accept connections, maybe by
// the leader before: a slice that lists them does not show that they do.
func foundNotAccepting(elastiService *v1alpha1.ElastiService) bool {
	condition := findCondition(elastiService, v1alpha1.ConditionResolverAvailable)
	return condition != nil && condition.Reason == v1alpha1.ReasonNoAcceptingResolver
}

// queryOf returns the query of the ports of a pass.
func (c *Controller) queryOf(p *pass) resolvers.Query {
	query := resolvers.Query{
		Query:      portcheck.Query{Service: resources.KeyOf(p.service), UID: p.elastiService.UID},
		SharedPort: c.options.SharedProxyPort,
	}
	for _, port := range p.result.ports {
		query.Ports = append(query.Ports, portcheck.Port{Service: port.Port, Proxy: port.ProxyPort})
	}
	return query
}
