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

package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/options"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/cluster"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/embedded"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/storecopy"
)

// CopyStorage copies all that one store has to another one. No server may use them.
func CopyStorage(ctx context.Context, o *options.StorageCopy) (result storecopy.Result, err error) {
	// A copy must not lack what is damaged without a word. What is to be replaced may be
	// damaged.
	from, err := openStore(ctx, o.From, failOnDamage)
	if err != nil {
		return result, fmt.Errorf("opening the store that is copied: %w", err)
	}
	defer func() { err = errors.Join(err, from.close()) }()
	damage := failOnDamage
	if o.Overwrite {
		damage = leaveDamageOut
	}
	to, err := openStore(ctx, o.To, damage)
	if err != nil {
		return result, fmt.Errorf("opening the store that becomes the copy: %w", err)
	}
	defer func() { err = errors.Join(err, to.close()) }()
	return storecopy.Copy(ctx, &from.Store, &to.Store, storecopy.Options{Overwrite: o.Overwrite, Once: o.Once})
}

// onDamage says what a list does in the host cluster when an object in it is damaged.
type onDamage bool

const (
	failOnDamage   onDamage = true
	leaveDamageOut onDamage = false
)

// openedStore is a store outside of a server.
type openedStore struct {
	storecopy.Store
	// closers end what the store consists of, the last one first.
	closers []func() error
}

func (s *openedStore) close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	return errors.Join(errs...)
}

func openStore(ctx context.Context, location *options.StoreLocation, damage onDamage) (opened *openedStore, err error) {
	store, err := openBackend(ctx, location, damage)
	if err != nil {
		return nil, err
	}
	opened = &openedStore{closers: []func() error{store.close}}
	defer func() {
		if err != nil {
			err = errors.Join(err, opened.close())
		}
	}()
	opened.Identity = store.identity
	opened.Description = describe(location)
	getter, closeTransformers, err := restOptionsOutsideOfServer(ctx, location.Etcd)
	if err != nil {
		return nil, err
	}
	opened.closers = append(opened.closers, closeTransformers)
	getter = store.unwatched(getter)
	for _, resource := range []storecopy.Resource{
		{
			Name:    "elastiservices",
			New:     func() runtime.Object { return &elasti.ElastiService{} },
			NewList: func() runtime.Object { return &elasti.ElastiServiceList{} },
		},
		{
			Name:    "proxyportclaims",
			New:     func() runtime.Object { return &elasti.ProxyPortClaim{} },
			NewList: func() runtime.Object { return &elasti.ProxyPortClaimList{} },
		},
	} {
		if err := opened.add(getter, elasti.Resource(resource.Name), resource); err != nil {
			return nil, err
		}
	}
	return opened, nil
}

// add completes a resource with its storage, which has the keys that it has in a server.
func (s *openedStore) add(getter generic.RESTOptionsGetter, name schema.GroupResource, resource storecopy.Resource) error {
	restOptions, err := getter.GetRESTOptions(name, resource.New())
	if err != nil {
		return fmt.Errorf("finding the storage of %s: %w", name, err)
	}
	prefix := "/" + strings.Trim(restOptions.ResourcePrefix, "/")
	resource.Prefix = prefix + "/"
	keyOf := storage.NoNamespaceKeyFunc
	attributes := storage.DefaultClusterScopedAttr
	if resource.Name == "elastiservices" {
		keyOf, attributes = storage.NamespaceKeyFunc, storage.DefaultNamespaceScopedAttr
	}
	resource.KeyOf = func(object runtime.Object) (string, error) { return keyOf(resource.Prefix, object) }
	made, destroy, err := restOptions.Decorator(restOptions.StorageConfig, prefix, resource.KeyOf, resource.New, resource.NewList, attributes, nil, &cache.Indexers{})
	if err != nil {
		return fmt.Errorf("creating the storage of %s: %w", name, err)
	}
	s.closers = append(s.closers, func() error {
		destroy()
		return nil
	})
	resource.Storage = made
	s.Resources = append(s.Resources, resource)
	return nil
}

func openBackend(ctx context.Context, location *options.StoreLocation, damage onDamage) (*backend, error) {
	switch location.Backend {
	case options.StorageCluster:
		host, err := hostConfig(location.Kubeconfig)
		if err != nil {
			return nil, err
		}
		store, err := cluster.NewBackend(ctx, host)
		if err != nil {
			return nil, err
		}
		if damage == failOnDamage {
			store = store.FailingOnDamage()
		}
		return newClusterBackend(store, location.Etcd)
	case options.StorageEmbedded:
		server, err := embedded.Start(ctx, embedded.Options{DataDir: location.DataDir})
		if err != nil {
			return nil, err
		}
		return newEmbeddedBackend(server, location.Etcd)
	default:
		return newEtcdBackend(location.Etcd)
	}
}

func describe(location *options.StoreLocation) string {
	switch location.Backend {
	case options.StorageEmbedded:
		return "the embedded store in " + location.DataDir
	case options.StorageEtcd:
		return fmt.Sprintf("the etcd %v with the prefix %s", location.Etcd.StorageConfig.Transport.ServerList, location.Etcd.StorageConfig.Prefix)
	default:
		return "the storage in the host cluster"
	}
}

// restOptionsOutsideOfServer returns the REST options that a server would have. The
// function ends what decrypts objects.
func restOptionsOutsideOfServer(ctx context.Context, etcd *genericoptions.EtcdOptions) (generic.RESTOptionsGetter, func() error, error) {
	factory := &genericoptions.SimpleStorageFactory{StorageConfig: etcd.StorageConfig}
	if etcd.EncryptionProviderConfigFilepath == "" {
		return etcd.CreateRESTOptionsGetter(factory, nil), func() error { return nil }, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	const reload = false
	encryption, err := encryptionconfig.LoadEncryptionConfig(ctx, etcd.EncryptionProviderConfigFilepath, reload, "")
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("reading the encryption configuration %s: %w", etcd.EncryptionProviderConfigFilepath, err)
	}
	closeTransformers := func() error {
		cancel()
		return nil
	}
	return etcd.CreateRESTOptionsGetter(factory, encryptionconfig.StaticTransformers(encryption.Transformers)), closeTransformers, nil
}
