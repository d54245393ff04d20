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
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/registry/elasti/elastiservice/consistency"
)

// fieldNamespacedService is the field of the index over namespace and Service.
// Users cannot select it.
const fieldNamespacedService = "namespace/spec.service"

func namespacedService(namespace, service string) string { return namespace + "/" + service }

// serviceClaims checks that at most one ElastiService names a Service. Writes
// that name the same Service are serialized, and each lists the others from the
// watch cache, where an index makes that cheap however many objects there are.
// Two servers that handle writes at the same time may accept one each; the
// controller reports that as a condition.
type serviceClaims struct {
	store *genericregistry.Store
	mutex keyedMutex
	// written tracks the objects that this server wrote under a claim: a cache
	// that has caught up with those of a key has every other holder of it.
	written consistency.KeyTracker
}

// claim is the right of one write to name one Service. It belongs to the
// goroutine of the write.
type claim struct {
	claims *serviceClaims
	key    string
	unlock func()
}

func (c *serviceClaims) newClaim() *claim { return &claim{claims: c} }

// onCreate returns a validation that takes the claim after all others have
// accepted the object.
func (c *claim) onCreate(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		if validate != nil {
			if err := validate(ctx, obj); err != nil {
				return err
			}
		}
		return c.take(ctx, obj.(*elasti.ElastiService))
	}
}

// onUpdate is the same for an update. A Service that was named before is not
// checked: objects that two servers accepted must remain writable.
func (c *claim) onUpdate(validate rest.ValidateObjectUpdateFunc) rest.ValidateObjectUpdateFunc {
	return func(ctx context.Context, obj, old runtime.Object) error {
		if validate != nil {
			if err := validate(ctx, obj, old); err != nil {
				return err
			}
		}
		updated, previous := obj.(*elasti.ElastiService), old.(*elasti.ElastiService)
		if updated.Spec.Service == previous.Spec.Service {
			return nil
		}
		return c.take(ctx, updated)
	}
}

// take waits for other writes that name the same Service, and fails when
// another ElastiService names it. A write that is retried, with the same Service
// or another, takes it again.
func (c *claim) take(ctx context.Context, elastiService *elasti.ElastiService) error {
	key := namespacedService(elastiService.Namespace, elastiService.Spec.Service)
	if c.key != key {
		// A write holds at most one key, so there is no deadlock.
		c.release()
		unlock, err := c.claims.mutex.lock(ctx, key)
		if err != nil {
			return apierrors.NewTimeoutError(fmt.Sprintf("other writes that name the Service %q did not end in time, try again: %v", elastiService.Spec.Service, err), 1)
		}
		c.key, c.unlock = key, unlock
	}
	return c.claims.check(ctx, elastiService)
}

// release ends the claim. It may be called more than once.
func (c *claim) release() {
	if c.unlock != nil {
		c.unlock()
	}
	c.key, c.unlock = "", nil
}

// observe records what the write returned. It must be called while the claim is
// held.
func (c *claim) observe(obj runtime.Object) {
	if c.key == "" {
		return
	}
	c.claims.written.Observe(c.claims.store.Storage.Versioner(), c.key, obj)
}

// check fails when another ElastiService names the same Service.
func (c *serviceClaims) check(ctx context.Context, elastiService *elasti.ElastiService) error {
	key := namespacedService(elastiService.Namespace, elastiService.Spec.Service)
	other, err := readTracked(ctx, c.store, &c.written, key, func(resourceVersion string) (*elasti.ElastiService, error) {
		return c.holder(ctx, elastiService, resourceVersion)
	})
	if err == nil && other != nil {
		// The other one may be deleted, and the cache not have that yet.
		other, err = c.holder(ctx, elastiService, "")
	}
	if err != nil {
		// Not wrapped: it is an API status for the client, such as 429 while a
		// cache is not ready.
		return err
	}
	if other == nil {
		return nil
	}
	advice := "change or delete that one first, or name another Service"
	if other.DeletionTimestamp != nil {
		advice = "it is being deleted, try again when that is done"
	}
	return apierrors.NewInvalid(elasti.Kind("ElastiService"), elastiService.Name, field.ErrorList{
		field.Invalid(field.NewPath("spec", "service"), elastiService.Spec.Service,
			fmt.Sprintf("the ElastiService %q already manages this Service: %s", other.Name, advice)),
	})
}

// holder returns another ElastiService that names the same Service, as of the
// resource version or later; an empty one means as of now.
func (c *serviceClaims) holder(ctx context.Context, elastiService *elasti.ElastiService, resourceVersion string) (*elasti.ElastiService, error) {
	options := &internalversion.ListOptions{ResourceVersion: resourceVersion}
	if resourceVersion != "" {
		options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	key := namespacedService(elastiService.Namespace, elastiService.Spec.Service)
	list, err := c.store.ListPredicate(ctx, storage.SelectionPredicate{
		Label:       labels.Everything(),
		Field:       fields.OneTermEqualSelector(fieldNamespacedService, key),
		GetAttrs:    getAttributes,
		IndexFields: []string{fieldNamespacedService},
	}, options)
	if err != nil {
		return nil, err
	}
	items := list.(*elasti.ElastiServiceList).Items
	for i := range items {
		if items[i].Name != elastiService.Name {
			return &items[i], nil
		}
	}
	return nil, nil
}
