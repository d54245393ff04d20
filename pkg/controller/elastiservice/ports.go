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
	"slices"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// reconcilePorts is the phase ports. It assigns the proxy ports of the public
// Service.
func (c *Controller) reconcilePorts(_ context.Context, p *pass) {
	if !p.managed() {
		return
	}
	ports, exhausted := c.assignProxyPorts(p)
	p.result.ports = ports
	if exhausted != nil {
		p.result.problems = append(p.result.problems, *exhausted)
	}
}

// reconcilePortRecord is the phase port record. It records the proxy ports before
// anything points at them, so that a restart cannot give them to another
// ElastiService.
func (c *Controller) reconcilePortRecord(ctx context.Context, p *pass) {
	if !p.managed() || slices.Equal(p.elastiService.Status.ProxyPorts, p.result.ports) {
		return
	}
	recorded := p.elastiService.Status.DeepCopy()
	recorded.ProxyPorts = p.result.ports
	recorded.PrivateService = resources.PrivateServiceName(p.service.Name)
	if err := c.statuses.WriteNow(ctx, p.elastiService, recorded); err != nil {
		p.result.failed(err)
		p.result.mode = p.observedMode()
		p.portsNotRecorded = true
		return
	}
	c.refresh(p)
}

// assignProxyPorts returns the proxy ports of the public Service's TCP ports,
// and what is wrong when there are not enough.
func (c *Controller) assignProxyPorts(p *pass) ([]v1alpha1.ProxyPort, *condition) {
	recorded := map[int32]int32{}
	for _, port := range p.elastiService.Status.ProxyPorts {
		recorded[port.Port] = port.ProxyPort
	}
	if before := p.elastiService.Status.PrivateService; before != "" && before != resources.PrivateServiceName(p.service.Name) {
		// Traffic of the former Service may still come to its proxy ports. It
		// must not reach the pods of this one.
		c.ports.Release(p.key())
		recorded = nil
	}
	var numbers []int32
	for _, port := range p.service.Spec.Ports {
		if resources.IsTCP(&port) {
			numbers = append(numbers, port.Port)
		}
	}
	assigned := c.ports.Assign(p.key(), numbers, recorded)
	var ports []v1alpha1.ProxyPort
	for _, port := range p.service.Spec.Ports {
		if !resources.IsTCP(&port) {
			continue
		}
		proxyPort, ok := assigned[port.Port]
		if !ok {
			proxyPort = c.options.SharedProxyPort
		}
		if proxyPort == 0 {
			continue
		}
		entry := v1alpha1.ProxyPort{Port: port.Port, Name: port.Name, ProxyPort: proxyPort}
		if port.AppProtocol != nil {
			entry.AppProtocol = *port.AppProtocol
		}
		ports = append(ports, entry)
	}
	if len(assigned) == len(numbers) {
		return ports, nil
	}
	fallback := "their traffic is not held"
	if c.options.SharedProxyPort != 0 {
		fallback = "they share a port on which only HTTP works, by host name"
	}
	exhausted := conditionFalse(v1alpha1.ReasonProxyPortsExhausted, "no proxy port is free in %s for %d ports of Service %q, so %s: widen the range", c.options.ProxyPortRange.String(), len(numbers)-len(assigned), p.service.Name, fallback)
	return ports, &exhausted
}

// restoreProxyPorts restores the proxy ports that are recorded, those of the oldest
// ElastiService first, before anything is assigned.
func (c *Controller) restoreProxyPorts() {
	var recorded []*v1alpha1.ElastiService
	for _, handle := range c.elastiServices.handles() {
		for _, object := range handle.List() {
			recorded = append(recorded, object.(*v1alpha1.ElastiService))
		}
	}
	slices.SortFunc(recorded, older)
	for _, elastiService := range recorded {
		assigned := map[int32]int32{}
		for _, port := range elastiService.Status.ProxyPorts {
			if port.ProxyPort != c.options.SharedProxyPort {
				assigned[port.Port] = port.ProxyPort
			}
		}
		if len(assigned) > 0 {
			c.ports.Restore(resources.KeyOf(elastiService), assigned)
		}
	}
}
