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

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// ownConditions are the types of the conditions that the controller writes.
var ownConditions = []string{
	v1alpha1.ConditionReady,
	v1alpha1.ConditionServiceFound,
	v1alpha1.ConditionTargetFound,
	v1alpha1.ConditionTargetAvailable,
	v1alpha1.ConditionResolverAvailable,
	v1alpha1.ConditionConflict,
	v1alpha1.ConditionAutoscalerFound,
	v1alpha1.ConditionServiceCompatible,
	v1alpha1.ConditionTargetCompatible,
	v1alpha1.ConditionAutoscalerCompatible,
}

// initialConditions are the types of the conditions that the controller writes when
// they are not there, and leaves to others when they are.
var initialConditions = []string{v1alpha1.ConditionSleeping}

// ownStatus returns the part of a status that the controller owns.
func ownStatus(status *v1alpha1.ElastiServiceStatus) *v1alpha1.ElastiServiceStatus {
	own := *status
	own.LastActivityTime, own.LastWake, own.Activity, own.TargetSharedWith = nil, nil, nil, nil
	own.SleepRequestedTime, own.SleepRequestedBy = nil, ""
	own.Conditions = nil
	for _, conditionType := range ownConditions {
		if found := meta.FindStatusCondition(status.Conditions, conditionType); found != nil {
			own.Conditions = append(own.Conditions, *found)
		}
	}
	return &own
}

// withStatus returns an ElastiService with what the controller owns of the
// status taken from another one.
func withStatus(elastiService *v1alpha1.ElastiService, own *v1alpha1.ElastiServiceStatus) *v1alpha1.ElastiService {
	with := *elastiService
	with.Status = *withOwnStatus(&elastiService.Status, own)
	return &with
}

// withOwnStatus returns a status with what the controller owns taken from
// another one.
func withOwnStatus(status, own *v1alpha1.ElastiServiceStatus) *v1alpha1.ElastiServiceStatus {
	merged := ownStatus(own)
	merged.LastActivityTime, merged.LastWake = status.LastActivityTime, status.LastWake
	merged.SleepRequestedTime, merged.SleepRequestedBy = status.SleepRequestedTime, status.SleepRequestedBy
	merged.Activity, merged.TargetSharedWith = status.Activity, status.TargetSharedWith
	for i := range status.Conditions {
		if !slices.Contains(ownConditions, status.Conditions[i].Type) {
			merged.Conditions = append(merged.Conditions, status.Conditions[i])
		}
	}
	for _, conditionType := range initialConditions {
		initial := meta.FindStatusCondition(own.Conditions, conditionType)
		if initial != nil && meta.FindStatusCondition(merged.Conditions, conditionType) == nil {
			merged.Conditions = append(merged.Conditions, *initial)
		}
	}
	return merged
}
