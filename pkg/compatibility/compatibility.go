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

// Package compatibility decides which properties of a Service, of a target and
// of an autoscaler are incompatible with scale to zero, and what the user
// can do about each. The controller reports its findings in conditions, also when an
// object is edited later, and preflight in warnings.
//
// It reads nothing from the cluster, and knows nothing but what it is given. Begin with
// Finding.
package compatibility

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Finding is one property of an object that is incompatible with scale to zero.
type Finding struct {
	// Condition is the type of the condition that reports the finding.
	Condition string
	// Reason is the reason of that condition when this is the first finding.
	Reason string
	// Message names the object and says what happens and what to do about it.
	Message string
	// KeepsAwake is true when the target must not be put to sleep.
	KeepsAwake bool
}

// ConditionOf returns the condition of a type that findings lead to, without
// its times and generation. It is true when none is of the type. Otherwise its
// reason is that of the first one, and its message has all of them.
func ConditionOf(conditionType string, findings []Finding) metav1.Condition {
	var reasons, messages []string
	for _, finding := range findings {
		if finding.Condition == conditionType {
			reasons = append(reasons, finding.Reason)
			messages = append(messages, finding.Message)
		}
	}
	if len(reasons) == 0 {
		return metav1.Condition{
			Type:    conditionType,
			Status:  metav1.ConditionTrue,
			Reason:  v1alpha1.ReasonCompatible,
			Message: "nothing is known that is incompatible with scale to zero",
		}
	}
	return metav1.Condition{
		Type:    conditionType,
		Status:  metav1.ConditionFalse,
		Reason:  reasons[0],
		Message: strings.Join(messages, "; "),
	}
}

// KeepsAwake returns the first finding because of which the target must not be
// put to sleep, or nil.
func KeepsAwake(findings []Finding) *Finding {
	if i := slices.IndexFunc(findings, func(finding Finding) bool { return finding.KeepsAwake }); i >= 0 {
		return &findings[i]
	}
	return nil
}

// ForbidsSleep reports whether a condition, which may be nil, says that the
// target must not be put to sleep.
func ForbidsSleep(condition *metav1.Condition) bool {
	if condition == nil || condition.Status != metav1.ConditionFalse {
		return false
	}
	// Such findings are the first ones.
	return condition.Reason == v1alpha1.ReasonVolumesDeletedAtZero || condition.Reason == v1alpha1.ReasonVolumePolicyUnknown
}
