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
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// reconcileStatus is the phase status. It has the status written that reports what
// was observed and done.
func (c *Controller) reconcileStatus(_ context.Context, p *pass) {
	status := c.statusOf(p)
	c.metrics.inMode(p.key(), status.Mode)
	c.metrics.isReady(p.key(), meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady))
	c.statuses.Enqueue(p.elastiService, status)
}

// statusOf returns the status that reports what was observed and done.
func (c *Controller) statusOf(p *pass) *v1alpha1.ElastiServiceStatus {
	status := p.elastiService.Status.DeepCopy()
	now := metav1.NewTime(c.clock.Now()).Rfc3339Copy()

	if status.Mode != p.result.mode {
		status.Mode = p.result.mode
		status.LastReconciledTime = &now
	}
	status.ProxyPorts = p.result.ports
	status.PrivateService = p.result.privateService
	status.ManagedTarget = nil
	if p.result.managedTarget != nil {
		status.ManagedTarget = p.result.managedTarget.Recorded()
	}
	reportTarget(p, status, now)
	c.setConditions(p, status, now)
	status.ObservedGeneration = p.elastiService.Generation
	return status
}

// setConditions sets the conditions that the controller owns.
func (c *Controller) setConditions(p *pass, status *v1alpha1.ElastiServiceStatus, now metav1.Time) {
	spec := &p.elastiService.Spec
	service := computeServiceFoundCondition(spec.Service, p.service)
	found := computeTargetFoundCondition(spec.ScaleTargetRef, p.target, findCondition(p.elastiService, v1alpha1.ConditionTargetFound))
	resolver := c.resolverAvailable(p)
	conflict := computeConflictCondition(spec.Service, p.conflicting)
	set := func(conditionType string, computed condition) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type:               conditionType,
			Status:             computed.status,
			Reason:             computed.reason,
			Message:            bounded(computed.message),
			ObservedGeneration: p.elastiService.Generation,
			LastTransitionTime: now,
		})
	}
	set(v1alpha1.ConditionReady, computeReadyCondition(readyFacts{service, found, resolver, conflict, p.availability, p.service, p.result.problems}))
	set(v1alpha1.ConditionServiceFound, service)
	set(v1alpha1.ConditionTargetFound, found)
	set(v1alpha1.ConditionResolverAvailable, resolver)
	set(v1alpha1.ConditionConflict, conflict)
	if p.availability == nil {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionTargetAvailable)
	} else {
		set(v1alpha1.ConditionTargetAvailable, *p.availability)
	}
	setCompatibility(p, status, now)
	if meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionSleeping) == nil {
		// What decides when targets sleep replaces it.
		set(v1alpha1.ConditionSleeping, conditionUnknown(v1alpha1.ReasonDecisionPending, "it has not been decided yet whether the target is to sleep"))
	}
	autoscaler := computeAutoscalerFoundCondition(spec.Autoscaler, spec.ScaleTargetRef, p.autoscaler, findCondition(p.elastiService, v1alpha1.ConditionAutoscalerFound))
	if autoscaler == nil {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionAutoscalerFound)
		return
	}
	set(v1alpha1.ConditionAutoscalerFound, *autoscaler)
}

// resolverAvailable returns the condition ResolverAvailable.
func (c *Controller) resolverAvailable(p *pass) condition {
	before := findCondition(p.elastiService, v1alpha1.ConditionResolverAvailable)
	availability, since, _ := c.resolvers.Availability()
	if availability == resolvers.Available && len(p.notAccepting) > 0 {
		return conditionFalse(v1alpha1.ReasonNoAcceptingResolver, "resolvers with an address of %s are ready, but none accepts connections to the proxy ports of Service %q: the target is not put to sleep, and is woken when it sleeps; check the logs of the resolver", strings.Join(p.notAccepting, " and "), p.service.Name)
	}
	if availability == resolvers.Available && p.managed() {
		ofService, _, wait := c.resolvers.AvailabilityOf(resources.AddressTypes(p.service))
		if ofService == resolvers.Missing {
			// That the grace period of one family ends is no change of the resolvers.
			c.queue.AddAfter(p.key(), wait)
		}
		return computeFamiliesAvailableCondition(ofService, p.service.Name, c.familiesWithoutResolver(p.service), before)
	}
	return computeResolverAvailableCondition(availability, since, before)
}

// reportTarget reports the scale of the target and when it slept and woke. It
// leaves everything as it is while the target is not known.
func reportTarget(p *pass, status *v1alpha1.ElastiServiceStatus, now metav1.Time) {
	if p.target.Pending {
		return
	}
	wasFound := meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionTargetFound)
	replicas, ready := int32(0), int32(0)
	status.ReadinessProbes = nil
	if scale := p.target.Scale; scale != nil {
		status.ReadinessProbes = p.target.Object.Probes
		replicas, ready = scale.Desired, p.readyReplicas()
		switch {
		case replicas > 0 && status.Replicas == 0 && wasFound:
			status.LastScaledUpTime = &now
			status.SleptTime = nil
		case replicas > 0:
			status.SleptTime = nil
		case status.Replicas > 0:
			status.SleptTime = &now
		}
	}
	status.Replicas, status.ReadyReplicas = replicas, ready
}

// wroteStatus records Events about what changed with a status that was written.
func (c *Controller) wroteStatus(before *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) {
	c.metrics.statusWritten(nil)
	c.reportProblem(before, status)
	c.reportAvailability(before, status)
	c.reportAutoscaler(before, meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAutoscalerFound))
}

// reportProblem records an Event when Ready starts to be false, or is false
// for another reason. reportAvailability reports what keeps a target from starting.
func (c *Controller) reportProblem(elastiService *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) {
	before := findCondition(elastiService, v1alpha1.ConditionReady)
	after := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	if after == nil || after.Status != metav1.ConditionFalse || v1alpha1.IsTargetProblem(after.Reason) || (before != nil && before.Status == after.Status && before.Reason == after.Reason) {
		return
	}
	c.event(elastiService, corev1.EventTypeWarning, after.Reason, actionReconcile, "%s", after.Message)
}

// reportAutoscaler records an Event when AutoscalerFound starts to be false, or
// is false for another reason.
func (c *Controller) reportAutoscaler(elastiService *v1alpha1.ElastiService, after *metav1.Condition) {
	before := findCondition(elastiService, v1alpha1.ConditionAutoscalerFound)
	if after == nil || after.Status != metav1.ConditionFalse || (before != nil && before.Status == after.Status && before.Reason == after.Reason) {
		return
	}
	c.event(elastiService, corev1.EventTypeWarning, v1alpha1.AutoscalerReasonPrefix+after.Reason, actionReconcile, "%s", after.Message)
}

// statusFailed reports a status that could not be written.
func (c *Controller) statusFailed(ctx context.Context, key types.NamespacedName, err error) {
	c.metrics.statusWritten(err)
	c.metrics.reconciled(key, errorClass(err), 0)
	if errorClass(err) != errorConflict {
		klog.FromContext(ctx).Error(err, "Failed to write the status of an ElastiService, will retry", "elastiService", key)
	}
}
