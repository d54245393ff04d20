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

// Package proxyportclaim stores which proxy port belongs to which ElastiService.
// A proxy port is an object of its own in the storage, so that creating it fails
// for all but one, whatever the number of servers and whatever the storage is.
// Nothing of this is part of the API.
//
// It does not know which port an owner is to get, which the controller decides. Begin with
// Claims.
package proxyportclaim

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// rewriters is how many claims are encrypted again at the same time.
const rewriters = 16

// maxAttempts bounds the attempts to claim a proxy port that is released each time
// just before its owner is read.
const maxAttempts = 5

// Claims are the stored claims. It is safe for concurrent use.
type Claims struct {
	storage storage.Interface
	prefix  string
	destroy func()
	// encrypted says that the storage may encrypt.
	encrypted bool
}

// New returns the claims in a storage.
func New(restOptions generic.RESTOptionsGetter) (*Claims, error) {
	options, err := restOptions.GetRESTOptions(elasti.Resource("proxyportclaims"), &elasti.ProxyPortClaim{})
	if err != nil {
		return nil, fmt.Errorf("finding the storage of proxy port claims: %w", err)
	}
	c := &Claims{prefix: "/" + strings.TrimPrefix(options.ResourcePrefix, "/"), encrypted: options.StorageConfig.Transformer != nil}
	keyOf := func(object runtime.Object) (string, error) {
		claim, ok := object.(*elasti.ProxyPortClaim)
		if !ok {
			return "", fmt.Errorf("expected a ProxyPortClaim, got %T", object)
		}
		return c.key(claim.Spec.ProxyPort), nil
	}
	newFunc := func() runtime.Object { return &elasti.ProxyPortClaim{} }
	newListFunc := func() runtime.Object { return &elasti.ProxyPortClaimList{} }
	created, destroy, err := options.Decorator(options.StorageConfig, c.prefix, keyOf, newFunc, newListFunc, getAttributes, nil, &cache.Indexers{})
	if err != nil {
		return nil, fmt.Errorf("creating the storage of proxy port claims: %w", err)
	}
	c.storage, c.destroy = created, sync.OnceFunc(destroy)
	return c, nil
}

// Destroy closes the storage. It may be called more than once, and nothing else
// afterwards.
func (c *Claims) Destroy() { c.destroy() }

// Claim gives a proxy port to a port of an ElastiService and returns the claim
// that is stored afterwards: the one that was requested, or that of another
// owner or Service port, which had the proxy port before. It is empty when there is one
// that cannot be read, as its object is damaged. A repetition is harmless. After an error
// it is not known whether the claim was stored.
func (c *Claims) Claim(ctx context.Context, desired v1alpha1.ProxyPortClaimSpec) (v1alpha1.ProxyPortClaimSpec, error) {
	claim := &elasti.ProxyPortClaim{ObjectMeta: metav1.ObjectMeta{
		Name:              strconv.Itoa(int(desired.ProxyPort)),
		UID:               uuid.NewUUID(),
		CreationTimestamp: metav1.Now(),
	}}
	if err := v1alpha1.Convert_v1alpha1_ProxyPortClaimSpec_To_elasti_ProxyPortClaimSpec(&desired, &claim.Spec, nil); err != nil {
		return v1alpha1.ProxyPortClaimSpec{}, err
	}
	key := c.key(desired.ProxyPort)
	for range maxAttempts {
		err := c.storage.Create(ctx, key, claim, &elasti.ProxyPortClaim{}, 0)
		if err == nil {
			return desired, nil
		}
		if !storage.IsExist(err) {
			return v1alpha1.ProxyPortClaimSpec{}, fmt.Errorf("claiming proxy port %d: %w", desired.ProxyPort, err)
		}
		existing := &elasti.ProxyPortClaim{}
		err = c.storage.Get(ctx, key, storage.GetOptions{}, existing)
		if err == nil {
			return specOf(existing)
		}
		if ctx.Err() == nil && isDamaged(err) {
			klog.FromContext(ctx).Error(err, "Failed to read the claim of a proxy port, not using the port for now: repair or delete the stored object", "proxyPort", desired.ProxyPort)
			return v1alpha1.ProxyPortClaimSpec{}, nil
		}
		if !storage.IsNotFound(err) {
			return v1alpha1.ProxyPortClaimSpec{}, fmt.Errorf("reading the claim of proxy port %d: %w", desired.ProxyPort, err)
		}
	}
	return v1alpha1.ProxyPortClaimSpec{}, fmt.Errorf("claiming proxy port %d: it was claimed and released by others %d times, try again", desired.ProxyPort, maxAttempts)
}

// isDamaged reports whether an error says that an object is stored and cannot be read. Any
// other error may be that of a storage which does not work at the moment. An etcd reports an
// object that no key decrypts as an internal error of the storage.
func isDamaged(err error) bool {
	return apierrors.IsStoreReadError(err) || storage.IsInternalError(err)
}

// Release gives a proxy port back, if it belongs to the ElastiService with that
// UID: the claim of another owner stays. A proxy port without a claim is no error.
func (c *Claims) Release(ctx context.Context, proxyPort int32, owner types.UID) error {
	key := c.key(proxyPort)
	ownedBy := func(_ context.Context, object runtime.Object) error {
		if other := object.(*elasti.ProxyPortClaim).Spec.Owner.UID; other != owner {
			return storage.NewInvalidObjError(key, fmt.Sprintf("it belongs to %s, not to %s", other, owner))
		}
		return nil
	}
	err := c.storage.Delete(ctx, key, &elasti.ProxyPortClaim{}, nil, ownedBy, nil, storage.DeleteOptions{})
	if err != nil && !storage.IsNotFound(err) && !storage.IsInvalidObj(err) {
		return fmt.Errorf("releasing proxy port %d: %w", proxyPort, err)
	}
	return nil
}

// List returns all claims. Those that are not stored with the encryption that is configured
// are written again: no client can do that, and a key that is not used any more may be
// removed.
func (c *Claims) List(ctx context.Context) ([]v1alpha1.ProxyPortClaimSpec, error) {
	list := &elasti.ProxyPortClaimList{}
	options := storage.ListOptions{
		Recursive: true,
		Predicate: storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), GetAttrs: getAttributes},
	}
	if err := c.storage.GetList(ctx, c.prefix, options, list); err != nil {
		return nil, fmt.Errorf("listing the proxy port claims: %w", err)
	}
	if c.encrypted {
		c.rewrite(ctx, list.Items)
	}
	claims := make([]v1alpha1.ProxyPortClaimSpec, 0, len(list.Items))
	for i := range list.Items {
		spec, err := specOf(&list.Items[i])
		if err != nil {
			return nil, err
		}
		claims = append(claims, spec)
	}
	return claims, nil
}

// rewrite updates claims without a change, by which the storage writes those whose encryption
// is not the configured one.
func (c *Claims) rewrite(ctx context.Context, claims []elasti.ProxyPortClaim) {
	unchanged := func(input runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		return input, nil, nil
	}
	group := errgroup.Group{}
	group.SetLimit(rewriters)
	for i := range claims {
		proxyPort := claims[i].Spec.ProxyPort
		group.Go(func() error {
			err := c.storage.GuaranteedUpdate(ctx, c.key(proxyPort), &elasti.ProxyPortClaim{}, false, nil, unchanged, nil)
			if storage.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to encrypt the claims of proxy ports as configured, will retry with the next leader: keep the previous keys")
	}
}

func (c *Claims) key(proxyPort int32) string { return c.prefix + "/" + strconv.Itoa(int(proxyPort)) }

func specOf(claim *elasti.ProxyPortClaim) (v1alpha1.ProxyPortClaimSpec, error) {
	spec := v1alpha1.ProxyPortClaimSpec{}
	err := v1alpha1.Convert_elasti_ProxyPortClaimSpec_To_v1alpha1_ProxyPortClaimSpec(&claim.Spec, &spec, nil)
	return spec, err
}

func getAttributes(object runtime.Object) (labels.Set, fields.Set, error) {
	claim, ok := object.(*elasti.ProxyPortClaim)
	if !ok {
		return nil, nil, fmt.Errorf("expected a ProxyPortClaim, got %T", object)
	}
	return labels.Set(claim.Labels), generic.ObjectMetaFieldsSet(&claim.ObjectMeta, false), nil
}
