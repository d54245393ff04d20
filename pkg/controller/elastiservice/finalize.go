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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

const (
	// endpointPatience is how long a deletion waits, after the target was
	// woken, for a ready endpoint before the resolvers are taken out of the
	// path.
	endpointPatience = 30 * time.Second
	// restorePatience is how long a deletion tries to wake the target. After
	// that the ElastiService goes all the same: a namespace must not hang.
	restorePatience = time.Minute
	// lingerTime is how long a private Service stays after the resolver slice
	// was removed: until every node has heard of that, resolvers still get
	// connections, and need its endpoints to forward them.
	lingerTime = 5 * time.Second
)

// finalize puts everything back as it was: the target awake, its autoscaler
// resumed, then the resolver slices and the private Service gone, and last the
// finalizer.
func (c *Controller) finalize(ctx context.Context, elastiService *v1alpha1.ElastiService, memory *memory) error {
	if !slices.Contains(elastiService.Finalizers, v1alpha1.Finalizer) {
		return nil
	}
	v := c.observe(ctx, elastiService)
	deleting := c.clock.Since(elastiService.DeletionTimestamp.Time)
	if v.rival == nil {
		awake, err := c.wakeForGood(ctx, v, deleting)
		if err != nil {
			return err
		}
		if awake && v.covered() && len(v.ownSlices) > 0 && v.readyEndpoints == 0 && deleting < endpointPatience {
			// Traffic that resolvers hold must not be cut off: the change of
			// the endpoints brings this back, or else the end of the patience.
			c.queue.AddAfter(resources.KeyOf(elastiService), endpointPatience-deleting)
			return nil
		}
	}
	if removed, err := c.removeOwned(ctx, v, memory); err != nil || !removed {
		return err
	}
	remaining := slices.DeleteFunc(slices.Clone(elastiService.Finalizers), func(finalizer string) bool { return finalizer == v1alpha1.Finalizer })
	if _, err := c.setFinalizers(ctx, elastiService, remaining); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing the finalizer: %w", err)
	}
	return nil
}

// wakeForGood wakes the target of an ElastiService that is deleted. It reports
// whether there is a target that will be awake.
func (c *Controller) wakeForGood(ctx context.Context, v *view, deleting time.Duration) (bool, error) {
	scaleTarget := target.Of(v.elastiService)
	if c.managedByOthers(ctx, resources.KeyOf(v.elastiService), scaleTarget) {
		return v.target.Scale != nil && !v.target.AtZero(), nil
	}
	awake, err := c.restoreTarget(ctx, v.elastiService, scaleTarget, target.AutoscalerOf(v.elastiService.Spec.Autoscaler))
	switch {
	case err == nil:
		return awake, nil
	case deleting < restorePatience:
		return false, err
	default:
		klog.FromContext(ctx).Error(err, "A target could not be woken before its ElastiService goes", "elastiService", klog.KObj(v.elastiService))
		c.event(v.elastiService, corev1.EventTypeWarning, v1alpha1.ReasonTargetNotRestored, actionFinalize, "%s %s may be left without replicas, scale it by hand: %v", scaleTarget.Kind, scaleTarget.Name, err)
		return false, nil
	}
}

// managedByOthers tells whether a target has another ElastiService, one that
// stays.
func (c *Controller) managedByOthers(ctx context.Context, key types.NamespacedName, scaleTarget scaling.Target) bool {
	for _, user := range c.targets.UsersOf(ctx, scaleTarget) {
		if user == key {
			continue
		}
		object, ok := c.elastiServices.in(user.Namespace).Get(user.Namespace, user.Name)
		if ok && object.(*v1alpha1.ElastiService).DeletionTimestamp.IsZero() {
			return true
		}
	}
	return false
}

// restoreTarget wakes a target that is not managed any more, and resumes its
// autoscaler. A managed target that is at zero counts as asleep, whoever
// scaled it: traffic would have woken it, and will not any more. It reports
// whether there is a target: there is nothing to do for one that does not exist.
func (c *Controller) restoreTarget(ctx context.Context, elastiService *v1alpha1.ElastiService, scaleTarget scaling.Target, autoscaler scaling.Autoscaler) (bool, error) {
	scale, err := c.scaling.Get(ctx, scaleTarget)
	if err != nil {
		return false, errors.Join(ignoreNotFound(err), ignoreNotFound(c.scaling.ResumeAutoscaler(ctx, scaleTarget.Namespace, autoscaler)))
	}
	if scale.Spec.Replicas > 0 {
		return true, ignoreNotFound(c.scaling.ResumeAutoscaler(ctx, scaleTarget.Namespace, autoscaler))
	}
	result, err := c.scaling.Wake(ctx, scaleTarget, autoscaler, target.MinReplicas(elastiService), false)
	if err != nil {
		return false, ignoreNotFound(err)
	}
	if result.Scaled {
		c.event(elastiService, corev1.EventTypeNormal, v1alpha1.ReasonTargetRestored, actionFinalize, "scaled %s %s to %d: it is not managed any more", scaleTarget.Kind, scaleTarget.Name, result.Replicas)
	}
	if result.AutoscalerError != nil && !apierrors.IsNotFound(result.AutoscalerError) {
		c.event(elastiService, corev1.EventTypeWarning, v1alpha1.ReasonAutoscalerNotResumed, actionFinalize, "%v", result.AutoscalerError)
	}
	return true, nil
}

// gone cleans up after an ElastiService that does not exist any more. What was
// made for it is gone with the finalizer, unless somebody removed that.
func (c *Controller) gone(ctx context.Context, key types.NamespacedName) error {
	c.ports.Release(key)
	c.targets.Forget(key)
	c.autoscalers.Forget(key)
	c.memories.forget(key)
	c.statuses.Forget(key)
	c.metrics.forget(key)
	v := c.orphans(key)
	if len(v.ownServices) == 0 && len(v.ownSlices) == 0 {
		return nil
	}
	// The watch may be behind, and a store that lost everything is no reason
	// to take resolvers out of the path: only a clear answer counts, and only
	// from a server that still knows others.
	if c.knowsNothing() {
		klog.FromContext(ctx).Info("Leaving the objects of an unknown ElastiService alone: no ElastiService is known at all", "elastiService", key)
		return nil
	}
	_, err := c.elasti.ElastiV1alpha1().ElastiServices(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	if _, err := c.ensureResolverSlices(ctx, nil, v.ownSlices); err != nil {
		return err
	}
	// Nobody is left to come back for the private Service later.
	_, err = c.deletePrivateServices(ctx, v, &memory{}, "")
	return err
}

func (c *Controller) orphans(key types.NamespacedName) *view {
	v := &view{elastiService: &v1alpha1.ElastiService{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}}
	for _, service := range indexed[*corev1.Service](c.services.in(key.Namespace), byOwner, key) {
		if service.Labels[v1alpha1.LabelRole] == v1alpha1.RolePrivate {
			v.ownServices = append(v.ownServices, service)
		}
	}
	v.ownSlices = indexed[*observedSlice](c.endpointSlices.in(key.Namespace), byOwner, key)
	return v
}

func (c *Controller) knowsNothing() bool {
	for _, handle := range c.elastiServices.handles() {
		if len(handle.List()) > 0 {
			return false
		}
	}
	return true
}

// removeOwned deletes the resolver slices of an ElastiService, and after a
// while its private Services. It reports whether all of them are gone.
func (c *Controller) removeOwned(ctx context.Context, v *view, memory *memory) (bool, error) {
	removed, err := c.ensureResolverSlices(ctx, nil, v.ownSlices)
	if err != nil {
		return false, err
	}
	if removed && v.service != nil {
		memory.sliceRemoved = c.clock.Now()
	}
	return c.deletePrivateServices(ctx, v, memory, "")
}

// deletePrivateServices deletes the private Services of an ElastiService but
// the one with the name keep, once resolvers do not need them any more. It
// reports whether they are gone.
func (c *Controller) deletePrivateServices(ctx context.Context, v *view, memory *memory, keep string) (bool, error) {
	leaving := slices.DeleteFunc(slices.Clone(v.ownServices), func(service *corev1.Service) bool { return service.Name == keep })
	if len(leaving) == 0 {
		return true, nil
	}
	if linger := lingerTime - c.clock.Since(memory.sliceRemoved); !memory.sliceRemoved.IsZero() && linger > 0 {
		c.queue.AddAfter(resources.KeyOf(v.elastiService), linger)
		return false, nil
	}
	var problems []error
	for _, service := range leaving {
		uid := service.UID
		err := c.host.CoreV1().Services(service.Namespace).Delete(ctx, service.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if ignoreNotFound(err) != nil {
			problems = append(problems, fmt.Errorf("deleting private Service %q: %w", service.Name, err))
		}
	}
	err := errors.Join(problems...)
	return err == nil, err
}

// setFinalizers writes the finalizers, unless the ElastiService was changed
// since it was looked at.
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
		Patch(ctx, elastiService.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
}
