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
	"fmt"
	"strings"

	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// Bounds of a spec.
const (
	maxReplicas        = 100000
	maxCooldownSeconds = 604800
	maxTriggers        = 16
)

func validateSpec(spec *elasti.ElastiServiceSpec, path *field.Path) field.ErrorList {
	errs := validateTarget(&spec.ScaleTargetRef, path.Child("scaleTargetRef"))
	errs = append(errs, validateService(spec.Service, path.Child("service"))...)
	errs = append(errs, validateRange(spec.MinTargetReplicas, 1, maxReplicas, path.Child("minTargetReplicas"))...)
	errs = append(errs, validateRange(spec.CooldownPeriod, 0, maxCooldownSeconds, path.Child("cooldownPeriod"))...)
	errs = append(errs, validateTriggers(spec, path)...)
	if spec.Autoscaler != nil {
		errs = append(errs, validateAutoscaler(spec.Autoscaler, path.Child("autoscaler"))...)
	}
	if spec.EnabledPeriod != nil {
		errs = append(errs, validateEnabledPeriod(spec.EnabledPeriod, path.Child("enabledPeriod"))...)
	}
	errs = append(errs, validateProbeResponse(spec.ProbeResponse, path.Child("probeResponse"))...)
	if spec.Proxy != nil {
		errs = append(errs, validateProxy(spec.Proxy, path.Child("proxy"))...)
	}
	return errs
}

func validateTarget(ref *elasti.ScaleTargetRef, path *field.Path) field.ErrorList {
	errs := validateAPIVersion(ref.APIVersion, path.Child("apiVersion"))
	if ref.Kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), "give the kind of the target, such as Deployment"))
	} else if len(validation.IsDNS1035Label(strings.ToLower(ref.Kind))) > 0 {
		errs = append(errs, field.Invalid(path.Child("kind"), ref.Kind, "is not a kind: give one such as Deployment, StatefulSet or Rollout"))
	}
	if ref.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "give the name of the target"))
	} else {
		errs = append(errs, validateName(ref.Name, path.Child("name"))...)
	}
	if groupVersion, err := schema.ParseGroupVersion(ref.APIVersion); err == nil && groupVersion.Group == elasti.GroupName {
		errs = append(errs, field.Invalid(path, ref.Kind, "an ElastiService cannot scale an ElastiService: name the workload itself"))
	}
	return errs
}

func validateAPIVersion(apiVersion string, path *field.Path) field.ErrorList {
	if apiVersion == "" {
		return field.ErrorList{field.Required(path, "give the API version of the target, such as apps/v1")}
	}
	groupVersion, err := schema.ParseGroupVersion(apiVersion)
	valid := err == nil && len(validation.IsDNS1035Label(groupVersion.Version)) == 0 &&
		(groupVersion.Group == "" || len(validation.IsDNS1123Subdomain(groupVersion.Group)) == 0)
	if !valid {
		return field.ErrorList{field.Invalid(path, apiVersion, "is not a group and version: give the API version of the target, such as apps/v1")}
	}
	return nil
}

func validateService(service string, path *field.Path) field.ErrorList {
	if service == "" {
		return field.ErrorList{field.Required(path, "name the Service that clients call")}
	}
	var errs field.ErrorList
	for _, message := range validation.IsDNS1123Label(service) {
		errs = append(errs, field.Invalid(path, service, message))
	}
	return errs
}

func validateAutoscaler(autoscaler *elasti.AutoscalerSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	supported := []elasti.AutoscalerType{elasti.AutoscalerHPA, elasti.AutoscalerKEDA}
	switch autoscaler.Type {
	case elasti.AutoscalerHPA, elasti.AutoscalerKEDA:
	case "":
		errs = append(errs, field.Required(path.Child("type"), "give the type of the autoscaler, keda or hpa"))
	default:
		errs = append(errs, field.NotSupported(path.Child("type"), autoscaler.Type, supported))
	}
	if autoscaler.Name == "" {
		return append(errs, field.Required(path.Child("name"), "give the name of the ScaledObject or HorizontalPodAutoscaler"))
	}
	return append(errs, validateName(autoscaler.Name, path.Child("name"))...)
}

func validateName(name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, message := range apimachineryvalidation.NameIsDNSSubdomain(name, false) {
		errs = append(errs, field.Invalid(path, name, message))
	}
	return errs
}

// validateRange checks a number, which defaulting has set.
func validateRange(value *int32, minimum, maximum int32, path *field.Path) field.ErrorList {
	if value == nil {
		return field.ErrorList{field.Required(path, fmt.Sprintf("give a number from %d to %d", minimum, maximum))}
	}
	if *value < minimum || *value > maximum {
		return field.ErrorList{field.Invalid(path, *value, fmt.Sprintf("must be from %d to %d", minimum, maximum))}
	}
	return nil
}
