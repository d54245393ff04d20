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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// judgement is what is decided of one condition.
type judgement struct {
	conditionType string
	verdict       verdict
}

// statusOf returns the status that says what was observed and done.
func (c *Controller) statusOf(v *view, result outcome) *v1alpha1.ElastiServiceStatus {
	before := &v.elastiService.Status
	status := before.DeepCopy()
	now := metav1.NewTime(c.clock.Now()).Rfc3339Copy()

	if status.Mode != result.mode {
		status.Mode = result.mode
		status.LastReconciledTime = &now
	}
	status.ProxyPorts = result.ports
	status.PrivateService = result.privateService
	c.reportTarget(v, status, now)

	state, since, _ := c.resolvers.Availability()
	service := judgeService(v.elastiService.Spec.Service, v.service)
	target := judgeTarget(v.elastiService.Spec.ScaleTargetRef, v.target, condition(v.elastiService, v1alpha1.ConditionTargetFound))
	resolver := judgeResolvers(state, since, condition(v.elastiService, v1alpha1.ConditionResolverAvailable))
	conflict := judgeConflict(v.elastiService.Spec.Service, v.rival)
	ready := judgeReady(service, target, resolver, conflict, v.service, result.problems)
	judgements := []judgement{
		{v1alpha1.ConditionReady, ready},
		{v1alpha1.ConditionServiceFound, service},
		{v1alpha1.ConditionTargetFound, target},
		{v1alpha1.ConditionResolverAvailable, resolver},
		{v1alpha1.ConditionConflict, conflict},
	}
	if found := judgeAutoscaler(v.elastiService.Spec.Autoscaler, v.elastiService.Spec.ScaleTargetRef, v.autoscaler, condition(v.elastiService, v1alpha1.ConditionAutoscalerFound)); found != nil {
		judgements = append(judgements, judgement{v1alpha1.ConditionAutoscalerFound, *found})
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionAutoscalerFound)
	}
	for _, judged := range judgements {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type:               judged.conditionType,
			Status:             judged.verdict.status,
			Reason:             judged.verdict.reason,
			Message:            judged.verdict.message,
			ObservedGeneration: v.elastiService.Generation,
			LastTransitionTime: now,
		})
	}
	status.ObservedGeneration = v.elastiService.Generation
	return status
}

// reportTarget reports the scale of the target and when it slept and woke. It
// leaves everything as it is while the target is not known.
func (c *Controller) reportTarget(v *view, status *v1alpha1.ElastiServiceStatus, now metav1.Time) {
	if v.target.Pending {
		return
	}
	wasFound := meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionTargetFound)
	replicas, ready := int32(0), int32(0)
	status.ReadinessProbes = nil
	if scale := v.target.Scale; scale != nil {
		status.ReadinessProbes = v.target.Object.Probes
		replicas, ready = scale.Wanted, scale.Ready
		if ready < 0 {
			ready = int32(v.readyPods)
		}
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

// wantStatus has the status written that was decided on.
func (c *Controller) wantStatus(elastiService *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) {
	c.metrics.inMode(resources.KeyOf(elastiService), status.Mode)
	c.statuses.Enqueue(elastiService, status)
}

// wroteStatus tells of what is new in a status that was written.
func (c *Controller) wroteStatus(before *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) {
	c.reportProblem(before, status)
	c.reportAutoscaler(before, meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAutoscalerFound))
}

// reportProblem records an Event when Ready starts to be false, or is false
// for another reason.
func (c *Controller) reportProblem(elastiService *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) {
	before := condition(elastiService, v1alpha1.ConditionReady)
	after := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	if after == nil || after.Status != metav1.ConditionFalse || (before != nil && before.Status == after.Status && before.Reason == after.Reason) {
		return
	}
	c.event(elastiService, corev1.EventTypeWarning, after.Reason, actionReconcile, "%s", after.Message)
}

// reportAutoscaler records an Event when AutoscalerFound starts to be false, or
// is false for another reason.
func (c *Controller) reportAutoscaler(elastiService *v1alpha1.ElastiService, after *metav1.Condition) {
	before := condition(elastiService, v1alpha1.ConditionAutoscalerFound)
	if after == nil || after.Status != metav1.ConditionFalse || (before != nil && before.Status == after.Status && before.Reason == after.Reason) {
		return
	}
	c.event(elastiService, corev1.EventTypeWarning, v1alpha1.AutoscalerReasonPrefix+after.Reason, actionReconcile, "%s", after.Message)
}

// statusFailed reports a status that could not be written.
func (c *Controller) statusFailed(ctx context.Context, key types.NamespacedName, err error) {
	c.metrics.reconciled(key, errorClass(err), 0)
	if errorClass(err) != errorConflict {
		klog.FromContext(ctx).Error(err, "Failed to write the status of an ElastiService, will retry", "elastiService", key)
	}
}
