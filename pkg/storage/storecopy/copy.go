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

// Package storecopy copies what one store has to another one, whatever the two are:
// objects with all of their metadata and status, and at last the identity of the store,
// so that the guard of a server takes the copy for the original.
//
// While it is not complete and verified, the copy has an identity that no server accepts.
// A copy that was interrupted is continued by the next one.
//
// It knows neither the kinds of the stores nor the types of the objects. Begin with Copy.
package storecopy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/truefoundry/elasti-apiserver/pkg/storage/guard"
)

// concurrency is how many objects are written at the same time.
const concurrency = 16

// Resource is one resource of a store.
type Resource struct {
	// Name is the plural name, for messages.
	Name string
	// Storage reads and writes the objects. A watch cache is not needed.
	Storage storage.Interface
	// Prefix is what the keys of all objects begin with, and KeyOf returns the whole key
	// of one.
	Prefix string
	KeyOf  func(object runtime.Object) (string, error)
	// New and NewList return an empty object and an empty list.
	New, NewList func() runtime.Object
}

// DamageRemover is a storage that can have objects which it cannot read, and leaves them out
// of lists.
type DamageRemover interface {
	// RemoveDamaged deletes these objects.
	RemoveDamaged(ctx context.Context) error
}

// Store is one of the two stores of a copy.
type Store struct {
	// Description is what the store is called in messages.
	Description string
	// Identity is where its identity is.
	Identity guard.Store
	// Resources are those that it has, in the order of the other store.
	Resources []Resource
}

// Options decide what happens to objects that the destination already has. At most one may
// be set.
type Options struct {
	// Overwrite replaces them with those of the source.
	Overwrite bool
	// Once accepts a destination that is a complete copy, even if it has changed since. It
	// is for a command that is repeated while a server uses the copy.
	Once bool
}

// Result says what was copied.
type Result struct {
	// Identity is that of both stores.
	Identity string
	// Complete says that the destination was a complete copy before, and was left as it is.
	Complete bool
	// Copied has the number of objects of each resource.
	Copied map[string]int
}

// Copy copies one store to another one. No server may work on either of them. Unless the
// options allow more, it is an error when the destination has anything that the source does
// not have: also when it is a complete copy, and one of the two was used since.
func Copy(ctx context.Context, from, to *Store, options Options) (Result, error) {
	result := Result{Copied: map[string]int{}}
	identity, err := sourceIdentity(ctx, from)
	if err != nil {
		return result, err
	}
	result.Identity = identity
	current, err := to.Identity.Identity(ctx)
	if err != nil {
		return result, fmt.Errorf("reading the identity of the destination, %s: %w", to.Description, err)
	}
	if current == identity && !options.Overwrite {
		if !options.Once {
			if err := compare(ctx, from, to); err != nil {
				return result, err
			}
		}
		result.Complete = true
		return result, nil
	}
	if err := begin(ctx, to, current, identity, options.Overwrite); err != nil {
		return result, err
	}
	for i := range from.Resources {
		if err := copyResource(ctx, &from.Resources[i], &to.Resources[i]); err != nil {
			return result, fmt.Errorf("copying from %s to %s: %w", from.Description, to.Description, err)
		}
	}
	for i := range from.Resources {
		count, err := verify(ctx, &from.Resources[i], &to.Resources[i])
		if err != nil {
			return result, fmt.Errorf("verifying the copy of %s in %s: %w", from.Description, to.Description, err)
		}
		result.Copied[from.Resources[i].Name] = count
	}
	if err := to.Identity.ReplaceIdentity(ctx, guard.Incomplete(identity), identity); err != nil {
		return result, fmt.Errorf("completing the copy in %s: %w", to.Description, err)
	}
	return result, nil
}

// compare returns an error unless a complete copy has what its original has. The identity
// does not say which of the two was used last.
func compare(ctx context.Context, from, to *Store) error {
	var differing []string
	for i := range from.Resources {
		keys, _, err := differences(ctx, &from.Resources[i], &to.Resources[i])
		if err != nil {
			return fmt.Errorf("comparing %s with %s: %w", from.Description, to.Description, err)
		}
		if len(keys) > 0 {
			differing = append(differing, fmt.Sprintf("%d %s, such as %s", len(keys), from.Resources[i].Name, keys[0]))
		}
	}
	if len(differing) > 0 {
		return fmt.Errorf("the destination, %s, and the source, %s, are copies of each other, and one of the two was used since. They differ in %s. "+
			"To replace all that the destination has by what the source has, give --overwrite; to leave the destination as it is, --once",
			to.Description, from.Description, strings.Join(differing, " and in "))
	}
	return nil
}

// sourceIdentity returns the identity of the source. A store that was used by versions
// without identities gets one.
func sourceIdentity(ctx context.Context, from *Store) (string, error) {
	identity, err := from.Identity.Identity(ctx)
	if err != nil {
		return "", fmt.Errorf("reading the identity of the source, %s: %w", from.Description, err)
	}
	if guard.IsIncomplete(identity) {
		return "", fmt.Errorf("the source, %s, is an incomplete copy itself: copy from its original", from.Description)
	}
	if identity != "" {
		return identity, nil
	}
	empty, err := isEmpty(ctx, from)
	if err != nil {
		return "", err
	}
	if empty {
		return "", fmt.Errorf("the source, %s, has neither an identity nor objects: check that it is the right one", from.Description)
	}
	identity = guard.NewIdentity()
	if err := from.Identity.ReplaceIdentity(ctx, "", identity); err != nil {
		return "", fmt.Errorf("giving the source, %s, an identity: %w", from.Description, err)
	}
	return identity, nil
}

// begin marks the destination as an incomplete copy, if it may become one.
func begin(ctx context.Context, to *Store, current, identity string, overwrite bool) error {
	marked := guard.Incomplete(identity)
	if current == marked {
		return nil
	}
	if !overwrite {
		empty, err := isEmpty(ctx, to)
		if err != nil {
			return err
		}
		if current != "" || !empty {
			return fmt.Errorf("the destination, %s, is another store already (identity %q, empty: %t): choose an empty one, or replace all that it has with --overwrite", to.Description, current, empty)
		}
	}
	if err := to.Identity.ReplaceIdentity(ctx, current, marked); err != nil {
		return fmt.Errorf("marking the destination, %s, as an incomplete copy: %w", to.Description, err)
	}
	return nil
}

func isEmpty(ctx context.Context, store *Store) (bool, error) {
	for i := range store.Resources {
		objects, err := list(ctx, &store.Resources[i])
		if err != nil {
			return false, fmt.Errorf("reading %s: %w", store.Description, err)
		}
		if len(objects) > 0 {
			return false, nil
		}
	}
	return true, nil
}

// list returns all objects by their keys, without their versions, which each store gives
// anew.
func list(ctx context.Context, resource *Resource) (map[string]runtime.Object, error) {
	found := resource.NewList()
	options := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
	if err := resource.Storage.GetList(ctx, resource.Prefix, options, found); err != nil {
		return nil, fmt.Errorf("listing %s: %w", resource.Name, err)
	}
	objects := map[string]runtime.Object{}
	err := meta.EachListItem(found, func(object runtime.Object) error {
		key, err := resource.KeyOf(object)
		if err != nil {
			return err
		}
		accessor, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		accessor.SetResourceVersion("")
		objects[key] = object
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the list of %s: %w", resource.Name, err)
	}
	return objects, nil
}

// copyResource makes the objects of a resource in the destination those of the source.
func copyResource(ctx context.Context, from, to *Resource) error {
	desired, err := list(ctx, from)
	if err != nil {
		return fmt.Errorf("the source: %w", err)
	}
	if damaged, ok := to.Storage.(DamageRemover); ok {
		if err := damaged.RemoveDamaged(ctx); err != nil {
			return fmt.Errorf("the destination: %w", err)
		}
	}
	present, err := list(ctx, to)
	if err != nil {
		return fmt.Errorf("the destination: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for key := range present {
		if _, kept := desired[key]; kept {
			continue
		}
		group.Go(func() error {
			err := to.Storage.Delete(ctx, key, to.New(), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
			if err != nil && !storage.IsNotFound(err) {
				return fmt.Errorf("deleting %s of the destination: %w", key, err)
			}
			return nil
		})
	}
	for key, object := range desired {
		if before, exists := present[key]; exists && apiequality.Semantic.DeepEqual(before, object) {
			continue
		}
		group.Go(func() error { return write(ctx, to, key, object) })
	}
	return group.Wait()
}

// write stores an object as it is, in the place of the one that may be there.
func write(ctx context.Context, to *Resource, key string, object runtime.Object) error {
	replace := func(runtime.Object, storage.ResponseMeta) (runtime.Object, *uint64, error) {
		return object.DeepCopyObject(), nil, nil
	}
	if err := to.Storage.GuaranteedUpdate(ctx, key, to.New(), true, nil, replace, nil); err != nil {
		return fmt.Errorf("writing %s: %w", key, err)
	}
	return nil
}

// verify compares the objects of a resource in both stores as they are now, and returns how
// many there are.
func verify(ctx context.Context, from, to *Resource) (int, error) {
	keys, count, err := differences(ctx, from, to)
	if err != nil {
		return 0, err
	}
	if len(keys) > 0 {
		return 0, fmt.Errorf("%s differs: a server has written to one of the two meanwhile. End the servers that use them, and copy again", keys[0])
	}
	return count, nil
}

// differences returns the keys in order at which two stores do not have the same, and how
// many objects the source has.
func differences(ctx context.Context, from, to *Resource) (keys []string, count int, err error) {
	desired, err := list(ctx, from)
	if err != nil {
		return nil, 0, fmt.Errorf("the source: %w", err)
	}
	present, err := list(ctx, to)
	if err != nil {
		return nil, 0, fmt.Errorf("the destination: %w", err)
	}
	for key, object := range desired {
		copied, exists := present[key]
		if !exists || !apiequality.Semantic.DeepEqual(copied, object) {
			keys = append(keys, key)
		}
		delete(present, key)
	}
	keys = slices.AppendSeq(keys, maps.Keys(present))
	slices.Sort(keys)
	return keys, len(desired), nil
}
