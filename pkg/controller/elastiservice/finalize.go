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
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// lingerTime is how long a private Service stays after the resolver slice is deleted. Until
// every node has observed the deletion, resolvers still get connections and need the
// endpoints.
const lingerTime = 5 * time.Second

// reconcileFinalizers is the phase finalizers. It adds the finalizer, or ends the
// pass with what is left to do for an ElastiService that is being deleted.
func (c *Controller) reconcileFinalizers(ctx context.Context, p *pass) {
	elastiService := p.elastiService
	if !elastiService.DeletionTimestamp.IsZero() {
		err := c.finalize(ctx, p)
		c.metrics.finalizing(p.key(), err)
		p.end(err)
		return
	}
	if hasFinalizer(elastiService) {
		return
	}
	updated, err := c.setFinalizers(ctx, elastiService, append(slices.Clone(elastiService.Finalizers), v1alpha1.Finalizer))
	if err != nil {
		p.end(fmt.Errorf("adding the finalizer: %w", err))
		return
	}
	p.state.recordWrite(updated)
	p.elastiService = updated
}

// finalize restores everything: it wakes the target and resumes its autoscaler, then deletes
// the resolver slices and the private Service, and removes the finalizer last.
func (c *Controller) finalize(ctx context.Context, p *pass) error {
	elastiService := p.elastiService
	if elastiService.UID != p.state.finalized {
		if !hasFinalizer(elastiService) && !c.hasOwned(p) {
			return nil
		}
		// This is done once: the cache may still have the finalizer, and by then the target
		// is the user's to scale.
		if done, err := c.restoreAll(ctx, p); err != nil || !done {
			return err
		}
		p.state.recordFinalized(elastiService.UID)
		c.wakeQueue.remove(p.key())
	}
	if !hasFinalizer(elastiService) {
		return nil
	}
	return c.removeFinalizer(ctx, elastiService)
}

// hasOwned reports whether there is something that was made for an ElastiService: a user
// may have removed the finalizer, and another one, such as that of a GitOps controller, may
// keep the ElastiService for long.
func (c *Controller) hasOwned(p *pass) bool {
	key := p.key()
	return len(c.privateServicesOf(key)) > 0 || len(indexed[*observedSlice](c.endpointSlices.in(key.Namespace), byOwner, key)) > 0
}

func (c *Controller) removeFinalizer(ctx context.Context, elastiService *v1alpha1.ElastiService) error {
	remaining := slices.DeleteFunc(slices.Clone(elastiService.Finalizers), func(finalizer string) bool { return finalizer == v1alpha1.Finalizer })
	if _, err := c.setFinalizers(ctx, elastiService, remaining); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing the finalizer: %w", err)
	}
	return nil
}

// restoreAll restores everything for an ElastiService that is being deleted, and reports
// whether that is done.
func (c *Controller) restoreAll(ctx context.Context, p *pass) (bool, error) {
	p.observed = c.observe(ctx, p.elastiService)
	if err := c.readOwned(ctx, p); err != nil {
		return false, err
	}
	if err := c.leavePortsOfOthers(ctx, p); err != nil {
		return false, err
	}
	restorations := append(c.previousRestorations(p), c.currentRestorations(p)...)
	served, _ := c.servedByResolvers(p)
	if !c.mayRestore(served, restorations) {
		c.reportNotReady(p.elastiService, conditionFalse(v1alpha1.ReasonWaitingForWake, "it is deleted when its target is awake, which waits for its turn to be woken: --wake-rate of elasti-apiserver says how many are woken in a second"))
		return false, c.followResolvers(ctx, p)
	}
	done, err := c.removeResolvers(ctx, served, p.state.recordDeletion(p.elastiService, c.clock.Now()), restorations...)
	var problem *notRestoredError
	if errors.As(err, &problem) {
		c.reportNotReady(p.elastiService, conditionFalse(v1alpha1.ReasonTargetNotRestored, "%s", problem.Error()))
	}
	return done, err
}

// readOwned adds to what was observed the resolver slices and the private Service that the
// API server has. The watch may lag behind the controller's own writes. After the finalizer
// is removed, nothing cleans up what is observed late. In a namespace that is deleted, the
// permission to read them may be deleted first, and they are deleted with it.
func (c *Controller) readOwned(ctx context.Context, p *pass) error {
	if p.conflicting != nil {
		return nil
	}
	err := errors.Join(c.readOwnSlices(ctx, p), c.readPrivateService(ctx, p))
	if err != nil && c.isNamespaceDeleted(ctx, p.key().Namespace) {
		return nil
	}
	return err
}

func (c *Controller) readOwnSlices(ctx context.Context, p *pass) error {
	public := resources.PublicServiceKey(p.elastiService)
	found, err := c.host.DiscoveryV1().EndpointSlices(public.Namespace).List(ctx, selecting(discoveryv1.LabelServiceName, public.Name))
	if err != nil {
		return fmt.Errorf("listing the resolver slices of Service %q: %w", public.Name, err)
	}
	keep := keepSlice(c.options.Signer, c.resolverService())
	for i := range found.Items {
		kept, err := keep(&found.Items[i])
		if err != nil {
			return err
		}
		slice := kept.(*observedSlice)
		if slice.managed() && !slices.ContainsFunc(p.ownSlices, func(known *observedSlice) bool { return known.Name == slice.Name }) {
			p.ownSlices = append(p.ownSlices, slice)
		}
	}
	return nil
}

func (c *Controller) readPrivateService(ctx context.Context, p *pass) error {
	private := resources.PrivateServiceKey(resources.PublicServiceKey(p.elastiService))
	if slices.ContainsFunc(p.ownServices, func(known *corev1.Service) bool { return known.Name == private.Name }) {
		return nil
	}
	found, err := c.host.CoreV1().Services(private.Namespace).Get(ctx, private.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading private Service %q: %w", private.Name, err)
	}
	if isPrivateService(c.options.Signer, &found.ObjectMeta) && slices.Contains(resources.OwnerOf(&found.ObjectMeta), p.key()) {
		p.ownServices = append(p.ownServices, found)
	}
	return nil
}

// mayRestore reports whether the targets of an ElastiService that is deleted may be woken
// now. Any number of ElastiServices may be deleted at once, such as by a GitOps
// controller, or lost with a store that is replaced by an older one: those whose targets
// may be asleep wait for their turns.
func (c *Controller) mayRestore(p *pass, restorations []restoration) bool {
	awakeOrMissing := len(restorations) == 1 && (p.target.Scale != nil && !p.target.AtZero() || p.target.Missing())
	return len(restorations) == 0 || p.readyEndpoints > 0 || awakeOrMissing || c.mayWake(p.key())
}

// reportNotReady has Ready say why nothing else is reported of an ElastiService, such as
// why it is still there while it is being deleted. The rest of its status stays as it is.
func (c *Controller) reportNotReady(elastiService *v1alpha1.ElastiService, why condition) {
	status := elastiService.Status.DeepCopy()
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type:               v1alpha1.ConditionReady,
		Status:             why.status,
		Reason:             why.reason,
		Message:            bounded(why.message),
		ObservedGeneration: elastiService.Generation,
		LastTransitionTime: metav1.NewTime(c.clock.Now()).Rfc3339Copy(),
	})
	c.statuses.Enqueue(elastiService, status)
}

func hasFinalizer(elastiService *v1alpha1.ElastiService) bool {
	return slices.Contains(elastiService.Finalizers, v1alpha1.Finalizer)
}

// orphans returns a pass that observes the objects that were made for an
// ElastiService that does not exist, and its public Service. last is the ElastiService
// as it was when it was deleted, nil if that was not observed.
func (c *Controller) orphans(key types.NamespacedName, last *v1alpha1.ElastiService) *pass {
	p := &pass{
		elastiService: &v1alpha1.ElastiService{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}},
		state:         c.states.of(key),
	}
	p.ownServices = c.privateServicesOf(key)
	p.ownSlices = append(indexed[*observedSlice](c.endpointSlices.in(key.Namespace), byOwner, key), c.unownedSlices(key.Namespace, p.ownServices)...)
	for _, slice := range p.ownSlices {
		p.state.recordOrphaned(slice.service())
	}
	if last != nil && last.UID != p.state.finalized {
		p.elastiService = last
		p.state.recordOrphaned(resources.PublicServiceKey(last))
	}
	p.ownServices = append(p.ownServices, c.editedPrivateServices(p.state.orphaned)...)
	if len(p.ownSlices) > 0 {
		c.observeService(p, p.ownSlices[0].service())
	}
	return p
}

// editedPrivateServices returns the private Services of public Services that do not name
// their ElastiService any more, because a client has edited them.
func (c *Controller) editedPrivateServices(publics []types.NamespacedName) (found []*corev1.Service) {
	for _, public := range publics {
		object, ok := c.services.in(public.Namespace).Get(public.Namespace, resources.PrivateServiceName(public.Name))
		if !ok {
			continue
		}
		if private := object.(*corev1.Service); isUnsigned(private) && !slices.Contains(found, private) {
			found = append(found, private)
		}
	}
	return found
}

// observeService has a pass observe a public Service and its endpoints.
func (c *Controller) observeService(p *pass, public types.NamespacedName) {
	p.service, p.readyEndpoints = nil, 0
	if object, ok := c.services.in(public.Namespace).Get(public.Namespace, public.Name); ok {
		p.service = object.(*corev1.Service)
	}
	for _, slice := range indexed[*observedSlice](c.endpointSlices.in(public.Namespace), byService, public) {
		if !slice.managed() {
			p.readyEndpoints += slice.ready
		}
	}
}

// unownedSlices returns the resolver slices of the Services that private Services
// belong to, when these slices do not say any more for which ElastiService they were
// made: a client has edited them.
func (c *Controller) unownedSlices(namespace string, private []*corev1.Service) (found []*observedSlice) {
	endpointSlices := c.endpointSlices.in(namespace)
	if len(private) == 0 || endpointSlices == nil {
		return nil
	}
	for _, object := range endpointSlices.List() {
		slice := object.(*observedSlice)
		if slice.Namespace != namespace || !slice.managed() || len(resources.OwnerOf(&slice.ObjectMeta)) > 0 {
			continue
		}
		name := resources.PrivateServiceName(slice.service().Name)
		if slices.ContainsFunc(private, func(service *corev1.Service) bool { return service.Name == name }) {
			found = append(found, slice)
		}
	}
	return found
}

// hasNoElastiServices reports whether the caches have no ElastiService in any scope.
func (c *Controller) hasNoElastiServices() bool {
	for _, handle := range c.elastiServices.handles() {
		if len(handle.List()) > 0 {
			return false
		}
	}
	return true
}

// removeOwned deletes the resolver slices of an ElastiService and, after lingerTime, its
// private Services except p.recordKept. It reports whether all are deleted.
func (c *Controller) removeOwned(ctx context.Context, p *pass) (bool, error) {
	p.state.portChecks.Forget()
	removed, err := c.ensureResolverSlices(ctx, nil, p.ownSlices)
	if err != nil {
		return false, err
	}
	if removed && p.service != nil {
		p.state.recordSliceRemoval(c.clock.Now())
	}
	return c.deletePrivateServices(ctx, p, p.recordKept)
}

// reconcileLeftovers is the phase leftovers. It deletes the private Services that
// the ElastiService does not need any more, and has the ElastiService synced again
// when a scale-down does not count any more.
func (c *Controller) reconcileLeftovers(ctx context.Context, p *pass) {
	if !p.manages() {
		return
	}
	if !p.previousAsleep {
		_, err := c.deletePrivateServices(ctx, p, resources.PrivateServiceName(p.service.Name))
		p.result.failed(err)
	}
	if left, counts := p.state.graceLeft(c.clock.Now()); counts {
		c.queue.AddAfter(p.key(), left)
	}
}

// deletePrivateServices deletes the private Services of an ElastiService but
// the one with the name keep, once resolvers do not need them any more. It
// reports whether they are deleted.
func (c *Controller) deletePrivateServices(ctx context.Context, p *pass, keep string) (bool, error) {
	unneeded := p.unneededServices(keep)
	if len(unneeded) == 0 {
		return true, nil
	}
	if linger := p.state.lingering(c.clock.Now()); linger > 0 {
		c.queue.AddAfter(p.key(), linger)
		return false, nil
	}
	var problems []error
	for _, service := range unneeded {
		err := c.host.CoreV1().Services(service.Namespace).Delete(ctx, service.Name, metav1.DeleteOptions{Preconditions: asObserved(&service.ObjectMeta)})
		if ignoreNotFound(err) != nil {
			problems = append(problems, fmt.Errorf("deleting private Service %q: %w", service.Name, err))
		}
	}
	err := errors.Join(problems...)
	return err == nil, err
}

// setFinalizers writes the finalizers, unless the ElastiService was changed
// since it was read.
func (c *Controller) setFinalizers(ctx context.Context, elastiService *v1alpha1.ElastiService, finalizers []string) (*v1alpha1.ElastiService, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             elastiService.UID,
		"resourceVersion": elastiService.ResourceVersion,
		"finalizers":      finalizers,
	}})
	if err != nil {
		return nil, err
	}
	return c.elasti.ElastiV1alpha1().ElastiServices(elastiService.Namespace).
		Patch(ctx, elastiService.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: v1alpha1.FieldManager})
}
