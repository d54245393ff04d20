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
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/options"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/cluster"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/embedded"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/etcd"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/guard"
)

// predecessorTimeout is how long the embedded store waits for the process
// before it, which may still be finishing its requests in an upgrade.
const predecessorTimeout = 15 * time.Second

// backend is where objects are stored: in this process, or elsewhere.
type backend struct {
	// wait returns when the store has failed, or when ctx ends, with nil.
	wait func(ctx context.Context) error
	// close ends the store after its last use.
	close func() error
	// watched and unwatched return the REST options of resources with and without
	// a watch cache.
	watched, unwatched func(generic.RESTOptionsGetter) generic.RESTOptionsGetter
	// check reports why the store cannot be read. It is nil for an etcd, which the
	// generic server checks.
	check func(ctx context.Context) error
	// identity is where the identity of the store is.
	identity guard.Store
}

// startBackend starts the backend when it runs in this process, and points etcd at it.
func startBackend(ctx context.Context, o *options.Options, host *rest.Config) (*backend, error) {
	switch o.Storage.Backend {
	case options.StorageCluster:
		store, err := cluster.NewBackend(ctx, host)
		if err != nil {
			return nil, err
		}
		return newClusterBackend(store, o.Recommended.Etcd)
	case options.StorageEmbedded:
		server, err := embedded.Start(ctx, embedded.Options{DataDir: o.Storage.DataDir, LockTimeout: predecessorTimeout})
		if err != nil {
			return nil, err
		}
		embedded.RegisterMetrics(legacyregistry.Registerer(), server)
		return newEmbeddedBackend(server, o.Recommended.Etcd)
	default:
		return newEtcdBackend(o.Recommended.Etcd)
	}
}

func newClusterBackend(store *cluster.Backend, o *genericoptions.EtcdOptions) (*backend, error) {
	check, err := store.NewCheck(elasti.Resource("elastiservices"), "ElastiService")
	if err != nil {
		return nil, err
	}
	identity, err := store.NewIdentity(elasti.Resource("elastiservices"), "ElastiService")
	if err != nil {
		return nil, err
	}
	return &backend{
		wait:  func(context.Context) error { return nil },
		close: func() error { return nil },
		watched: func(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
			return store.RESTOptions(getter, !hasWatchCache(o))
		},
		unwatched: func(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
			return store.RESTOptions(getter, true)
		},
		check:    check,
		identity: identity,
	}, nil
}

func newEtcdBackend(o *genericoptions.EtcdOptions) (*backend, error) {
	identity, err := etcd.NewIdentity(&o.StorageConfig)
	if err != nil {
		return nil, err
	}
	return &backend{
		wait:      func(context.Context) error { return nil },
		close:     identity.Close,
		watched:   func(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter { return getter },
		unwatched: func(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter { return uncached{getter} },
		identity:  identity,
	}, nil
}

// newEmbeddedBackend returns the backend in a running embedded store, which it closes.
func newEmbeddedBackend(server *embedded.Server, o *genericoptions.EtcdOptions) (*backend, error) {
	o.StorageConfig.Transport.ServerList = []string{server.Endpoint()}
	started, err := newEtcdBackend(o)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	closeClient := started.close
	started.wait = server.Wait
	started.close = func() error { return errors.Join(closeClient(), server.Close()) }
	return started, nil
}

// applyRecommended applies the recommended options to the config of a generic server, and
// sets its REST options. Without an etcd there are no health checks of one either.
func applyRecommended(config *genericapiserver.RecommendedConfig, o *options.Options) error {
	if o.Storage.Backend != options.StorageCluster {
		return o.Recommended.ApplyTo(config)
	}
	etcd := o.Recommended.Etcd
	withoutEtcd := *o.Recommended
	withoutEtcd.Etcd = nil
	if err := withoutEtcd.ApplyTo(config); err != nil {
		return err
	}
	storage := etcd.StorageConfig
	storage.StorageObjectCountTracker = config.StorageObjectCountTracker
	config.RESTOptionsGetter = etcd.CreateRESTOptionsGetter(&genericoptions.SimpleStorageFactory{StorageConfig: storage}, nil)
	return nil
}

// hasWatchCache reports whether every resource has a watch cache, as by default.
func hasWatchCache(etcd *genericoptions.EtcdOptions) bool {
	return etcd.EnableWatchCache && len(etcd.WatchCacheSizes) == 0
}

// uncached makes storages without a watch cache, for objects that are read once, at
// the start.
type uncached struct {
	generic.RESTOptionsGetter
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (u uncached) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	found, err := u.RESTOptionsGetter.GetRESTOptions(resource, example)
	found.Decorator = generic.UndecoratedStorage
	return found, err
}
