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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/truefoundry/elasti-apiserver/pkg/storage/guard"
)

// Identity is the identity of what is stored of a resource in the host cluster. It is an
// object among the stored ones, so that it is deleted with them. It is safe for
// concurrent use.
type Identity struct {
	host *hostClient
}

var _ guard.Store = &Identity{}

// NewIdentity returns the identity of what is stored of a resource of a kind.
func (b *Backend) NewIdentity(resource schema.GroupResource, kind string) (*Identity, error) {
	host, err := newHostClient(b.config, b.client, hostResource(resource), storedPrefix+kind)
	if err != nil {
		return nil, err
	}
	return &Identity{host: host}, nil
}

// Identity implements guard.Store.
func (i *Identity) Identity(ctx context.Context) (string, error) {
	found, err := i.read(ctx)
	if err != nil || found == nil {
		return "", err
	}
	return found.Identity, nil
}

// read returns the object with the identity, or nil if there is none.
func (i *Identity) read(ctx context.Context) (*StoredObject, error) {
	found, err := i.host.get(ctx, identityName)
	if errors.Is(err, errObjectNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, asStorageError(err, "reading the identity of the store from "+i.host.resource)
	}
	return found, nil
}

// IsEmpty implements guard.Store. Two objects store nothing, so that a third one stores
// something.
func (i *Identity) IsEmpty(ctx context.Context) (bool, error) {
	list, err := i.host.page(ctx, &metav1.ListOptions{Limit: 3})
	if err != nil {
		return false, asStorageError(err, "reading "+i.host.resource)
	}
	for j := range list.Items {
		if !storesNothing(list.Items[j].Name) {
			return false, nil
		}
	}
	return true, nil
}

// ReplaceIdentity implements guard.Store.
func (i *Identity) ReplaceIdentity(ctx context.Context, from, to string) error {
	stored, err := i.replace(ctx, from, to)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, errObjectNotFound) {
		err = guard.ErrChanged
	}
	if err != nil {
		return fmt.Errorf("writing the identity of the store to %s of the host cluster: %w", i.host.resource, err)
	}
	if stored.Identity != to {
		return fmt.Errorf("the CustomResourceDefinition of %s in the host cluster has no field for the identity of the store: apply that of this version", i.host.resource)
	}
	return nil
}

func (i *Identity) replace(ctx context.Context, from, to string) (*StoredObject, error) {
	found, err := i.read(ctx)
	if err != nil {
		return nil, err
	}
	if found == nil {
		if from != "" {
			return nil, guard.ErrChanged
		}
		return i.host.create(ctx, &StoredObject{ObjectMeta: metav1.ObjectMeta{Name: identityName}, Identity: to})
	}
	if found.Identity != from {
		return nil, guard.ErrChanged
	}
	found.Identity = to
	return i.host.replace(ctx, found)
}
