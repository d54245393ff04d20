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

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// state is an object as a write finds it.
type state struct {
	object runtime.Object
	// data is how the object is stored, and version its version; none if it does
	// not exist.
	data    []byte
	version uint64
	// fresh reports whether the state was read from the host cluster, not from a
	// cache.
	fresh bool
}

// conditionalWrite is a write that is based on a state, and retried when another
// writer was first.
type conditionalWrite struct {
	store *store
	// key is the whole one, relative the part that names the object.
	key, relative string
	// out is what the result is decoded into.
	out           runtime.Object
	preconditions *storage.Preconditions
	// ignoreNotFound makes a missing object an empty one.
	ignoreNotFound bool
}

// GuaranteedUpdate implements storage.Interface.
func (s *store) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object) error {
	write := &conditionalWrite{store: s, key: key, out: destination, preconditions: preconditions, ignoreNotFound: ignoreNotFound}
	return write.run(ctx, cachedExistingObject, func(current *state) (done bool, err error) {
		return write.update(ctx, current, tryUpdate)
	})
}

// Delete implements storage.Interface.
func (s *store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validateDeletion storage.ValidateObjectFunc, cachedExistingObject runtime.Object, _ storage.DeleteOptions) error {
	write := &conditionalWrite{store: s, key: key, out: out, preconditions: preconditions}
	return write.run(ctx, cachedExistingObject, func(current *state) (done bool, err error) {
		return write.remove(ctx, current, validateDeletion)
	})
}

// RemoveDamaged deletes what is stored and cannot be read. No server may work on the store.
func (s *store) RemoveDamaged(ctx context.Context) error {
	var damaged []*StoredObject
	_, err := s.host.list(ctx, 0, "", func(object *StoredObject) error {
		if apierrors.IsStoreReadError(s.decode(object, s.newFunc())) {
			damaged = append(damaged, object)
		}
		return nil
	})
	if err != nil {
		return asStorageError(err, "listing "+s.prefix)
	}
	for _, object := range damaged {
		version, err := object.version()
		if err == nil {
			_, err = s.host.remove(ctx, object.Name, version)
		}
		if err != nil && !errors.Is(err, errObjectNotFound) {
			return asStorageError(err, "deleting the damaged object "+object.Name)
		}
		s.logger.Info("Deleted a damaged object", "name", object.Name)
	}
	return nil
}

// rejection is the error of a write that may not be made to a state. Unless the
// state was fresh, it may be out of date.
type rejection struct{ error }

func (r rejection) Unwrap() error { return r.error }

// run retries a write until it is done, with the newest state each time another
// writer was first. It ends with ctx. In each round, some writer makes progress.
func (w *conditionalWrite) run(ctx context.Context, cached runtime.Object, try func(*state) (done bool, err error)) error {
	var err error
	if w.relative, err = w.store.relative(w.key); err != nil {
		return err
	}
	current, err := w.begin(ctx, cached)
	if err != nil {
		return err
	}
	for {
		fresh, version := current.fresh, current.version
		done, err := try(current)
		rejected := rejection{}
		switch {
		case err == nil && done:
			return nil
		case err == nil:
		case !errors.As(err, &rejected):
			return err
		case fresh:
			return rejected.error
		}
		if current, err = w.read(ctx); err != nil {
			return err
		}
		if rejected.error != nil && current.version == version {
			return rejected.error
		}
	}
}

// begin returns the state that a cache has, or that of the host cluster.
func (w *conditionalWrite) begin(ctx context.Context, cached runtime.Object) (*state, error) {
	if _, err := newLike(w.out); err != nil {
		return nil, err
	}
	if cached == nil {
		return w.read(ctx)
	}
	version, err := w.store.versioner.ObjectResourceVersion(cached)
	if err != nil {
		return nil, fmt.Errorf("reading the version of the cached object: %w", err)
	}
	data, err := w.store.encode(cached)
	if err != nil {
		return nil, err
	}
	if err := w.store.versioner.UpdateObject(cached, version); err != nil {
		return nil, fmt.Errorf("setting the version of the cached object: %w", err)
	}
	return &state{object: cached, data: data, version: version}, nil
}

// read returns the state in the host cluster.
func (w *conditionalWrite) read(ctx context.Context) (*state, error) {
	object, err := newLike(w.out)
	if err != nil {
		return nil, err
	}
	stored, err := w.store.host.get(ctx, nameOf(w.relative))
	switch {
	case errors.Is(err, errObjectNotFound) && w.ignoreNotFound:
		return &state{object: object, fresh: true}, nil
	case errors.Is(err, errObjectNotFound):
		return nil, storage.NewKeyNotFoundError(w.key, 0)
	case err != nil:
		return nil, asStorageError(err, "reading "+w.key)
	}
	version, err := stored.version()
	if err != nil {
		return nil, asStorageError(err, "reading "+w.key)
	}
	if err := w.store.decodeAs(stored, version, object); err != nil {
		return nil, err
	}
	return &state{object: object, data: []byte(stored.Data), version: version, fresh: true}, nil
}

// update stores what tryUpdate makes of a state.
func (w *conditionalWrite) update(ctx context.Context, current *state, tryUpdate storage.UpdateFunc) (done bool, err error) {
	if err := w.preconditions.Check(w.key, current.object); err != nil {
		return false, rejection{err}
	}
	updated, ttl, err := tryUpdate(current.object, storage.ResponseMeta{ResourceVersion: current.version})
	if err != nil {
		return false, rejection{err}
	}
	if ttl != nil {
		if err := checkTTL(*ttl); err != nil {
			return false, err
		}
	}
	data, err := w.store.encode(updated)
	if err != nil {
		return false, err
	}
	if current.version != 0 && bytes.Equal(data, current.data) {
		return w.keep(ctx, current)
	}
	stored, err := w.put(ctx, data, current.version)
	if err != nil || stored == nil {
		return false, err
	}
	return true, w.store.decode(stored, w.out)
}

// keep makes no write, if the state is still the one that is stored.
func (w *conditionalWrite) keep(ctx context.Context, current *state) (done bool, err error) {
	if !current.fresh {
		newest, err := w.read(ctx)
		if err != nil {
			return false, err
		}
		if !bytes.Equal(newest.data, current.data) {
			return false, nil
		}
		current = newest
	}
	return true, w.store.decodeAs(w.asStored(current), current.version, w.out)
}

// put stores data on a version. It returns nil if another writer was first.
func (w *conditionalWrite) put(ctx context.Context, data []byte, version uint64) (*StoredObject, error) {
	object := newStoredObject(w.relative, data)
	var stored *StoredObject
	var err error
	if version == 0 {
		stored, err = w.store.host.create(ctx, object)
	} else {
		object.ResourceVersion = strconv.FormatUint(version, 10)
		stored, err = w.store.host.replace(ctx, object)
	}
	if errors.Is(err, errObjectNotFound) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return nil, nil
	}
	if err != nil {
		return nil, asStorageError(err, "updating "+w.key)
	}
	return stored, nil
}

// remove deletes the object if it is as in the state.
func (w *conditionalWrite) remove(ctx context.Context, current *state, validate storage.ValidateObjectFunc) (done bool, err error) {
	if err := w.preconditions.Check(w.key, current.object); err != nil {
		return false, rejection{err}
	}
	if err := validate(ctx, current.object); err != nil {
		return false, rejection{err}
	}
	version, err := w.store.host.remove(ctx, nameOf(w.relative), current.version)
	if errors.Is(err, errObjectNotFound) || apierrors.IsConflict(err) {
		return false, nil
	}
	if err != nil {
		return false, asStorageError(err, "deleting "+w.key)
	}
	if version == 0 {
		version = w.afterDeletion(ctx, current)
	}
	return true, w.store.decodeAs(w.asStored(current), version, w.out)
}

// afterDeletion returns a version as of which the object is deleted, where the one
// of the deletion is not known.
func (w *conditionalWrite) afterDeletion(ctx context.Context, deleted *state) uint64 {
	version, err := w.store.progress.current(ctx)
	if err != nil {
		w.store.logger.Error(err, "Failed to get the version after a deletion, the client gets that of the deleted object", "key", w.key)
		return deleted.version
	}
	return version
}

// asStored returns the stored object of a state.
func (w *conditionalWrite) asStored(current *state) *StoredObject {
	return newStoredObject(w.relative, current.data)
}
