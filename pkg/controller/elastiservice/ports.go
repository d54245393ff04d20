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
	"errors"
	"fmt"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// restoreRetry is the pause between two attempts to read the claims of proxy ports.
const restoreRetry = 2 * time.Second

// claimTimeout bounds the lookup of the owner of a claim.
const claimTimeout = 10 * time.Second

// maxLoggedOwners bounds how many owners of claims are logged that cannot be read.
const maxLoggedOwners = 10

// reconcilePorts is the phase ports. It assigns the proxy ports of the public
// Service.
func (c *Controller) reconcilePorts(ctx context.Context, p *pass) {
	if !p.mayManage() {
		return
	}
	ports, exhausted, err := c.assignProxyPorts(ctx, p)
	if err != nil {
		p.result.failed(err)
		p.result.ports, p.result.mode = p.elastiService.Status.ProxyPorts, p.observedMode()
		p.portsNotRecorded = true
		return
	}
	p.result.ports = ports
	if exhausted != nil {
		p.portsMissing = c.options.SharedProxyPort == 0
		p.result.problems = append(p.result.problems, *exhausted)
	}
}

// reconcilePortRecord is the phase port record. It records the proxy ports before
// anything points at them, so that a restart cannot give them to another
// ElastiService.
func (c *Controller) reconcilePortRecord(ctx context.Context, p *pass) {
	if !p.manages() || slices.Equal(p.elastiService.Status.ProxyPorts, p.result.ports) {
		return
	}
	recorded := p.elastiService.Status.DeepCopy()
	recorded.ProxyPorts = p.result.ports
	recorded.PrivateService = p.result.privateService
	recorded.ManagedTarget = p.result.managedTarget.Recorded()
	if err := c.statuses.WriteNow(ctx, p.elastiService, recorded); err != nil {
		p.result.failed(err)
		p.result.mode = p.observedMode()
		p.portsNotRecorded = true
		return
	}
	c.refresh(p)
}

// assignProxyPorts returns the proxy ports of the public Service's TCP ports,
// each of them claimed, and what is wrong when there are not enough.
func (c *Controller) assignProxyPorts(ctx context.Context, p *pass) ([]v1alpha1.ProxyPort, *condition, error) {
	recorded := map[int32]int32{}
	for _, port := range p.elastiService.Status.ProxyPorts {
		recorded[port.Port] = port.ProxyPort
	}
	before := p.elastiService.Status.PrivateService
	if before != "" && before != resources.PrivateServiceName(p.service.Name) || p.state.hasPortsOfAnother(p.service.Name) {
		// Traffic of the previous Service may still come to its proxy ports. It
		// must not reach the pods of this one. The status does not name a private Service
		// that could not be made.
		c.ports.Release(p.key())
		recorded = nil
	}
	var numbers []int32
	for _, port := range p.service.Spec.Ports {
		if resources.IsTCP(&port) {
			numbers = append(numbers, port.Port)
		}
	}
	assigned, err := c.ports.Assign(ctx, ownerOf(p.elastiService), numbers, recorded)
	if err != nil {
		return nil, nil, err
	}
	p.state.recordPorts(p.service.Name)
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
		return ports, nil, nil
	}
	fallback := "their traffic is not held"
	if c.options.SharedProxyPort != 0 {
		fallback = "they share a port on which only HTTP works, by host name"
	}
	exhausted := conditionFalse(v1alpha1.ReasonProxyPortsExhausted, "no proxy port is free in %s, of which a part is left to namespaces with few, for %d ports of Service %q, so %s: widen the range", c.options.ProxyPortRange.String(), len(numbers)-len(assigned), p.service.Name, fallback)
	return ports, &exhausted, nil
}

// restoreProxyPorts takes over the claims that are stored, before anything is
// assigned, and claims what statuses record without a claim for the oldest of those
// that record it. What resolver slices refer to beside that is given to no other. It tries
// until ctx ends, and returns an error then.
func (c *Controller) restoreProxyPorts(ctx context.Context) error {
	for {
		unreadable := 0
		err := c.ports.Restore(ctx, c.recordedProxyPorts(), func(ctx context.Context, owner proxyports.Owner) (bool, error) {
			exists, err := c.exists(ctx, owner)
			if err == nil || c.storageFails(ctx, owner.Namespace) {
				return exists, err
			}
			// The stored object is damaged. It keeps its proxy ports, and all others are
			// served meanwhile.
			if unreadable++; unreadable <= maxLoggedOwners {
				klog.FromContext(ctx).Error(err, "Failed to read the owner of proxy ports, which counts as existing: repair or delete the stored object", "elastiService", owner.NamespacedName)
			}
			return true, nil
		})
		if unreadable > maxLoggedOwners {
			klog.FromContext(ctx).Info("Owners of proxy ports cannot be read and count as existing", "owners", unreadable)
		}
		if err == nil {
			c.ports.Hold(c.referencedProxyPorts())
			return nil
		}
		klog.FromContext(ctx).Error(err, "Failed to read the claims of proxy ports, will retry", "retryIn", restoreRetry)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.clock.After(restoreRetry):
		}
	}
}

// recordedProxyPorts returns what the statuses record, the oldest first.
func (c *Controller) recordedProxyPorts() []proxyports.Recorded {
	var known []*v1alpha1.ElastiService
	for _, handle := range c.elastiServices.handles() {
		for _, object := range handle.List() {
			known = append(known, object.(*v1alpha1.ElastiService))
		}
	}
	slices.SortFunc(known, older)
	recorded := make([]proxyports.Recorded, 0, len(known))
	for _, elastiService := range known {
		ports := map[int32]int32{}
		for _, port := range elastiService.Status.ProxyPorts {
			if port.ProxyPort != c.options.SharedProxyPort {
				ports[port.Port] = port.ProxyPort
			}
		}
		recorded = append(recorded, proxyports.Recorded{Owner: ownerOf(elastiService), Ports: ports})
	}
	return recorded
}

// referencedProxyPorts returns the ElastiServices that resolver slices were made for by the
// proxy ports that these refer to.
func (c *Controller) referencedProxyPorts() map[int32][]types.NamespacedName {
	referring := map[int32][]types.NamespacedName{}
	for _, handle := range c.endpointSlices.handles() {
		for _, object := range handle.List() {
			slice := object.(*observedSlice)
			if !slice.managed() {
				continue
			}
			for _, owner := range resources.OwnerOf(&slice.ObjectMeta) {
				for _, port := range slice.slice.Ports {
					if proxyPort := ptr.Deref(port.Port, 0); !slices.Contains(referring[proxyPort], owner) {
						referring[proxyPort] = append(referring[proxyPort], owner)
					}
				}
			}
		}
	}
	return referring
}

// refersTo reports whether a resolver slice that was made for an ElastiService refers to a
// proxy port.
func (c *Controller) refersTo(owner types.NamespacedName, proxyPort int32) bool {
	return slices.ContainsFunc(indexed[*observedSlice](c.endpointSlices.in(owner.Namespace), byOwner, owner), func(slice *observedSlice) bool {
		return slice.managed() && slices.ContainsFunc(slice.slice.Ports, func(port discoveryv1.EndpointPort) bool { return ptr.Deref(port.Port, 0) == proxyPort })
	})
}

// reconcilePortsOfOthers is the phase ports of others.
func (c *Controller) reconcilePortsOfOthers(ctx context.Context, p *pass) {
	p.result.failed(c.leavePortsOfOthers(ctx, p))
}

// leavePortsOfOthers takes proxy ports that belong to another ElastiService out of the
// resolver slices of a pass: the claims of a storage that was replaced by an older one may
// contradict slices that were made later. No target is woken first: it is better for a client
// to be turned away than to reach the application of another tenant.
func (c *Controller) leavePortsOfOthers(ctx context.Context, p *pass) error {
	var problems []error
	for i, slice := range p.ownSlices {
		if !slice.managed() {
			continue
		}
		owner := p.key()
		for _, made := range resources.OwnerOf(&slice.ObjectMeta) {
			owner = made
		}
		left := slice.slice.DeepCopy()
		left.Ports = slices.DeleteFunc(left.Ports, func(port discoveryv1.EndpointPort) bool {
			return c.ports.IsOfAnother(owner, ptr.Deref(port.Port, 0))
		})
		if len(left.Ports) == len(slice.slice.Ports) {
			continue
		}
		written, err := c.host.DiscoveryV1().EndpointSlices(left.Namespace).Update(ctx, left, metav1.UpdateOptions{FieldManager: v1alpha1.FieldManager})
		if ignoreNotFound(err) != nil {
			problems = append(problems, fmt.Errorf("taking proxy ports of other ElastiServices out of resolver slice %q: %w", left.Name, err))
		}
		if err != nil {
			continue
		}
		klog.FromContext(ctx).Info("Removed the proxy ports of other ElastiServices from a resolver slice: their traffic is not held until the ElastiService has others or its target is awake", "elastiService", owner, "endpointSlice", klog.KObj(left))
		updated := *slice
		updated.slice, updated.ResourceVersion = written, written.ResourceVersion
		p.ownSlices[i] = &updated
	}
	return errors.Join(problems...)
}

// exists reads from the storage whether the owner of a claim exists that is not in the cache:
// it may be in a namespace that is not managed. An owner that was left there, without a
// finalizer, does not need its proxy ports.
func (c *Controller) exists(ctx context.Context, owner proxyports.Owner) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	found, err := c.elasti.ElastiV1alpha1().ElastiServices(owner.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return found.UID == owner.UID && (c.inScope(found.Namespace) || hasFinalizer(found)), nil
}

// storageFails reports whether no ElastiService of a namespace can be read at present.
// Lists leave out stored objects that are damaged.
func (c *Controller) storageFails(ctx context.Context, namespace string) bool {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	_, err := c.elasti.ElastiV1alpha1().ElastiServices(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	return err != nil
}

func ownerOf(elastiService *v1alpha1.ElastiService) proxyports.Owner {
	return proxyports.Owner{NamespacedName: resources.KeyOf(elastiService), UID: elastiService.UID}
}
