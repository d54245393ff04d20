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

package consistency

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// TrackWrites returns a getter whose storages record their writes in the tracker.
func TrackWrites(getter generic.RESTOptionsGetter, tracker *VersionTracker, clock clock.PassiveClock) generic.RESTOptionsGetter {
	return trackingGetter{getter, tracker, clock}
}

type trackingGetter struct {
	generic.RESTOptionsGetter
	tracker *VersionTracker
	clock   clock.PassiveClock
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g trackingGetter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := g.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	decorate := options.Decorator
	options.Decorator = func(config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(obj runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object, getAttrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		decorated, destroy, err := decorate(config, resourcePrefix, keyFunc, newFunc, newListFunc, getAttrs, triggers, indexers)
		if err != nil {
			return nil, destroy, err
		}
		return trackedStorage{decorated, g.tracker, g.clock}, destroy, nil
	}
	return options, nil
}

// trackedStorage records its writes in the tracker. It is safe for concurrent use.
type trackedStorage struct {
	storage.Interface
	tracker *VersionTracker
	clock   clock.PassiveClock
}

// Create implements storage.Interface.
func (s trackedStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return s.record(out, s.Interface.Create(ctx, key, obj, out, ttl))
}

// Delete implements storage.Interface.
func (s trackedStorage) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, cached runtime.Object, options storage.DeleteOptions) error {
	return s.record(out, s.Interface.Delete(ctx, key, out, preconditions, validate, cached, options))
}

// GuaranteedUpdate implements storage.Interface.
func (s trackedStorage) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	return s.record(out, s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, cached))
}

// record records the version of what was written or deleted, or that the
// outcome of the write is unknown. It returns the error of the write.
func (s trackedStorage) record(out runtime.Object, err error) error {
	switch {
	case err == nil:
		s.tracker.Observe(s.Versioner(), out)
	case !isNotWritten(err):
		s.tracker.observeUnknown(s.clock.Now())
	}
	return err
}

// isNotWritten reports whether an error of a write means that nothing was written. Errors of
// the store itself and of validation do; a timeout does not.
func isNotWritten(err error) bool {
	var inStore *storage.StorageError
	var status apierrors.APIStatus
	return errors.As(err, &inStore) || errors.As(err, &status) && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err)
}
