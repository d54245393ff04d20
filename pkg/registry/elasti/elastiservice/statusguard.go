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

package elastiservice

import (
	"reflect"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// validateOpenStatus returns an error for each field of a status that a request
// changes and only the server may: resolvers and the controller act on them. These
// are all fields but the conditions of types that the server does not write,
// which are for tools.
func validateOpenStatus(updated, previous *elasti.ElastiServiceStatus, path *field.Path) field.ErrorList {
	const detail = "is written by the elasti-apiserver alone: leave it as it is"
	var errs field.ErrorList
	for i, name := range statusFields() {
		if name == "conditions" {
			continue
		}
		after, before := reflect.ValueOf(updated).Elem().Field(i), reflect.ValueOf(previous).Elem().Field(i)
		if !apiequality.Semantic.DeepEqual(after.Interface(), before.Interface()) {
			errs = append(errs, field.Forbidden(path.Child(name), detail))
		}
	}
	for _, conditionType := range v1alpha1.ConditionTypes() {
		if !apiequality.Semantic.DeepEqual(conditionsOf(updated, conditionType), conditionsOf(previous, conditionType)) {
			errs = append(errs, field.Forbidden(path.Child("conditions").Key(conditionType), detail))
		}
	}
	return errs
}

// statusFields returns the external names of the fields of the internal status,
// in the order of the internal one.
func statusFields() []string {
	internal, external := reflect.TypeFor[elasti.ElastiServiceStatus](), reflect.TypeFor[v1alpha1.ElastiServiceStatus]()
	names := make([]string, internal.NumField())
	for i := range names {
		names[i] = internal.Field(i).Name
		if known, ok := external.FieldByName(names[i]); ok {
			names[i], _, _ = strings.Cut(known.Tag.Get("json"), ",")
		}
	}
	return names
}

// conditionsOf returns the conditions of a type. A status that is not valid may
// have several.
func conditionsOf(status *elasti.ElastiServiceStatus, conditionType string) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(status.Conditions), func(condition metav1.Condition) bool { return condition.Type != conditionType })
}
