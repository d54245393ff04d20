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

package v1alpha1

// Types of the conditions of an ElastiService.
const (
	// ConditionReady is true when the ElastiService does what it is for.
	ConditionReady = "Ready"
	// ConditionServiceFound is true when the public Service exists.
	ConditionServiceFound = "ServiceFound"
	// ConditionTargetFound is true when the target exists and can be scaled.
	ConditionTargetFound = "TargetFound"
	// ConditionTargetAvailable is true while a pod of the target is ready. Its
	// last transition is when a pod became ready, or when none was ready any more. When
	// it is false, its reason is ReasonAsleep, ReasonStarting, or what keeps the
	// target from starting: one of TargetProblems. It is absent while there is no
	// target.
	ConditionTargetAvailable = "TargetAvailable"
	// ConditionResolverAvailable is true when a resolver is ready, unless all that are ready
	// say that they do not accept the connections of the Service.
	ConditionResolverAvailable = "ResolverAvailable"
	// ConditionConflict is true when another ElastiService has the public
	// Service.
	ConditionConflict = "Conflict"
	// ConditionAutoscalerFound is true when the autoscaler that
	// spec.autoscaler names exists and scales the target. It is absent without
	// spec.autoscaler.
	ConditionAutoscalerFound = "AutoscalerFound"
	// ConditionTriggersHealthy is true when every trigger reports whether the
	// target is idle. Its reason is ReasonTriggersAnswer then, and otherwise
	// that of the first trigger that does not.
	ConditionTriggersHealthy = "TriggersHealthy"
	// ConditionScalingConflict is true while another client or controller
	// scales the target up each time that it was scaled to zero. It is absent
	// until the first time.
	ConditionScalingConflict = "ScalingConflict"
	// ConditionDryRun is present, and true, while decisions are not carried
	// out. Its reason is ReasonWouldSleep, ReasonWouldWake or ReasonNoAction,
	// its message is the decision.
	ConditionDryRun = "DryRun"
	// ConditionServiceCompatible is false when a property of the public Service
	// leads to failing traffic, or has no effect, while resolvers are in the
	// path. It is absent while there is no Service.
	ConditionServiceCompatible = "ServiceCompatible"
	// ConditionTargetCompatible is false when a property of the target leads to
	// failing traffic, or keeps it from being put to sleep. It is absent while
	// there is no target.
	ConditionTargetCompatible = "TargetCompatible"
	// ConditionAutoscalerCompatible is false when the autoscaler that
	// spec.autoscaler names scales the target to zero too. It is absent while
	// there is none.
	ConditionAutoscalerCompatible = "AutoscalerCompatible"
	// ConditionSleeping is true while the target sleeps, and false while it is
	// awake: the reason and the message say why it does not sleep, and the message
	// has the last wake. It is unknown while that cannot be observed, and before the
	// first decision. The first status has it already.
	ConditionSleeping = "Sleeping"
	// ConditionTargetShared is present, and true, while other ElastiServices have
	// the same target: they decide together whether it sleeps.
	ConditionTargetShared = "TargetShared"
)

// ConditionTypes returns the types of the conditions that the server writes.
// Requests cannot change conditions of these types.
func ConditionTypes() []string {
	return []string{
		ConditionReady,
		ConditionServiceFound,
		ConditionTargetFound,
		ConditionTargetAvailable,
		ConditionResolverAvailable,
		ConditionConflict,
		ConditionAutoscalerFound,
		ConditionTriggersHealthy,
		ConditionScalingConflict,
		ConditionDryRun,
		ConditionServiceCompatible,
		ConditionTargetCompatible,
		ConditionAutoscalerCompatible,
		ConditionSleeping,
		ConditionTargetShared,
	}
}
