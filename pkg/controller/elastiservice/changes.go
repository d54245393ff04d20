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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

func (c *Controller) enqueue(key types.NamespacedName) { c.queue.Add(key) }

func (c *Controller) enqueueUrgently(key types.NamespacedName) { c.queue.AddUrgent(key) }

func (c *Controller) elastiServiceChanged(before, after any) {
	old, _ := before.(*v1alpha1.ElastiService)
	current, _ := after.(*v1alpha1.ElastiService)
	c.options.Changed(old, current)
	if current == nil {
		c.deletions.end(old)
	}
	if old != nil && leavesAutoscaler(old, current) {
		c.enqueueUsersOfAutoscaler(old)
	}
	for _, object := range []any{before, after} {
		elastiService, ok := object.(*v1alpha1.ElastiService)
		if !ok {
			continue
		}
		c.enqueue(resources.KeyOf(elastiService))
		if old == nil || current == nil || hasSayChanged(old, current) {
			c.enqueueWaiting(elastiService)
		}
		if old == nil || current == nil || old.Spec.Service != current.Spec.Service {
			// Another ElastiService that names the same Service may own it now, or
			// lose it.
			for _, claimant := range c.claimants(elastiService) {
				c.enqueue(resources.KeyOf(claimant))
				c.enqueueWaiting(claimant)
			}
		}
	}
}

// leavesAutoscaler reports whether an ElastiService, which may be nil after a change, does not
// count any more for the autoscaler that it named before.
func leavesAutoscaler(old, current *v1alpha1.ElastiService) bool {
	return current == nil || !current.DeletionTimestamp.IsZero() && old.DeletionTimestamp.IsZero() ||
		!equality.Semantic.DeepEqual(old.Spec.Autoscaler, current.Spec.Autoscaler)
}

// enqueueUsersOfAutoscaler enqueues the ElastiServices that name the autoscaler of a given one.
// That one may have been the last that kept the autoscaler from scaling to zero, and the
// autoscaler itself does not change with it.
func (c *Controller) enqueueUsersOfAutoscaler(elastiService *v1alpha1.ElastiService) {
	spec := elastiService.Spec.Autoscaler
	if spec == nil {
		return
	}
	resource, _ := scaling.AutoscalerResource(string(spec.Type))
	for _, user := range c.usersOfAutoscaler(resource, resources.AutoscalerKey(elastiService.Namespace, spec.Name)) {
		c.enqueue(user)
	}
}

// hasSayChanged reports whether a change of an ElastiService may change whether it has a
// say in whether a target sleeps.
func hasSayChanged(old, current *v1alpha1.ElastiService) bool {
	return old.UID != current.UID || old.Spec.Service != current.Spec.Service || old.Spec.ScaleTargetRef != current.Spec.ScaleTargetRef ||
		!old.DeletionTimestamp.Equal(current.DeletionTimestamp) || hasFinalizer(old) != hasFinalizer(current)
}

// enqueueWaiting enqueues the ElastiServices that agree to scale the target of a given one to
// zero: they may wait for that one.
func (c *Controller) enqueueWaiting(elastiService *v1alpha1.ElastiService) {
	for _, key := range c.scaleDowns.waiting(c.targetKeys.Of(elastiService)) {
		c.enqueue(key)
	}
}

// elastiServiceDeleted records a deletion that the watch has reported.
func (c *Controller) elastiServiceDeleted(last any) {
	if elastiService, ok := last.(*v1alpha1.ElastiService); ok {
		c.deletions.record(elastiService)
	}
}

func (c *Controller) serviceChanged(before, after any) {
	service, ok := after.(*corev1.Service)
	if !ok {
		service = before.(*corev1.Service)
	}
	name := resources.KeyOf(service)
	c.enqueueByService(name, c.enqueue)
	c.enqueueByPrivateService(name)
	for _, key := range resources.OwnerOf(&service.ObjectMeta) {
		c.enqueue(key)
	}
}

func (c *Controller) endpointSliceChanged(before, after any) {
	old, _ := before.(*observedSlice)
	current, _ := after.(*observedSlice)
	for _, slice := range []*observedSlice{old, current} {
		if slice == nil {
			continue
		}
		if slice.service() == c.resolverService() {
			c.queue.Add(resolverCheck)
		}
		if !slice.managed() && old != nil && current != nil && old.ready == current.ready && old.service() == current.service() {
			continue
		}
		switch {
		case slice.Labels[v1alpha1.LabelRole] == v1alpha1.RolePrivate:
			c.enqueueByPrivateService(slice.service())
		case !slice.managed() && hasReady(old) != hasReady(current):
			c.enqueueByService(slice.service(), c.enqueueUrgently)
			c.enqueueOrphan(slice.service())
		default:
			c.enqueueByService(slice.service(), c.enqueue)
		}
		for _, key := range resources.OwnerOf(&slice.ObjectMeta) {
			c.enqueue(key)
		}
	}
}

// hasReady reports whether a slice, which may be nil, has a ready endpoint.
func hasReady(slice *observedSlice) bool { return slice != nil && slice.ready > 0 }

func (c *Controller) enqueueByService(service types.NamespacedName, enqueue func(types.NamespacedName)) {
	for _, elastiService := range indexed[*v1alpha1.ElastiService](c.elastiServices.in(service.Namespace), byService, service) {
		enqueue(resources.KeyOf(elastiService))
	}
}

// enqueueOrphan enqueues the ElastiService that the private Service of a public one was made
// for, when it does not exist any more: its resolvers leave with the first ready endpoint.
func (c *Controller) enqueueOrphan(public types.NamespacedName) {
	services := c.services.in(public.Namespace)
	if services == nil {
		return
	}
	private := resources.PrivateServiceKey(public)
	object, ok := services.Get(private.Namespace, private.Name)
	if !ok {
		return
	}
	for _, owner := range resources.OwnerOf(&object.(*corev1.Service).ObjectMeta) {
		if _, exists := c.elastiServices.in(owner.Namespace).Get(owner.Namespace, owner.Name); !exists {
			c.enqueue(owner)
		}
	}
}

func (c *Controller) enqueueByPrivateService(service types.NamespacedName) {
	for _, elastiService := range indexed[*v1alpha1.ElastiService](c.elastiServices.in(service.Namespace), byPrivateService, service) {
		c.enqueue(resources.KeyOf(elastiService))
	}
}

// watchedVersion returns the resource version that the watch has of an
// ElastiService, empty when it has none.
func (c *Controller) watchedVersion(key types.NamespacedName) string {
	if object, ok := c.elastiServices.in(key.Namespace).Get(key.Namespace, key.Name); ok {
		return object.(*v1alpha1.ElastiService).ResourceVersion
	}
	return ""
}

// enqueueAll enqueues all ElastiServices, and those that do not exist but have resolver
// slices.
func (c *Controller) enqueueAll() {
	for _, handle := range c.endpointSlices.handles() {
		for _, object := range handle.List() {
			if slice := object.(*observedSlice); slice.managed() {
				for _, owner := range resources.OwnerOf(&slice.ObjectMeta) {
					c.enqueue(owner)
				}
			}
		}
	}
	for _, handle := range c.elastiServices.handles() {
		for _, object := range handle.List() {
			c.enqueue(resources.KeyOf(object.(*v1alpha1.ElastiService)))
		}
	}
}
