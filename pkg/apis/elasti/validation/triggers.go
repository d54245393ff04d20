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
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

func validateTriggers(spec *elasti.ElastiServiceSpec, specPath *field.Path) field.ErrorList {
	path := specPath.Child("triggers")
	if len(spec.Triggers) > maxTriggers {
		return field.ErrorList{field.TooMany(path, len(spec.Triggers), maxTriggers)}
	}
	var errs field.ErrorList
	for i := range spec.Triggers {
		errs = append(errs, validateTrigger(&spec.Triggers[i], path.Index(i))...)
	}
	if usesTraffic(spec.Triggers) && (spec.Proxy == nil || spec.Proxy.Policy != elasti.ProxyAlways) {
		errs = append(errs, field.Invalid(specPath.Child("proxy", "policy"), policyOf(spec),
			"a traffic trigger needs Always: resolvers that are out of the path of an awake target do not see its traffic"))
	}
	return errs
}

func validateTrigger(trigger *elasti.ScaleTrigger, path *field.Path) field.ErrorList {
	switch {
	case trigger.Type == "":
		return field.ErrorList{field.Required(path.Child("type"), "give the type of the trigger, such as prometheus")}
	case !slices.Contains(triggers.Types(), trigger.Type):
		return field.ErrorList{field.NotSupported(path.Child("type"), trigger.Type, triggers.Types())}
	default:
		return triggers.Validate(trigger.Type, trigger.Metadata, path.Child("metadata"))
	}
}

func usesTraffic(list []elasti.ScaleTrigger) bool {
	return slices.ContainsFunc(list, func(trigger elasti.ScaleTrigger) bool { return trigger.Type == triggers.TypeTraffic })
}

func policyOf(spec *elasti.ElastiServiceSpec) elasti.ProxyPolicy {
	if spec.Proxy == nil {
		return ""
	}
	return spec.Proxy.Policy
}
