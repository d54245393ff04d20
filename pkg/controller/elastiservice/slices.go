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

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// reconcileSlices is the phase slices. It puts the resolvers in the path of the
// public Service, or takes them out of it, as the desired mode requires.
func (c *Controller) reconcileSlices(ctx context.Context, p *pass) {
	if !p.manages() {
		p.state.recordExposure(c.clock.Now(), p.managed() && !haveEndpoints(p.ownSlices))
		return
	}
	var desired []*discoveryv1.EndpointSlice
	complete := true
	if p.desiredMode == v1alpha1.ModeProxy {
		var listed map[discoveryv1.AddressType][]discoveryv1.Endpoint
		listed, complete = c.acceptingResolvers(ctx, p)
		desired = resources.DesiredResolverSlices(p.elastiService, p.service, p.result.managedTarget, p.result.ports, func(family discoveryv1.AddressType) []discoveryv1.Endpoint { return listed[family] })
		p.allFamilies = !slices.ContainsFunc(desired, func(slice *discoveryv1.EndpointSlice) bool { return len(slice.Endpoints) == 0 })
	} else {
		p.state.portChecks.Forget()
	}
	p.allAccepting = complete && len(p.notAccepting) == 0
	if lost := c.scaleDowns.takeLost(p.key()); p.state.draining() && (lost || !inPlace(desired, p.ownSlices)) {
		// Whatever put them back, the data plane has not had them all the time.
		c.restartDrain(p)
	}
	removed, err := false, error(nil)
	if complete || hasEndpoints(desired) || !haveEndpoints(p.ownSlices) {
		removed, err = c.ensureResolverSlices(ctx, desired, p.ownSlices)
		if err == nil {
			p.state.portChecks.RecordListed(desired)
		}
	}
	// Otherwise no resolver is known to serve the present ports of the Service. Until one
	// is, the previous slices are better than none: resolvers keep the previous ports open
	// for a while.
	p.result.failed(err)
	awake := p.target.Scale != nil && !p.target.AtZero()
	exposed := !awake && (len(p.notAccepting) > 0 || err != nil && !inPlace(desired, p.ownSlices))
	if awake || exposed || len(p.acceptanceUnknown) == 0 {
		// Resolvers that come and go without ever accepting a connection are no end of it.
		p.state.recordExposure(c.clock.Now(), exposed)
	}
	if removed {
		p.state.recordSliceRemoval(c.clock.Now())
	}
	if before := p.elastiService.Status.Mode; before != p.desiredMode {
		c.metrics.switched(p.key(), p.desiredMode, err)
		if err == nil && before != "" {
			klog.FromContext(ctx).V(2).Info("Switched the mode", "elastiService", klog.KObj(p.elastiService), "mode", p.desiredMode, "reason", p.why)
			c.event(p.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonModeSwitched, actionSwitchMode, "switched to mode %s: %s", p.desiredMode, p.why)
		}
	}
	p.result.mode = p.desiredMode
	if err != nil {
		p.result.mode = p.observedMode()
	}
}

// inPlace reports whether resolvers have been in the path of a Service as far as they
// are to be there: each slice that is to list resolvers is there, for the same ports,
// and lists one of them. Resolvers that come and go beside it do not count.
func inPlace(desired []*discoveryv1.EndpointSlice, owned []*observedSlice) bool {
	for _, slice := range desired {
		if len(slice.Endpoints) > 0 && !slices.ContainsFunc(owned, func(known *observedSlice) bool {
			return known.Name == slice.Name && known.service() == v1alpha1.SliceServiceKey(slice) &&
				equality.Semantic.DeepEqual(known.slice.Ports, slice.Ports) && shareEndpoint(known.slice.Endpoints, slice.Endpoints)
		}) {
			return false
		}
	}
	return true
}

func shareEndpoint(some, others []discoveryv1.Endpoint) bool {
	return slices.ContainsFunc(some, func(one discoveryv1.Endpoint) bool {
		return slices.ContainsFunc(others, func(other discoveryv1.Endpoint) bool { return slices.Equal(one.Addresses, other.Addresses) })
	})
}

func hasEndpoints(desired []*discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(desired, func(slice *discoveryv1.EndpointSlice) bool { return len(slice.Endpoints) > 0 })
}

func haveEndpoints(owned []*observedSlice) bool {
	return slices.ContainsFunc(owned, func(slice *observedSlice) bool { return len(slice.slice.Endpoints) > 0 })
}

// ensureResolverSlices makes the resolver slices as desired, then deletes the
// others of owned. It works on all of them, whatever fails, and reports whether
// it deleted one.
func (c *Controller) ensureResolverSlices(ctx context.Context, desired []*discoveryv1.EndpointSlice, owned []*observedSlice) (bool, error) {
	known := map[string]*discoveryv1.EndpointSlice{}
	for _, slice := range owned {
		known[slice.Name] = slice.slice
	}
	var problems []error
	for _, slice := range desired {
		if err := c.ensureResolverSlice(ctx, slice, known[slice.Name]); err != nil {
			problems = append(problems, err)
		}
		delete(known, slice.Name)
	}
	if len(problems) > 0 {
		// The traffic still depends on what is there.
		return false, errors.Join(problems...)
	}
	for _, slice := range known {
		if err := c.deleteResolverSlice(ctx, slice); err != nil {
			problems = append(problems, err)
		}
	}
	return len(known) > len(problems), errors.Join(problems...)
}

func (c *Controller) ensureResolverSlice(ctx context.Context, desired, current *discoveryv1.EndpointSlice) error {
	c.options.Signer.Sign(&desired.ObjectMeta)
	endpointSlices := c.host.DiscoveryV1().EndpointSlices(desired.Namespace)
	if current == nil {
		_, err := endpointSlices.Create(ctx, desired, metav1.CreateOptions{FieldManager: v1alpha1.FieldManager})
		if err == nil {
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating resolver slice %q: %w", desired.Name, err)
		}
		if current, err = endpointSlices.Get(ctx, desired.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("reading resolver slice %q: %w", desired.Name, err)
		}
		if !resources.IsMarked(&current.ObjectMeta, v1alpha1.RoleResolver) {
			return &resources.NameTakenError{Kind: "EndpointSlice", Name: desired.Name}
		}
	}
	if resources.ResolverSliceMatches(current, desired) {
		return nil
	}
	updated := current.DeepCopy()
	for key, value := range desired.Labels {
		metav1.SetMetaDataLabel(&updated.ObjectMeta, key, value)
	}
	for key, value := range desired.Annotations {
		metav1.SetMetaDataAnnotation(&updated.ObjectMeta, key, value)
	}
	updated.Ports = desired.Ports
	updated.Endpoints = desired.Endpoints
	if _, err := endpointSlices.Update(ctx, updated, metav1.UpdateOptions{FieldManager: v1alpha1.FieldManager}); err != nil {
		return fmt.Errorf("updating resolver slice %q: %w", desired.Name, err)
	}
	return nil
}

// deleteResolverSlice deletes a resolver slice as it was observed. A slice that was written
// since, for another ElastiService or by another replica, may be what has resolvers in the
// path of a Service now: it stays until it is observed as it is.
func (c *Controller) deleteResolverSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	err := c.host.DiscoveryV1().EndpointSlices(slice.Namespace).Delete(ctx, slice.Name, metav1.DeleteOptions{Preconditions: asObserved(&slice.ObjectMeta)})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting resolver slice %q: %w", slice.Name, err)
	}
	return nil
}

// asObserved returns the preconditions of a deletion of an object that is still as it
// was observed.
func asObserved(object *metav1.ObjectMeta) *metav1.Preconditions {
	return &metav1.Preconditions{UID: &object.UID, ResourceVersion: &object.ResourceVersion}
}
