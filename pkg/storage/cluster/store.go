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
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/klog/v2"
)

// store is the storage of one resource. It is safe for concurrent use.
type store struct {
	host      *hostClient
	codec     runtime.Codec
	decoder   etcd3.Decoder
	versioner storage.Versioner
	newFunc   func() runtime.Object
	// prefix is what all keys of the resource begin with. It ends with a slash.
	prefix   string
	resource schema.GroupResource
	progress *progress
	logger   klog.Logger
	// failsOnDamage makes a list fail that has a damaged object. Otherwise the object is
	// left out.
	failsOnDamage bool
}

var _ storage.Interface = &store{}

// Versioner implements storage.Interface.
func (s *store) Versioner() storage.Versioner { return s.versioner }

// ReadinessCheck implements storage.Interface. The watch cache above says whether
// objects can be read.
func (s *store) ReadinessCheck() error { return nil }

// CompactRevision implements storage.Interface. The host cluster does not tell.
func (s *store) CompactRevision() int64 { return 0 }

// EnableResourceSizeEstimation implements storage.Interface. Sizes are not
// estimated: finding out the keys takes a current read, and with it a write to
// the host cluster. The cost of a list is estimated by the number of objects then.
func (s *store) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	if keys == nil {
		return errors.New("the function that lists the keys is missing")
	}
	return nil
}

// Stats implements storage.Interface.
func (s *store) Stats(ctx context.Context) (storage.Stats, error) {
	count, err := s.host.count(ctx)
	if err != nil {
		return storage.Stats{}, asStorageError(err, "counting the stored "+s.resource.Resource)
	}
	return storage.Stats{ObjectCount: count}, nil
}

// RequestWatchProgress implements storage.Interface.
func (s *store) RequestWatchProgress(ctx context.Context) error {
	return asStorageError(s.progress.request(ctx), "requesting the progress of "+s.resource.Resource)
}

// GetCurrentResourceVersion implements storage.Interface.
func (s *store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	version, err := s.progress.current(ctx)
	return version, asStorageError(err, "finding out the current resourceVersion of "+s.resource.Resource)
}

// Create implements storage.Interface.
func (s *store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	relative, err := s.relative(key)
	if err != nil {
		return err
	}
	if version, err := s.versioner.ObjectResourceVersion(obj); err == nil && version != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	if err := checkTTL(ttl); err != nil {
		return err
	}
	data, err := s.encode(obj)
	if err != nil {
		return err
	}
	created, err := s.host.create(ctx, newStoredObject(relative, data))
	if apierrors.IsAlreadyExists(err) {
		return storage.NewKeyExistsError(key, 0)
	}
	if err != nil {
		return asStorageError(err, "creating "+key)
	}
	if out == nil {
		return nil
	}
	return s.decode(created, out)
}

// Get implements storage.Interface.
func (s *store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	relative, err := s.relative(key)
	if err != nil {
		return err
	}
	object, err := s.host.get(ctx, nameOf(relative))
	missing := errors.Is(err, errObjectNotFound)
	if err != nil && !missing {
		return asStorageError(err, "reading "+key)
	}
	if err := s.checkReached(ctx, opts.ResourceVersion, object); err != nil {
		return err
	}
	if missing {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return storage.NewKeyNotFoundError(key, 0)
	}
	return s.decode(object, out)
}

// checkReached returns an error if the requested version does not exist yet. A read
// is as new as all writes that returned before it, so that only versions that no
// write has had are out of its reach.
func (s *store) checkReached(ctx context.Context, requested string, object *StoredObject) error {
	if requested == "" || requested == "0" {
		return nil
	}
	if version, err := object.version(); err == nil && s.checkMinimum(requested, version) == nil {
		return nil
	}
	current, err := s.GetCurrentResourceVersion(ctx)
	if err != nil {
		return err
	}
	return s.checkMinimum(requested, current)
}

// relative returns the part of a key that names the object.
func (s *store) relative(key string) (string, error) {
	prepared, err := storage.PrepareKey(s.prefix, key, false)
	if err != nil {
		return "", err
	}
	return strings.TrimPrefix(prepared, s.prefix), nil
}

// encode returns what is stored of an object, which loses its version.
func (s *store) encode(object runtime.Object) ([]byte, error) {
	if err := s.versioner.PrepareObjectForStorage(object); err != nil {
		return nil, fmt.Errorf("preparing the object for the storage: %w", err)
	}
	data, err := runtime.Encode(s.codec, object)
	if err != nil {
		return nil, fmt.Errorf("encoding the object: %w", err)
	}
	return data, nil
}

// decode reads a stored object into out.
func (s *store) decode(object *StoredObject, out runtime.Object) error {
	version, err := object.version()
	if err != nil {
		return asStorageError(err, "reading "+s.prefix+object.key())
	}
	return s.decodeAs(object, version, out)
}

// decodeAs reads a stored object into out, with a version.
func (s *store) decodeAs(object *StoredObject, version uint64, out runtime.Object) error {
	err := object.verify()
	if err == nil {
		if err = s.decoder.Decode([]byte(object.Data), out, int64(version)); err == nil {
			return nil
		}
		err = &damagedError{name: object.Name, reason: fmt.Sprintf("its data cannot be decoded: %v", err)}
	}
	var damaged *damagedError
	if errors.As(err, &damaged) {
		damaged.resource = s.host.resource
	}
	return storeReadError(fmt.Errorf("reading %s: %w", s.prefix+object.key(), err))
}

// newLike returns a new object of the type that a pointer points to.
func newLike(out runtime.Object) (runtime.Object, error) {
	value, err := conversion.EnforcePtr(out)
	if err != nil {
		return nil, fmt.Errorf("the result must be a pointer: %w", err)
	}
	if unstructured, ok := out.(runtime.Unstructured); ok {
		return unstructured.NewEmptyInstance(), nil
	}
	return reflect.New(value.Type()).Interface().(runtime.Object), nil
}

func checkTTL(ttl uint64) error {
	if ttl != 0 {
		return apierrors.NewInternalError(errors.New("objects in the host cluster do not expire"))
	}
	return nil
}
