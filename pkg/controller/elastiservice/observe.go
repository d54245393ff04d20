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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
)

// observed is what a pass observes of everything that an ElastiService is about.
type observed struct {
	// conflicting is the ElastiService that has the Service instead, or nil.
	conflicting *v1alpha1.ElastiService
	// service is the public Service, or nil.
	service *corev1.Service
	// ownServices are the private Services that were made for the
	// ElastiService, private the one that its Service has now, whichever
	// ElastiService it was made for.
	ownServices []*corev1.Service
	private     *corev1.Service
	// ownSlices are the resolver slices.
	ownSlices []*observedSlice
	// readyEndpoints is the number of ready endpoints in the public Service's
	// own slices, readyPods that of ready pods in those of the private Service.
	readyEndpoints int
	readyPods      int
	target         target.Observation
	autoscaler     target.AutoscalerObservation
}

// managed reports whether the Service is one that resolvers can stand in for,
// and the ElastiService the one that has it.
func (o *observed) managed() bool {
	return o.conflicting == nil && o.service != nil && resources.Unsupported(o.service) == ""
}

// observedMode returns the mode that the slices show.
func (o *observed) observedMode() v1alpha1.Mode {
	if len(o.ownSlices) > 0 {
		return v1alpha1.ModeProxy
	}
	return v1alpha1.ModeServe
}

// unneededServices returns the private Services of the ElastiService but the one with
// the name keep.
func (o *observed) unneededServices(keep string) []*corev1.Service {
	return slices.DeleteFunc(slices.Clone(o.ownServices), func(service *corev1.Service) bool { return service.Name == keep })
}

// reconcileObserved is the phase observe.
func (c *Controller) reconcileObserved(ctx context.Context, p *pass) {
	p.observed = c.observe(ctx, p.elastiService)
	if p.target.Object != nil {
		c.targetKeys.Learn(&p.elastiService.Spec.ScaleTargetRef, p.target.Resource.Resource)
	}
	c.recordScale(ctx, p)
	if object := p.target.Object; object != nil {
		c.options.Requests(p.key(), object.Requests)
	}
	if p.target.Unwatched {
		c.pollTarget(p.key())
	} else {
		c.polls.leave(p.key())
	}
}

// observe returns the observed state. It reads caches; only the scale of a kind that
// does not contain it is requested, when the object changed.
func (c *Controller) observe(ctx context.Context, elastiService *v1alpha1.ElastiService) observed {
	key := resources.KeyOf(elastiService)
	public := resources.PublicServiceKey(elastiService)
	private := resources.PrivateServiceKey(public)
	o := observed{target: c.targets.Observe(ctx, key, target.Of(elastiService)), autoscaler: c.autoscalers.Observe(elastiService)}

	if owning := owningElastiService(c.claimants(elastiService)); owning != nil && owning.UID != elastiService.UID {
		o.conflicting = owning
	}
	services := c.services.in(key.Namespace)
	if object, ok := services.Get(public.Namespace, public.Name); ok {
		o.service = object.(*corev1.Service)
	}
	if object, ok := services.Get(private.Namespace, private.Name); ok {
		o.private = object.(*corev1.Service)
	}
	o.ownServices = c.privateServicesOf(key)
	if o.private != nil && o.conflicting == nil && isUnsigned(o.private) {
		o.ownServices = append(o.ownServices, o.private)
	}

	endpointSlices := c.endpointSlices.in(key.Namespace)
	own := map[string]*observedSlice{}
	for _, slice := range indexed[*observedSlice](endpointSlices, byOwner, key) {
		own[slice.Name] = slice
	}
	for _, slice := range indexed[*observedSlice](endpointSlices, byService, public) {
		switch {
		case !slice.managed():
			o.readyEndpoints += slice.ready
		case o.conflicting == nil:
			own[slice.Name] = slice
		}
	}
	o.ownSlices = slices.Collect(maps.Values(own))
	o.readyPods = readyPods(indexed[*observedSlice](endpointSlices, byService, private))
	return o
}

// privateServicesOf returns the private Services that were made for an
// ElastiService.
func (c *Controller) privateServicesOf(key types.NamespacedName) []*corev1.Service {
	var found []*corev1.Service
	for _, service := range indexed[*corev1.Service](c.services.in(key.Namespace), byOwner, key) {
		if service.Labels[v1alpha1.LabelRole] == v1alpha1.RolePrivate {
			found = append(found, service)
		}
	}
	return found
}

// recordScale records the scale of the target, and reports the client that scaled
// it up without the controller.
func (c *Controller) recordScale(ctx context.Context, p *pass) {
	now := c.clock.Now()
	p.state.recordSharedScaleDown(c.scaleDowns.scaledAt(c.targetKeys.Of(p.elastiService), now))
	status := &p.elastiService.Status
	facts := scaleFacts{
		known:          p.target.Scale != nil,
		atZero:         p.target.AtZero(),
		wasUp:          status.Replicas > 0,
		slept:          ptr.Deref(status.SleptTime, metav1.Time{}).Time,
		requested:      status.SleepRequestedTime != nil,
		readyEndpoints: p.readyEndpoints,
	}
	if wake := status.LastWake; wake != nil && wake.CancelledSleep {
		facts.sleepCanceled = wake.Time.Time
	}
	// A target that another client has scaled to zero since is not woken.
	scaledByOther := p.target.Object != nil && p.target.Object.ScaledBy != "" && p.target.Object.ScaledBy != v1alpha1.FieldManager
	if !scaledByOther && p.state.lostWake(now, facts) {
		p.state.oweWake(c.targetKeys.Of(p.elastiService), max(target.MinReplicas(p.elastiService), 1))
	}
	if scaledByOther && facts.atZero && facts.wasUp {
		c.event(p.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonScaledToZeroByOther, actionSleep, "%s scaled the target to zero", p.target.Object.ScaledBy)
	}
	ended := p.state.recordScale(now, facts)
	if ended == nil {
		return
	}
	if by := c.scaledUpBy(ctx, p, ended); by != "" {
		c.options.ScaledUp(p.key(), by, c.clock.Since(ended.since))
	}
}

// scaledUpBy returns the client that scaled a sleeping target up, empty if that
// was the controller or is unknown. A scaling by the controller is known before
// it can be observed.
func (c *Controller) scaledUpBy(ctx context.Context, p *pass, ended *sleepPeriod) string {
	switch by := p.target.Object.ScaledBy; {
	case by != "" && by != v1alpha1.FieldManager:
		return by
	case by == "" && !c.options.OthersWake && !c.scaling.ScaledUpSince(ctx, target.Of(p.elastiService), ended.after):
		return v1alpha1.CallerUnknown
	default:
		return ""
	}
}
