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

	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// maxObservedMilliseconds is a year: longer than any cooldown.
const maxObservedMilliseconds = 365 * 24 * 60 * 60 * 1000

// ValidateActivityReport checks an activity report.
func ValidateActivityReport(report *elasti.ActivityReport) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateResolverName(report.Spec.Resolver, spec.Child("resolver"))
	errs = append(errs, validateOpen(report.Spec.Open, spec.Child("open"))...)
	observed := report.Spec.ObservedMilliseconds
	if observed < 0 || observed > maxObservedMilliseconds {
		errs = append(errs, field.Invalid(spec.Child("observedMilliseconds"), observed, fmt.Sprintf("must be from 0 to %d", int64(maxObservedMilliseconds))))
	}
	if age := report.Spec.LastRequestAgeMilliseconds; age != nil && (*age < 0 || *age > observed) {
		errs = append(errs, field.Invalid(spec.Child("lastRequestAgeMilliseconds"), *age, "must be from 0 to observedMilliseconds"))
	}
	return errs
}

func validateResolverName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "give the name of the resolver's pod")}
	}
	var errs field.ErrorList
	for _, message := range apimachineryvalidation.NameIsDNSSubdomain(name, false) {
		errs = append(errs, field.Invalid(path, name, message))
	}
	return errs
}

func validateOpen(open int32, path *field.Path) field.ErrorList {
	if open < 0 {
		return field.ErrorList{field.Invalid(path, open, "must not be negative")}
	}
	return nil
}
