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
	"context"
	"errors"
	"fmt"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// credentialResources are the resources of the kinds that triggers refer to.
var credentialResources = map[string]string{triggers.KindSecret: "secrets", triggers.KindConfigMap: "configmaps"}

// credentialAccess checks that triggers refer only to Secrets and ConfigMaps that
// the user who writes them may get: the server reads these, and sends them to
// where the trigger says. Nil allows every reference.
type credentialAccess struct {
	authorizer authorizer.UnconditionalAuthorizer
}

// onCreate returns a validation that checks all triggers after validate has
// accepted the object.
func (a *credentialAccess) onCreate(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		if validate != nil {
			if err := validate(ctx, obj); err != nil {
				return err
			}
		}
		return a.check(ctx, obj.(*elasti.ElastiService), nil)
	}
}

// onUpdate is the same for an update. A trigger that is unchanged is not checked:
// a user who changes something else need not be able to read what it refers to.
func (a *credentialAccess) onUpdate(validate rest.ValidateObjectUpdateFunc) rest.ValidateObjectUpdateFunc {
	return func(ctx context.Context, obj, old runtime.Object) error {
		if validate != nil {
			if err := validate(ctx, obj, old); err != nil {
				return err
			}
		}
		return a.check(ctx, obj.(*elasti.ElastiService), old.(*elasti.ElastiService).Spec.Triggers)
	}
}

func (a *credentialAccess) check(ctx context.Context, elastiService *elasti.ElastiService, before []elasti.ScaleTrigger) error {
	if a == nil {
		return nil
	}
	allowed := map[triggers.KeyReference]bool{}
	for i := range elastiService.Spec.Triggers {
		trigger := &elastiService.Spec.Triggers[i]
		unchanged := func(old elasti.ScaleTrigger) bool { return apiequality.Semantic.DeepEqual(old, *trigger) }
		if trigger.Type != triggers.TypePrometheus || slices.ContainsFunc(before, unchanged) {
			continue
		}
		parsed, errs := triggers.ParsePrometheus(trigger.Metadata, nil)
		if len(errs) > 0 {
			// Validation has accepted it, so it can be read.
			return apierrors.NewInternalError(errs.ToAggregate())
		}
		for _, reference := range parsed.Credentials.References() {
			object := triggers.KeyReference{Kind: reference.Kind, Name: reference.Name}
			if allowed[object] {
				continue
			}
			path := field.NewPath("spec", "triggers").Index(i).Child("metadata")
			if err := a.checkObject(ctx, elastiService, object, path); err != nil {
				return err
			}
			allowed[object] = true
		}
	}
	return nil
}

// checkObject fails when the caller may not get a Secret or ConfigMap.
func (a *credentialAccess) checkObject(ctx context.Context, elastiService *elasti.ElastiService, object triggers.KeyReference, path *field.Path) error {
	user, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(errors.New("it is not known which user writes the ElastiService"))
	}
	decision, _, err := a.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: user, Verb: "get", Namespace: elastiService.Namespace, APIVersion: "v1",
		Resource: credentialResources[object.Kind], Name: object.Name, ResourceRequest: true,
	})
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil:
		return apierrors.NewInternalError(fmt.Errorf("%s: checking whether %q may get %s %q: %w", path, user.GetName(), object.Kind, object.Name, err))
	default:
		return apierrors.NewForbidden(elasti.Resource("elastiservices"), elastiService.Name,
			fmt.Errorf("%s: %q may not get %s %q in the namespace %q, and so not have it used: get that permission granted, or refer to another one", path, user.GetName(), object.Kind, object.Name, elastiService.Namespace))
	}
}
