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
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
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
	// readyEndpoints and readyPods are the numbers of ready endpoints in the
	// public Service's own slices, and in those of the private Service.
	readyEndpoints int
	readyPods      int
	target         targetObservation
}

// covered tells whether the Service is one that resolvers can stand in for,
// and the ElastiService the one that has it.
func (v *view) covered() bool {
	return v.rival == nil && v.service != nil && unsupported(v.service) == ""
}

// outcome is what a look at an ElastiService led to.
type outcome struct {
	mode  v1alpha1.Mode
	ports []v1alpha1.ProxyPort
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
	var nameTaken *nameTakenError
	switch {
	case errors.As(err, &nameTaken):
		o.problems = append(o.problems, no(ReasonNameTaken, "%s", nameTaken.Error()))
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		o.problems = append(o.problems, no(ReasonWriteFailed, "%v", err))
	}
}

// sync works on one ElastiService.
func (c *Controller) sync(ctx context.Context, key types.NamespacedName) error {
	object, ok := c.elastiServices.in(key.Namespace).Get(key.Namespace, key.Name)
	if !ok {
		return c.gone(ctx, key)
	}
	started := c.clock.Now()
	err := c.reconcile(ctx, object.(*v1alpha1.ElastiService))
	c.metrics.reconciled(key, errorClass(err), c.clock.Since(started))
	return err
}

func (c *Controller) reconcile(ctx context.Context, watched *v1alpha1.ElastiService) error {
	key := keyOf(watched)
	memory := c.memories.of(key)
	elastiService := memory.latest(watched)
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
	c.noteScale(v, memory)
	result := outcome{}
	if v.covered() {
		c.cover(ctx, v, memory, &result)
	} else {
		c.ports.release(key)
		_, err := c.removeOwned(ctx, v, memory)
		result.failed(err)
	}
	result.failed(c.wakeWithoutResolvers(ctx, v))
	if v.target.unwatched {
		c.queue.AddAfter(key, wait.Jitter(targetRetry, 0.5))
	}
	status := c.statusOf(v, result)
	if err := c.writeStatus(ctx, v.elastiService, status, memory); err != nil {
		result.err = errors.Join(result.err, err)
	}
	return result.err
}

// observe looks at everything that an ElastiService is about. It reads caches;
// only the scale of a kind that does not say it is asked for, when the object
// changed.
func (c *Controller) observe(ctx context.Context, elastiService *v1alpha1.ElastiService) *view {
	key := keyOf(elastiService)
	public := types.NamespacedName{Namespace: key.Namespace, Name: elastiService.Spec.Service}
	private := types.NamespacedName{Namespace: key.Namespace, Name: PrivateServiceName(public.Name)}
	v := &view{elastiService: elastiService, target: c.targets.observe(ctx, key, targetOf(elastiService))}

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
		if service.Labels[RoleLabel] == RolePrivate {
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
	for _, slice := range indexed[*observedSlice](endpointSlices, byService, private) {
		v.readyPods += slice.ready
	}
	return v
}

// noteScale remembers when the target went to zero.
func (c *Controller) noteScale(v *view, memory *memory) {
	switch {
	case v.target.scale == nil:
	case !v.target.atZero():
		memory.zeroSince = time.Time{}
	case v.elastiService.Status.Replicas > 0 && memory.zeroSince.IsZero():
		memory.zeroSince = c.clock.Now()
	}
}

// cover puts in place what an ElastiService needs that has its Service.
func (c *Controller) cover(ctx context.Context, v *view, memory *memory, result *outcome) {
	var exhausted *verdict
	result.ports, exhausted = c.assignProxyPorts(v)
	if exhausted != nil {
		result.problems = append(result.problems, *exhausted)
	}
	result.failed(c.ensurePrivate(ctx, v))

	// The proxy ports are recorded before anything points at them, so that a
	// restart cannot give them to somebody else.
	if !slices.Equal(v.elastiService.Status.ProxyPorts, result.ports) {
		recorded := v.elastiService.Status.DeepCopy()
		recorded.ProxyPorts = result.ports
		recorded.PrivateService = PrivateServiceName(v.service.Name)
		if err := c.writeStatus(ctx, v.elastiService, recorded, memory); err != nil {
			result.failed(err)
			result.mode = observedMode(v)
			return
		}
		v.elastiService = memory.latest(v.elastiService)
	}

	descent := c.descentOf(v, memory)
	facts := c.modeFacts(v, memory)
	facts.descending = descent == descentConverge || descent == descentScale
	mode, why := decideMode(facts)
	var desired []*discoveryv1.EndpointSlice
	allListen := true
	if mode == v1alpha1.ModeProxy {
		var listening func(discoveryv1.AddressType) []discoveryv1.Endpoint
		listening, allListen = c.listeningResolvers(ctx, v, memory, result.ports)
		desired = desiredResolverSlices(v.elastiService, v.service, result.ports, listening)
	}
	removed, err := c.ensureResolverSlices(ctx, desired, v.ownSlices)
	result.failed(err)
	if removed {
		memory.sliceRemoved = c.clock.Now()
	}
	if before := v.elastiService.Status.Mode; before != mode {
		c.metrics.switched(keyOf(v.elastiService), mode, err)
		if err == nil && before != "" {
			klog.FromContext(ctx).V(2).Info("Switched the mode", "elastiService", klog.KObj(v.elastiService), "mode", mode, "why", why)
			c.event(v.elastiService, corev1.EventTypeNormal, ReasonModeSwitched, actionSwitchMode, "switched to mode %s: %s", mode, why)
		}
	}
	result.mode = mode
	if err != nil {
		result.mode = observedMode(v)
	}
	if result.mode == v1alpha1.ModeProxy && allListen {
		result.failed(c.descend(ctx, v, memory, descent))
	}
	v.elastiService = memory.latest(v.elastiService)
	_, err = c.deletePrivateServices(ctx, v, memory, PrivateServiceName(v.service.Name))
	result.failed(err)
	if facts.atZero && facts.readyEndpoints > 0 && facts.sinceZero >= 0 && facts.sinceZero < leavingTime {
		c.queue.AddAfter(keyOf(v.elastiService), leavingTime-facts.sinceZero)
	}
}

func (c *Controller) modeFacts(v *view, memory *memory) modeFacts {
	proxy := v.elastiService.Spec.Proxy
	facts := modeFacts{
		readyEndpoints: v.readyEndpoints,
		always:         proxy != nil && proxy.Policy == v1alpha1.ProxyAlways,
		atZero:         v.target.atZero(),
		podsLeft:       v.target.scale != nil && v.target.scale.existing > 0,
		sliceInPlace:   len(v.ownSlices) > 0,
		sinceZero:      -1,
	}
	if !memory.zeroSince.IsZero() {
		facts.sinceZero = c.clock.Since(memory.zeroSince)
	}
	return facts
}

// observedMode is the mode as the slices say it, for when a switch failed.
func observedMode(v *view) v1alpha1.Mode {
	if len(v.ownSlices) > 0 {
		return v1alpha1.ModeProxy
	}
	return v1alpha1.ModeServe
}

// assignProxyPorts returns the proxy ports of the public Service's TCP ports,
// and what is wrong when there are not enough.
func (c *Controller) assignProxyPorts(v *view) ([]v1alpha1.ProxyPort, *verdict) {
	recorded := map[int32]int32{}
	for _, port := range v.elastiService.Status.ProxyPorts {
		recorded[port.Port] = port.ProxyPort
	}
	if before := v.elastiService.Status.PrivateService; before != "" && before != PrivateServiceName(v.service.Name) {
		// Traffic of the former Service may still come to its proxy ports. It
		// must not reach the pods of this one.
		c.ports.release(keyOf(v.elastiService))
		recorded = nil
	}
	var numbers []int32
	for _, port := range v.service.Spec.Ports {
		if isTCP(&port) {
			numbers = append(numbers, port.Port)
		}
	}
	assigned := c.ports.assign(keyOf(v.elastiService), numbers, recorded)
	var ports []v1alpha1.ProxyPort
	for _, port := range v.service.Spec.Ports {
		if !isTCP(&port) {
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
	exhausted := no(ReasonProxyPortsExhausted, "no proxy port is free in %s for %d ports of Service %q, so %s: widen the range", c.options.ProxyPortRange.String(), len(numbers)-len(assigned), v.service.Name, fallback)
	return ports, &exhausted
}

// restoreProxyPorts takes in what is recorded, oldest first, before anything
// is assigned.
func (c *Controller) restoreProxyPorts() {
	var recorded []*v1alpha1.ElastiService
	for _, handle := range c.elastiServices.handles() {
		for _, object := range handle.List() {
			recorded = append(recorded, object.(*v1alpha1.ElastiService))
		}
	}
	slices.SortFunc(recorded, older)
	for _, elastiService := range recorded {
		var numbers []int32
		assigned := map[int32]int32{}
		for _, port := range elastiService.Status.ProxyPorts {
			if port.ProxyPort != c.options.SharedProxyPort {
				numbers = append(numbers, port.Port)
				assigned[port.Port] = port.ProxyPort
			}
		}
		if len(numbers) > 0 {
			c.ports.assign(keyOf(elastiService), numbers, assigned)
		}
	}
}

// ensurePrivate makes the private Service, after restoring a target that it
// remembers and that the ElastiService does not name any more.
func (c *Controller) ensurePrivate(ctx context.Context, v *view) error {
	desired, err := desiredPrivateService(v.elastiService, v.service)
	if err != nil {
		return err
	}
	restoreErr := c.restoreFormerTargets(ctx, v)
	if restoreErr != nil && v.private != nil {
		// Remember it until it could be restored.
		if former, ok := v.private.Annotations[targetAnnotation]; ok {
			desired.Annotations[targetAnnotation] = former
		}
	}
	return errors.Join(restoreErr, c.ensurePrivateService(ctx, desired, v.private))
}

// restoreFormerTargets wakes the targets, and resumes the autoscalers, that
// the ElastiService named before and nobody names now.
func (c *Controller) restoreFormerTargets(ctx context.Context, v *view) error {
	current := managedTargetOf(v.elastiService)
	var problems []error
	for _, service := range v.ownServices {
		former := managedTarget{}
		if err := json.Unmarshal([]byte(service.Annotations[targetAnnotation]), &former); err != nil {
			// Edited by somebody: there is nothing to go by, and it is put back.
			continue
		}
		if former.Target == current.Target && autoscalerOf(former.Autoscaler) == autoscalerOf(current.Autoscaler) {
			continue
		}
		target := scaling.Target{Namespace: v.elastiService.Namespace, APIVersion: former.Target.APIVersion, Kind: former.Target.Kind, Name: former.Target.Name}
		if former.Target == current.Target || c.managedByOthers(ctx, keyOf(v.elastiService), target) {
			if autoscalerOf(former.Autoscaler) != autoscalerOf(current.Autoscaler) {
				problems = append(problems, ignoreNotFound(c.scaling.ResumeAutoscaler(ctx, target.Namespace, autoscalerOf(former.Autoscaler))))
			}
			continue
		}
		problems = append(problems, c.restoreTarget(ctx, v.elastiService, target, autoscalerOf(former.Autoscaler)))
	}
	return errors.Join(problems...)
}

// wakeWithoutResolvers wakes a sleeping target when there has been nobody to
// hold its traffic for too long.
func (c *Controller) wakeWithoutResolvers(ctx context.Context, v *view) error {
	if state, _, _ := c.resolvers.availability(); state != resolversGone || !v.target.atZero() || !v.covered() {
		return nil
	}
	result, err := c.scaling.Wake(ctx, targetOf(v.elastiService), autoscalerOf(v.elastiService.Spec.Autoscaler), minReplicas(v.elastiService), false)
	if err != nil {
		return fmt.Errorf("waking the target while no resolver is ready: %w", err)
	}
	if result.Scaled {
		c.event(v.elastiService, corev1.EventTypeWarning, ReasonNoReadyResolver, actionWake, "scaled %s %s to %d: no resolver is ready to hold its traffic", v.elastiService.Spec.ScaleTargetRef.Kind, v.elastiService.Spec.ScaleTargetRef.Name, result.Replicas)
	}
	return nil
}

func targetOf(elastiService *v1alpha1.ElastiService) scaling.Target {
	ref := elastiService.Spec.ScaleTargetRef
	return scaling.Target{Namespace: elastiService.Namespace, APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name}
}

func autoscalerOf(spec *v1alpha1.AutoscalerSpec) scaling.Autoscaler {
	if spec == nil {
		return scaling.Autoscaler{}
	}
	return scaling.Autoscaler{Type: string(spec.Type), Name: spec.Name}
}

func minReplicas(elastiService *v1alpha1.ElastiService) int32 {
	if elastiService.Spec.MinTargetReplicas == nil {
		return v1alpha1.DefaultMinTargetReplicas
	}
	return *elastiService.Spec.MinTargetReplicas
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
