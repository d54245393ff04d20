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
// Each part of the API has a file. Every error names its field and says what
// to do.
//
// It knows nothing of the cluster: what depends on that is a condition or a warning.
// Begin with ValidateElastiService.
package validation

import (
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// ValidateElastiService checks a new ElastiService.
func ValidateElastiService(elastiService *elasti.ElastiService) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMeta(&elastiService.ObjectMeta, true, apimachineryvalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	errs = append(errs, validateMetadataSize(&elastiService.ObjectMeta, &metav1.ObjectMeta{}, field.NewPath("metadata"))...)
	errs = append(errs, validateSpec(&elastiService.Spec, field.NewPath("spec"))...)
	return append(errs, validateSize(&elastiService.Spec, nil, field.NewPath("spec"))...)
}

// ValidateElastiServiceUpdate checks a changed ElastiService. A spec that did
// not change is not checked: an object that an earlier version accepted can still
// be labeled, and lose its finalizer.
func ValidateElastiServiceUpdate(updated, previous *elasti.ElastiService) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaUpdate(&updated.ObjectMeta, &previous.ObjectMeta, field.NewPath("metadata"))
	errs = append(errs, validateMetadataSize(&updated.ObjectMeta, &previous.ObjectMeta, field.NewPath("metadata"))...)
	if apiequality.Semantic.DeepEqual(updated.Spec, previous.Spec) {
		return errs
	}
	path := field.NewPath("spec")
	errs = append(errs, validateSpec(&updated.Spec, path)...)
	errs = append(errs, validateSize(&updated.Spec, &previous.Spec, path)...)
	if previous.DeletionTimestamp != nil {
		errs = append(errs, validateDeletionUpdate(&updated.Spec, &previous.Spec, path)...)
	}
	return errs
}

// validateDeletionUpdate rejects changes of what a deletion that has begun cleans up.
func validateDeletionUpdate(updated, previous *elasti.ElastiServiceSpec, path *field.Path) field.ErrorList {
	const beingDeleted = "cannot change while the ElastiService is being deleted: what was added for it is being removed; wait for the deletion and create it again"
	var errs field.ErrorList
	if updated.Service != previous.Service {
		errs = append(errs, field.Forbidden(path.Child("service"), beingDeleted))
	}
	if updated.ScaleTargetRef != previous.ScaleTargetRef {
		errs = append(errs, field.Forbidden(path.Child("scaleTargetRef"), beingDeleted))
	}
	return errs
}

// ValidateElastiServiceStatusUpdate checks a changed status.
func ValidateElastiServiceStatusUpdate(updated, previous *elasti.ElastiService) field.ErrorList {
	errs := apimachineryvalidation.ValidateObjectMetaUpdate(&updated.ObjectMeta, &previous.ObjectMeta, field.NewPath("metadata"))
	return append(errs, validateStatus(&updated.Status, field.NewPath("status"))...)
}
