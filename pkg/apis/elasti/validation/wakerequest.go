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

package validation

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// maxReasonBytes bounds the reason of a wake, which goes into Events and audit logs.
const maxReasonBytes = 256

// ValidateWakeRequest checks a wake request.
func ValidateWakeRequest(request *elasti.WakeRequest) field.ErrorList {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	if len(request.Spec.Reason) > maxReasonBytes {
		errs = append(errs, field.TooLong(spec.Child("reason"), "", maxReasonBytes))
	}
	if request.Spec.Pending < 0 {
		errs = append(errs, field.Invalid(spec.Child("pending"), request.Spec.Pending, "must not be negative"))
	}
	if request.Spec.Replicas != nil {
		errs = append(errs, validateRange(request.Spec.Replicas, 1, maxReplicas, spec.Child("replicas"))...)
	}
	return errs
}
