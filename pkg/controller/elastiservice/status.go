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
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	applyelasti "github.com/truefoundry/elasti-apiserver/pkg/generated/applyconfiguration/elasti/v1alpha1"
)

// statusFieldManager owns the fields of the status that this controller
// writes. Others have fields of their own.
const statusFieldManager = "elasti-controller"

// ownConditions are the conditions that this controller writes.
var ownConditions = []string{v1alpha1.ConditionReady, v1alpha1.ConditionServiceFound, v1alpha1.ConditionTargetFound, v1alpha1.ConditionResolverAvailable, v1alpha1.ConditionConflict, v1alpha1.ConditionAutoscalerFound}

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
	status.PrivateService = ""
	if v.covered() {
		status.PrivateService = PrivateServiceName(v.service.Name)
	}
	c.reportTarget(v, status, now)

	state, since, _ := c.resolvers.availability()
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
	if v.target.pending {
		return
	}
	wasFound := meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionTargetFound)
	replicas, ready := int32(0), int32(0)
	status.ReadinessProbes = nil
	if scale := v.target.scale; scale != nil {
		status.ReadinessProbes = v.target.target.probes
		replicas, ready = scale.wanted, scale.ready
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
	c.metrics.inMode(keyOf(elastiService), status.Mode)
	c.statuses.want(elastiService, status)
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

// ownStatus returns the part of a status that this controller owns.
func ownStatus(status *v1alpha1.ElastiServiceStatus) *v1alpha1.ElastiServiceStatus {
	own := *status
	own.LastActivityTime, own.SleepRequestedTime, own.Activity = nil, nil, nil
	own.Conditions = nil
	for _, conditionType := range ownConditions {
		if found := meta.FindStatusCondition(status.Conditions, conditionType); found != nil {
			own.Conditions = append(own.Conditions, *found)
		}
	}
	return &own
}

func applyStatus(key types.NamespacedName, uid types.UID, status *v1alpha1.ElastiServiceStatus) *applyelasti.ElastiServiceApplyConfiguration {
	own := applyelasti.ElastiServiceStatus().
		WithObservedGeneration(status.ObservedGeneration).
		WithReplicas(status.Replicas).
		WithReadyReplicas(status.ReadyReplicas)
	if status.Mode != "" {
		own.WithMode(status.Mode)
	}
	if status.PrivateService != "" {
		own.WithPrivateService(status.PrivateService)
	}
	own.LastReconciledTime = status.LastReconciledTime
	own.LastScaledUpTime = status.LastScaledUpTime
	own.SleptTime = status.SleptTime
	for _, port := range status.ProxyPorts {
		entry := applyelasti.ProxyPort().WithPort(port.Port).WithProxyPort(port.ProxyPort)
		if port.Name != "" {
			entry.WithName(port.Name)
		}
		if port.AppProtocol != "" {
			entry.WithAppProtocol(port.AppProtocol)
		}
		own.WithProxyPorts(entry)
	}
	if status.ReadinessProbes != nil {
		own.WithReadinessProbes(applyProbes(status.ReadinessProbes))
	}
	for i := range status.Conditions {
		found := &status.Conditions[i]
		if !slices.Contains(ownConditions, found.Type) {
			continue
		}
		own.WithConditions(applymeta.Condition().
			WithType(found.Type).
			WithStatus(found.Status).
			WithReason(found.Reason).
			WithMessage(found.Message).
			WithObservedGeneration(found.ObservedGeneration).
			WithLastTransitionTime(found.LastTransitionTime))
	}
	// With the UID, an object that was deleted and made again in between does
	// not get the status of its predecessor.
	return applyelasti.ElastiService(key.Name, key.Namespace).WithUID(uid).WithStatus(own)
}

func applyProbes(probes *v1alpha1.ReadinessProbes) *applyelasti.ReadinessProbesApplyConfiguration {
	applied := applyelasti.ReadinessProbes()
	for i := range probes.Probes {
		probe := &probes.Probes[i]
		action := applyelasti.ReadinessProbeAction().WithTimeoutSeconds(probe.TimeoutSeconds)
		switch {
		case probe.HTTPGet != nil:
			request := applyelasti.HTTPGetAction().WithPath(probe.HTTPGet.Path).WithPort(probe.HTTPGet.Port).WithScheme(probe.HTTPGet.Scheme)
			for _, header := range probe.HTTPGet.HTTPHeaders {
				request.WithHTTPHeaders(applyelasti.HTTPHeader().WithName(header.Name).WithValue(header.Value))
			}
			action.WithHTTPGet(request)
		case probe.TCPSocket != nil:
			action.WithTCPSocket(applyelasti.TCPSocketAction().WithPort(probe.TCPSocket.Port))
		case probe.GRPC != nil:
			action.WithGRPC(applyelasti.GRPCAction().WithPort(probe.GRPC.Port).WithService(probe.GRPC.Service))
		}
		applied.WithProbes(action)
	}
	return applied
}
