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

package guard

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// Wrap returns a getter whose storages access the store only while they may. Each time
// that the store becomes the recorded one they begin with new watch caches.
func (g *Guard) Wrap(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return guardedGetter{getter, g}
}

type guardedGetter struct {
	generic.RESTOptionsGetter
	guard *Guard
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o guardedGetter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := o.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	decorate := options.Decorator
	options.Decorator = func(config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(obj runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object, getAttrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		wrapped := &guardedStorage{guard: o.guard, resource: resource, build: func() (storage.Interface, factory.DestroyFunc, error) {
			return decorate(config, resourcePrefix, keyFunc, newFunc, newListFunc, getAttrs, triggers, indexers)
		}}
		o.guard.add(wrapped)
		return wrapped, wrapped.end, nil
	}
	return options, nil
}

func (g *Guard) add(wrapped *guardedStorage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.storages = append(g.storages, wrapped)
}

// guardedStorage is a storage that is made when the store may be used, and destroyed
// when it may not be any more. It is safe for concurrent use.
type guardedStorage struct {
	guard    *Guard
	resource schema.GroupResource
	build    func() (storage.Interface, factory.DestroyFunc, error)

	mu sync.RWMutex
	// built is nil while the store must not be used. destroy ends it.
	built   storage.Interface
	destroy factory.DestroyFunc
	// ended says that the server does not use the storage any more.
	ended bool
}

var _ storage.Interface = &guardedStorage{}

// open makes the storage, if it is not made yet. It must not be called concurrently.
func (s *guardedStorage) open() error {
	s.mu.RLock()
	due := s.built == nil && !s.ended
	s.mu.RUnlock()
	if !due {
		return nil
	}
	// It may take long. Requests get an error meanwhile.
	built, destroy, err := s.build()
	if err != nil {
		return fmt.Errorf("creating the storage of %s: %w", s.resource, err)
	}
	s.mu.Lock()
	ended := s.ended
	if !ended {
		s.built, s.destroy = built, destroy
	}
	s.mu.Unlock()
	if ended {
		destroy()
	}
	return nil
}

// close destroys the storage, if it is made. Watches end.
func (s *guardedStorage) close() {
	s.mu.Lock()
	destroy := s.destroy
	s.built, s.destroy = nil, nil
	s.mu.Unlock()
	if destroy != nil {
		destroy()
	}
}

// end is close for good.
func (s *guardedStorage) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.close()
}

// builtReadiness reports why the storage cannot be read that is made.
func (s *guardedStorage) builtReadiness() error {
	s.mu.RLock()
	built := s.built
	s.mu.RUnlock()
	if built == nil {
		return nil
	}
	return built.ReadinessCheck()
}

// current returns the storage, or the error of all requests while there is none.
func (s *guardedStorage) current() (storage.Interface, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.built != nil {
		return s.built, nil
	}
	problem := s.guard.Problem()
	if problem == nil {
		problem = errNotChecked
	}
	return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("%s cannot be read or written: %v", s.resource, problem))
}

// Versioner implements storage.Interface.
func (*guardedStorage) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

// ReadinessCheck implements storage.Interface.
func (s *guardedStorage) ReadinessCheck() error {
	built, err := s.current()
	if err != nil {
		return err
	}
	return built.ReadinessCheck()
}

// Create implements storage.Interface.
func (s *guardedStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	built, err := s.current()
	if err != nil {
		return err
	}
	return built.Create(ctx, key, obj, out, ttl)
}

// Delete implements storage.Interface.
func (s *guardedStorage) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validateDeletion storage.ValidateObjectFunc, cachedExistingObject runtime.Object, opts storage.DeleteOptions) error {
	built, err := s.current()
	if err != nil {
		return err
	}
	return built.Delete(ctx, key, out, preconditions, validateDeletion, cachedExistingObject, opts)
}

// Watch implements storage.Interface.
func (s *guardedStorage) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	built, err := s.current()
	if err != nil {
		return nil, err
	}
	return built.Watch(ctx, key, opts)
}

// Get implements storage.Interface.
func (s *guardedStorage) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	built, err := s.current()
	if err != nil {
		return err
	}
	return built.Get(ctx, key, opts, out)
}

// GetList implements storage.Interface.
func (s *guardedStorage) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	built, err := s.current()
	if err != nil {
		return err
	}
	return built.GetList(ctx, key, opts, list)
}

// GuaranteedUpdate implements storage.Interface.
func (s *guardedStorage) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object) error {
	built, err := s.current()
	if err != nil {
		return err
	}
	return built.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, tryUpdate, cachedExistingObject)
}

// Stats implements storage.Interface.
func (s *guardedStorage) Stats(ctx context.Context) (storage.Stats, error) {
	built, err := s.current()
	if err != nil {
		return storage.Stats{}, err
	}
	return built.Stats(ctx)
}

// RequestWatchProgress implements storage.Interface.
func (s *guardedStorage) RequestWatchProgress(ctx context.Context) error {
	built, err := s.current()
	if err != nil {
		return err
	}
	return built.RequestWatchProgress(ctx)
}

// GetCurrentResourceVersion implements storage.Interface.
func (s *guardedStorage) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	built, err := s.current()
	if err != nil {
		return 0, err
	}
	return built.GetCurrentResourceVersion(ctx)
}

// EnableResourceSizeEstimation implements storage.Interface. The watch cache below,
// which knows the keys, has enabled it.
func (s *guardedStorage) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	built, err := s.current()
	if err != nil {
		return err
	}
	return built.EnableResourceSizeEstimation(keys)
}

// CompactRevision implements storage.Interface.
func (s *guardedStorage) CompactRevision() int64 {
	built, err := s.current()
	if err != nil {
		return 0
	}
	return built.CompactRevision()
}
