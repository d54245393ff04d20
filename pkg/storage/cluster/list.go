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
	"fmt"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// GetList implements storage.Interface. Lists of clients come from the watch
// cache above; this one reads all stored objects, whatever the limit is, so that
// the order of keys is kept and a continuation can begin anywhere.
func (s *store) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	prefix, err := storage.PrepareKey(s.prefix, key, opts.Recursive)
	if err != nil {
		return err
	}
	version, continueKey, err := storage.ValidateListOptions(prefix, s.versioner, opts)
	if err != nil {
		return err
	}
	stored, listed, err := s.read(ctx, prefix, opts.Recursive, uint64(max(version, 0)), continueKey)
	if err != nil {
		return asStorageError(expired(err, prefix, continueKey), "listing "+prefix)
	}
	if version == 0 {
		if err := s.checkMinimum(opts.ResourceVersion, listed); err != nil {
			return err
		}
		version = int64(listed)
	}
	return s.fill(listObj, stored, prefix, uint64(version), opts)
}

// read returns the stored objects below a prefix from a key on in the order of
// their keys, and the version that they were read at.
func (s *store) read(ctx context.Context, prefix string, recursive bool, version uint64, from string) ([]*StoredObject, uint64, error) {
	name := ""
	if !recursive {
		name = nameOf(strings.TrimPrefix(prefix, s.prefix))
	}
	var stored []*StoredObject
	listed, err := s.host.list(ctx, version, name, func(object *StoredObject) error {
		whole := s.prefix + object.key()
		if recursive && strings.HasPrefix(whole, prefix) && whole >= from || whole == prefix {
			stored = append(stored, object)
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	slices.SortFunc(stored, func(a, b *StoredObject) int { return strings.Compare(a.key(), b.key()) })
	return stored, listed, nil
}

// fill puts those of the stored objects that are selected into a list, up to the
// limit.
func (s *store) fill(list runtime.Object, stored []*StoredObject, prefix string, version uint64, opts storage.ListOptions) error {
	items, err := itemsOf(list)
	if err != nil {
		return err
	}
	limit, last := int(opts.Predicate.Limit), -1
	for i, object := range stored {
		if opts.Predicate.Limit > 0 && items.Len() >= limit {
			break
		}
		last = i
		item, err := s.decodeItem(object, items.Type().Elem())
		if err != nil && s.failsOnDamage {
			return err
		}
		if err != nil {
			s.logger.Error(err, "Leaving a damaged object out of a list", "key", s.prefix+object.key())
			continue
		}
		if matches, err := opts.Predicate.Matches(item); err == nil && matches {
			items.Set(reflect.Append(items, reflect.ValueOf(item).Elem()))
		}
	}
	more, lastKey := last < len(stored)-1, ""
	if last >= 0 {
		lastKey = s.prefix + stored[last].key()
	}
	continuation, remaining, err := storage.PrepareContinueToken(lastKey, prefix, int64(version), int64(len(stored)), more, opts)
	if err != nil {
		return err
	}
	return s.versioner.UpdateList(list, version, continuation, remaining)
}

func (s *store) decodeItem(object *StoredObject, itemType reflect.Type) (runtime.Object, error) {
	item, ok := reflect.New(itemType).Interface().(runtime.Object)
	if !ok {
		return nil, fmt.Errorf("%s is not an object", itemType)
	}
	return item, s.decode(object, item)
}

// expired adds to the error of a continuation, whose version the host cluster does not
// have any more, the token with which the list continues at the current version.
func expired(err error, prefix, continueKey string) error {
	if continueKey == "" || !apierrors.IsResourceExpired(err) {
		return err
	}
	inconsistent, encodeErr := storage.EncodeContinue(continueKey, prefix, -1)
	if encodeErr != nil {
		return err
	}
	status := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. Start a new list without it, or go on with the token in this response: the rest is then as of now, and may not fit what was listed before.")
	status.ErrStatus.Continue = inconsistent
	return status
}

// checkMinimum returns an error if a list is older than the requested version.
func (s *store) checkMinimum(requested string, listed uint64) error {
	if requested == "" {
		return nil
	}
	minimum, err := s.versioner.ParseResourceVersion(requested)
	if err != nil {
		return fmt.Errorf("reading the resourceVersion %q: %w", requested, err)
	}
	if minimum > listed {
		return storage.NewTooLargeResourceVersionError(minimum, listed, 0)
	}
	return nil
}

// itemsOf returns the slice of the items of a list, which is not nil.
func itemsOf(list runtime.Object) (reflect.Value, error) {
	pointer, err := meta.GetItemsPtr(list)
	if err != nil {
		return reflect.Value{}, fmt.Errorf("reading the items of a list: %w", err)
	}
	items, err := conversion.EnforcePtr(pointer)
	if err != nil || items.Kind() != reflect.Slice {
		return reflect.Value{}, fmt.Errorf("the items of a list must be a slice, not %T: %w", pointer, err)
	}
	if items.IsNil() {
		items.Set(reflect.MakeSlice(items.Type(), 0, 0))
	}
	return items, nil
}
