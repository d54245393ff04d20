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
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
)

// view is what is observed in one look at an ElastiService.
type view struct {
	elastiService *v1alpha1.ElastiService
	// rival is the ElastiService that has the Service instead, or nil.
	rival *v1alpha1.ElastiService
	// service is the public Service, or nil.
	service *corev1.Service
	// ownServices are the private Services that were made for the
	// ElastiService, private the one that its Service has now, whose ever it is.
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

// covered tells whether the Service is one that resolvers can stand in for,
// and the ElastiService the one that has it.
func (v *view) covered() bool {
	return v.rival == nil && v.service != nil && resources.Unsupported(v.service) == ""
}

// outcome is what a look at an ElastiService led to.
type outcome struct {
	mode  v1alpha1.Mode
	ports []v1alpha1.ProxyPort
	// privateService is the name of the private Service that resolvers find pods
	// by, empty when there is none.
	privateService string
	// problems are for the user to solve, err is worth another attempt.
	problems []verdict
	err      error
}

// failed takes in an error of a step.
func (o *outcome) failed(err error) {
	if err == nil || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		// In a namespace that goes, the ElastiService is about to be deleted
		// too: there is nothing to do until then.
		return
	}
	o.err = errors.Join(o.err, err)
	var nameTaken *resources.NameTakenError
	switch {
	case errors.As(err, &nameTaken):
		o.problems = append(o.problems, no(v1alpha1.ReasonNameTaken, "%s", nameTaken.Error()))
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		o.problems = append(o.problems, no(v1alpha1.ReasonWriteFailed, "%v", err))
	}
}

// sync works on one ElastiService.
func (c *Controller) sync(ctx context.Context, key types.NamespacedName) error {
	object, ok := c.elastiServices.in(key.Namespace).Get(key.Namespace, key.Name)
	if !ok {
		return c.deleted(ctx, key)
	}
	started := c.clock.Now()
	err := c.reconcile(ctx, object.(*v1alpha1.ElastiService))
	c.metrics.reconciled(key, errorClass(err), c.clock.Since(started))
	return err
}

func (c *Controller) reconcile(ctx context.Context, watched *v1alpha1.ElastiService) error {
	key := resources.KeyOf(watched)
	memory := c.memories.of(key)
	elastiService := c.latest(watched, memory)
	if !elastiService.DeletionTimestamp.IsZero() {
		err := c.finalize(ctx, elastiService, memory)
		c.metrics.finalizing(key, err)
		return err
	}
	if !slices.Contains(elastiService.Finalizers, v1alpha1.Finalizer) {
		updated, err := c.setFinalizers(ctx, elastiService, append(slices.Clone(elastiService.Finalizers), v1alpha1.Finalizer))
		if err != nil {
			return fmt.Errorf("adding the finalizer: %w", err)
		}
		memory.written, elastiService = updated, updated
	}

	v := c.observe(ctx, elastiService)
	c.noteScale(ctx, v, memory)
	if target := v.target.Object; target != nil {
		c.options.Requests(key, target.Requests)
	}
	result := outcome{}
	if v.covered() {
		memory.uncoveringSince = time.Time{}
		result.privateService = resources.PrivateServiceName(v.service.Name)
		c.cover(ctx, v, memory, &result)
	} else {
		done, err := c.uncoverUnsupported(ctx, v, memory)
		result.failed(err)
		if done {
			c.ports.Release(key)
		} else {
			// Until then resolvers still forward what they hold.
			result.ports, result.privateService = v.elastiService.Status.ProxyPorts, v.elastiService.Status.PrivateService
			result.mode = observedMode(v)
		}
	}
	result.failed(c.wakeWithoutResolvers(ctx, v))
	result.failed(c.resumeForgotten(ctx, v, memory))
	if v.target.Unwatched {
		c.queue.AddAfter(key, wait.Jitter(targetRetry, 0.5))
	}
	c.wantStatus(v.elastiService, c.statusOf(v, result))
	return result.err
}

// latest returns an ElastiService as it is after all that the controller wrote
// or decided to write.
func (c *Controller) latest(watched *v1alpha1.ElastiService, memory *memory) *v1alpha1.ElastiService {
	return c.statuses.WithPending(memory.latest(watched))
}

// observe looks at everything that an ElastiService is about. It reads caches;
// only the scale of a kind that does not say it is asked for, when the object
// changed.
func (c *Controller) observe(ctx context.Context, elastiService *v1alpha1.ElastiService) *view {
	key := resources.KeyOf(elastiService)
	public := types.NamespacedName{Namespace: key.Namespace, Name: elastiService.Spec.Service}
	private := types.NamespacedName{Namespace: key.Namespace, Name: resources.PrivateServiceName(public.Name)}
	v := &view{elastiService: elastiService, target: c.targets.Observe(ctx, key, target.Of(elastiService)), autoscaler: c.autoscalers.Observe(elastiService)}

	if first := winner(indexed[*v1alpha1.ElastiService](c.elastiServices.in(key.Namespace), byService, public)); first != nil && first.UID != elastiService.UID {
		v.rival = first
	}
	services := c.services.in(key.Namespace)
	if object, ok := services.Get(public.Namespace, public.Name); ok {
		v.service = object.(*corev1.Service)
	}
	if object, ok := services.Get(private.Namespace, private.Name); ok {
		v.private = object.(*corev1.Service)
	}
	for _, service := range indexed[*corev1.Service](services, byOwner, key) {
		if service.Labels[v1alpha1.LabelRole] == v1alpha1.RolePrivate {
			v.ownServices = append(v.ownServices, service)
		}
	}

	endpointSlices := c.endpointSlices.in(key.Namespace)
	own := map[string]*observedSlice{}
	for _, slice := range indexed[*observedSlice](endpointSlices, byOwner, key) {
		own[slice.Name] = slice
	}
	for _, slice := range indexed[*observedSlice](endpointSlices, byService, public) {
		switch {
		case !slice.ours():
			v.readyEndpoints += slice.ready
		case v.rival == nil:
			own[slice.Name] = slice
		}
	}
	v.ownSlices = slices.Collect(maps.Values(own))
	v.readyPods = readyPods(indexed[*observedSlice](endpointSlices, byService, private))
	return v
}

// wakeWithoutResolvers wakes a sleeping target when there has been nobody to
// hold its traffic for too long.
func (c *Controller) wakeWithoutResolvers(ctx context.Context, v *view) error {
	if state, _, _ := c.resolvers.Availability(); state != resolvers.Unavailable || !v.target.AtZero() || !v.covered() {
		return nil
	}
	result, err := c.scaling.Wake(ctx, target.Of(v.elastiService), target.AutoscalerOf(v.elastiService.Spec.Autoscaler), target.MinReplicas(v.elastiService), false)
	if err != nil {
		return fmt.Errorf("waking the target while no resolver is ready: %w", err)
	}
	if result.Scaled {
		c.event(v.elastiService, corev1.EventTypeWarning, v1alpha1.ReasonNoReadyResolver, actionWake, "scaled %s %s to %d: no resolver is ready to hold its traffic", v.elastiService.Spec.ScaleTargetRef.Kind, v.elastiService.Spec.ScaleTargetRef.Name, result.Replicas)
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func condition(elastiService *v1alpha1.ElastiService, conditionType string) *metav1.Condition {
	return meta.FindStatusCondition(elastiService.Status.Conditions, conditionType)
}
