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

// Package validation says which ElastiServices and WakeRequests are accepted.
package validation

import (
	"fmt"

	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// maxReasonBytes bounds the reason of a wake, which goes into Events and audit logs.
const maxReasonBytes = 256

// ValidateElastiService checks a new ElastiService.
func ValidateElastiService(elastiService *elasti.ElastiService) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMeta(&elastiService.ObjectMeta, true, apimachineryvalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	return append(errs, validateSpec(&elastiService.Spec, field.NewPath("spec"))...)
}

// ValidateElastiServiceUpdate checks a changed ElastiService.
func ValidateElastiServiceUpdate(updated, previous *elasti.ElastiService) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaUpdate(&updated.ObjectMeta, &previous.ObjectMeta, field.NewPath("metadata"))
	return append(errs, validateSpec(&updated.Spec, field.NewPath("spec"))...)
}

// ValidateElastiServiceStatusUpdate checks a changed status.
func ValidateElastiServiceStatusUpdate(updated, previous *elasti.ElastiService) field.ErrorList {
	return apimachineryvalidation.ValidateObjectMetaUpdate(&updated.ObjectMeta, &previous.ObjectMeta, field.NewPath("metadata"))
}

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
	if request.Spec.Replicas != nil && *request.Spec.Replicas < 1 {
		errs = append(errs, field.Invalid(spec.Child("replicas"), *request.Spec.Replicas, "must be at least 1: a wake never scales to zero"))
	}
	return errs
}

func validateSpec(spec *elasti.ElastiServiceSpec, path *field.Path) field.ErrorList {
	errs := validateTarget(&spec.ScaleTargetRef, path.Child("scaleTargetRef"))
	if spec.Service == "" {
		errs = append(errs, field.Required(path.Child("service"), "name the Service that clients call"))
	} else {
		for _, message := range validation.IsDNS1123Label(spec.Service) {
			errs = append(errs, field.Invalid(path.Child("service"), spec.Service, message))
		}
	}
	errs = append(errs, validateRange(spec.MinTargetReplicas, 1, maxReplicas, path.Child("minTargetReplicas"))...)
	errs = append(errs, validateRange(spec.CooldownPeriod, 0, maxCooldownSeconds, path.Child("cooldownPeriod"))...)
	if spec.Proxy != nil {
		errs = append(errs, validateProxy(spec.Proxy, path.Child("proxy"))...)
	}
	return errs
}

// Bounds of the numbers in a spec.
const (
	maxReplicas           = 100000
	maxCooldownSeconds    = 604800
	maxHoldTimeoutSeconds = 86400
	maxMaxPending         = 1000000
)

func validateTarget(ref *elasti.ScaleTargetRef, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if ref.APIVersion == "" {
		errs = append(errs, field.Required(path.Child("apiVersion"), "give the API version of the target, such as apps/v1"))
	} else if _, err := schema.ParseGroupVersion(ref.APIVersion); err != nil {
		errs = append(errs, field.Invalid(path.Child("apiVersion"), ref.APIVersion, err.Error()))
	}
	if ref.Kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), "give the kind of the target, such as Deployment"))
	}
	if ref.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "give the name of the target"))
	} else {
		for _, message := range apimachineryvalidation.NameIsDNSSubdomain(ref.Name, false) {
			errs = append(errs, field.Invalid(path.Child("name"), ref.Name, message))
		}
	}
	return errs
}

func validateProxy(proxy *elasti.ProxySpec, path *field.Path) field.ErrorList {
	errs := validateRange(proxy.HoldTimeoutSeconds, 1, maxHoldTimeoutSeconds, path.Child("holdTimeoutSeconds"))
	errs = append(errs, validateRange(proxy.MaxPending, 1, maxMaxPending, path.Child("maxPending"))...)
	errs = append(errs, validateRange(proxy.MaxConcurrencyPerPod, 0, maxMaxPending, path.Child("maxConcurrencyPerPod"))...)
	switch proxy.Policy {
	case elasti.ProxyWhenAsleep, elasti.ProxyAlways:
	default:
		errs = append(errs, field.NotSupported(path.Child("policy"), proxy.Policy, []elasti.ProxyPolicy{elasti.ProxyWhenAsleep, elasti.ProxyAlways}))
	}
	switch proxy.Readiness {
	case elasti.ReadinessProbe, elasti.ReadinessEndpoints:
	default:
		errs = append(errs, field.NotSupported(path.Child("readiness"), proxy.Readiness, []elasti.ReadinessPolicy{elasti.ReadinessProbe, elasti.ReadinessEndpoints}))
	}
	return errs
}

func validateRange(value *int32, minimum, maximum int32, path *field.Path) field.ErrorList {
	if value == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	if *value < minimum || *value > maximum {
		return field.ErrorList{field.Invalid(path, *value, fmt.Sprintf("must be from %d to %d", minimum, maximum))}
	}
	return nil
}
