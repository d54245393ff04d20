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
	"github.com/truefoundry/elasti-apiserver/pkg/schedule"
)

func validateEnabledPeriod(period *elasti.EnabledPeriod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if _, err := schedule.ParseExpression(period.Schedule); err != nil {
		errs = append(errs, field.Invalid(path.Child("schedule"), period.Schedule, err.Error()))
	}
	if _, err := schedule.ParseDuration(period.Duration); err != nil {
		errs = append(errs, field.Invalid(path.Child("duration"), period.Duration, err.Error()))
	}
	if _, err := schedule.ParseTimeZone(period.TimeZone); err != nil {
		errs = append(errs, field.Invalid(path.Child("timeZone"), period.TimeZone, err.Error()))
	}
	return errs
}
