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

// Package elastiservice is the registry of ElastiServices: how they are
// created, changed, listed and stored, and their subresources.
//
// It knows nothing of the controller. Begin with NewStorage.
package elastiservice

import (
	"context"
	"fmt"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/validation"
)

// strategy is the behavior of ElastiServices themselves.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

// Warner says what in the cluster does not fit an ElastiService yet, such as a
// Service that does not exist. It returns within a second, whatever the state of
// the cluster is. It is safe for concurrent use.
type Warner interface {
	Warnings(ctx context.Context, elastiService *elasti.ElastiService) []string
}

func newStrategy(typer runtime.ObjectTyper) strategy {
	return strategy{ObjectTyper: typer, NameGenerator: names.SimpleNameGenerator}
}

var (
	_ rest.RESTCreateStrategy              = strategy{}
	_ rest.RESTUpdateStrategy              = strategy{}
	_ rest.RESTDeleteStrategy              = strategy{}
	_ rest.ResetFieldsStrategy             = strategy{}
	_ rest.GarbageCollectionDeleteStrategy = strategy{}
)

func (strategy) NamespaceScoped() bool { return true }

// AllowCreateOnUpdate is false as for most built-in objects: a PUT to a name
// that does not exist is a 404.
func (strategy) AllowCreateOnUpdate(context.Context) bool { return false }

func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// DefaultGarbageCollectionPolicy deletes dependents in the background, as for
// the workloads of apps/v1.
func (strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.DeleteDependents
}

// GetResetFields names the fields that a write to the object itself never
// changes, so that server-side apply does not record an owner for them.
func (strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

// PrepareForCreate clears the status and adds the finalizer. An object that is
// deleted before the controller has seen it leaves nothing behind either, as it
// has the finalizer from the start.
func (strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	elastiService := obj.(*elasti.ElastiService)
	elastiService.Status = elasti.ElastiServiceStatus{}
	elastiService.Generation = 1
	addFinalizer(elastiService)
}

func addFinalizer(elastiService *elasti.ElastiService) {
	for _, finalizer := range elastiService.Finalizers {
		if finalizer == elasti.Finalizer {
			return
		}
	}
	elastiService.Finalizers = append(elastiService.Finalizers, elasti.Finalizer)
}

// PrepareForUpdate keeps the status and counts a change of the spec as a new generation.
func (strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	updated, previous := obj.(*elasti.ElastiService), old.(*elasti.ElastiService)
	updated.Status = previous.Status
	if updated.Spec.ScaleTargetRef != previous.Spec.ScaleTargetRef {
		// They are of the target that was named before.
		updated.Status.LastWake = nil
		updated.Status.SleepRequestedTime, updated.Status.SleepRequestedBy = nil, ""
	}
	if !apiequality.Semantic.DeepEqual(updated.Spec, previous.Spec) {
		updated.Generation = previous.Generation + 1
	}
}

func (strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateElastiService(obj.(*elasti.ElastiService))
}

func (strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateElastiServiceUpdate(obj.(*elasti.ElastiService), old.(*elasti.ElastiService))
}

// WarningsOnCreate returns what is accepted and will not work as it is. Warnings
// that need the cluster are added when the object has been written.
func (strategy) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	elastiService := obj.(*elasti.ElastiService)
	if lookup := clusterWarningsFrom(ctx); lookup != nil {
		lookup.begin(ctx, elastiService)
	}
	return validation.Warnings(&elastiService.Spec)
}

// WarningsOnUpdate returns the same for a changed spec. A change of labels gets no
// warnings.
func (s strategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	if apiequality.Semantic.DeepEqual(obj.(*elasti.ElastiService).Spec, old.(*elasti.ElastiService).Spec) {
		return nil
	}
	return s.WarningsOnCreate(ctx, obj)
}

func (strategy) Canonicalize(runtime.Object) {}

// statusStrategy is the behavior of writes to the status.
type statusStrategy struct {
	strategy
}

// requestedStatusStrategy is the behavior of the status subresource, which
// requests write through.
type requestedStatusStrategy struct {
	statusStrategy
}

// ValidateUpdate rejects changes of fields that only the server writes, beside
// what is never valid.
func (s requestedStatusStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	updated, previous := obj.(*elasti.ElastiService), old.(*elasti.ElastiService)
	if errs := validateOpenStatus(&updated.Status, &previous.Status, field.NewPath("status")); len(errs) > 0 {
		return errs
	}
	return s.statusStrategy.ValidateUpdate(ctx, obj, old)
}

// GetResetFields names the fields that a write to the status never changes.
func (statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String()): fieldpath.NewSet(
			fieldpath.MakePathOrDie("spec"),
			fieldpath.MakePathOrDie("metadata", "deletionTimestamp"),
			fieldpath.MakePathOrDie("metadata", "ownerReferences"),
			fieldpath.MakePathOrDie("metadata", "labels"),
			fieldpath.MakePathOrDie("metadata", "annotations"),
			fieldpath.MakePathOrDie("metadata", "finalizers"),
		),
	}
}

// PrepareForUpdate keeps everything but the status.
func (statusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	updated, previous := obj.(*elasti.ElastiService), old.(*elasti.ElastiService)
	keepAllButStatus(updated, previous)
	keepLastActivity(&updated.Status, &previous.Status)
}

func keepAllButStatus(updated, previous *elasti.ElastiService) {
	updated.Spec = previous.Spec
	updated.Generation = previous.Generation
	updated.DeletionTimestamp = previous.DeletionTimestamp
	updated.Labels = previous.Labels
	updated.Annotations = previous.Annotations
	updated.Finalizers = previous.Finalizers
	updated.OwnerReferences = previous.OwnerReferences
}

// PrepareForUpdate keeps everything but the status. A request that changes fields
// of the status that only the server may is rejected in validation, and they are
// not silently kept.
func (requestedStatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	keepAllButStatus(obj.(*elasti.ElastiService), old.(*elasti.ElastiService))
}

// keepLastActivity keeps the time of the last activity from going back: it has
// several writers, and none of them waits until it has seen what the others wrote.
// A time in the future, of a clock that has been corrected since, is not kept.
func keepLastActivity(updated, previous *elasti.ElastiServiceStatus) {
	if previous.LastActivityTime != nil && !previous.LastActivityTime.After(time.Now()) && (updated.LastActivityTime == nil || updated.LastActivityTime.Before(previous.LastActivityTime)) {
		updated.LastActivityTime = previous.LastActivityTime
	}
}

// WarningsOnUpdate returns nothing: a write of the status cannot correct the spec.
func (statusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (statusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateElastiServiceStatusUpdate(obj.(*elasti.ElastiService), old.(*elasti.ElastiService))
}

// getAttributes returns what label and field selectors are matched against.
func getAttributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	elastiService, ok := obj.(*elasti.ElastiService)
	if !ok {
		return nil, nil, fmt.Errorf("expected an ElastiService, got %T", obj)
	}
	return elastiService.Labels, selectableFields(elastiService), nil
}

func selectableFields(elastiService *elasti.ElastiService) fields.Set {
	return generic.AddObjectMetaFieldsSet(fields.Set{
		"spec.service":             elastiService.Spec.Service,
		"spec.scaleTargetRef.name": elastiService.Spec.ScaleTargetRef.Name,
		"status.mode":              string(elastiService.Status.Mode),
		fieldNamespacedService:     namespacedService(elastiService.Namespace, elastiService.Spec.Service),
	}, &elastiService.ObjectMeta, true)
}

// indexers returns the indexes of the watch cache.
func indexers() *cache.Indexers {
	return &cache.Indexers{
		storage.FieldIndex(fieldNamespacedService): func(obj any) ([]string, error) {
			elastiService, ok := obj.(*elasti.ElastiService)
			if !ok {
				return nil, fmt.Errorf("expected an ElastiService, got %T", obj)
			}
			return []string{namespacedService(elastiService.Namespace, elastiService.Spec.Service)}, nil
		},
	}
}

// matchElastiService returns the predicate of a list or watch.
func matchElastiService(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: getAttributes}
}
