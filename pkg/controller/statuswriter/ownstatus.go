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

package statuswriter

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	applyelasti "github.com/truefoundry/elasti-apiserver/pkg/generated/applyconfiguration/elasti/v1alpha1"
)

// statusFieldManager owns the fields of the status that the controller writes.
// Other writers have fields of their own.
const statusFieldManager = "elasti-controller"

// ownConditions are the types of the conditions that the controller writes.
var ownConditions = []string{v1alpha1.ConditionReady, v1alpha1.ConditionServiceFound, v1alpha1.ConditionTargetFound, v1alpha1.ConditionResolverAvailable, v1alpha1.ConditionConflict, v1alpha1.ConditionAutoscalerFound}

// ownStatus returns the part of a status that the controller owns.
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

// withStatus returns an ElastiService with what the controller owns of the
// status taken from another one.
func withStatus(elastiService *v1alpha1.ElastiService, own *v1alpha1.ElastiServiceStatus) *v1alpha1.ElastiService {
	with := *elastiService
	with.Status = withOwnStatus(&elastiService.Status, own)
	return &with
}

// withOwnStatus returns a status with what the controller owns taken from
// another one.
func withOwnStatus(status, own *v1alpha1.ElastiServiceStatus) v1alpha1.ElastiServiceStatus {
	merged := *ownStatus(own)
	merged.LastActivityTime, merged.SleepRequestedTime, merged.Activity = status.LastActivityTime, status.SleepRequestedTime, status.Activity
	for i := range status.Conditions {
		if !slices.Contains(ownConditions, status.Conditions[i].Type) {
			merged.Conditions = append(merged.Conditions, status.Conditions[i])
		}
	}
	return merged
}
