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

package options

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/cluster"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/embedded"
)

// StorageBackend names where ElastiServices are stored.
type StorageBackend string

const (
	// StorageEtcd is an external etcd, or a store with its protocol.
	StorageEtcd StorageBackend = "etcd"
	// StorageCluster is the host cluster: objects of CustomResourceDefinitions that
	// are for storage only.
	StorageCluster StorageBackend = "cluster"
	// StorageEmbedded is an etcd inside of this process.
	StorageEmbedded StorageBackend = "embedded"
)

// predecessorTimeout is how long the embedded store waits for the process
// before it, which may still be finishing its requests in an upgrade.
const predecessorTimeout = 15 * time.Second

// Storage chooses the backend of the registry. Only this type knows which backends
// there are.
type Storage struct {
	// Backend is cluster, etcd or embedded. Empty means etcd when --etcd-servers is
	// given; otherwise it must be chosen.
	Backend StorageBackend
	// DataDir is the folder of the embedded store.
	DataDir string
}

// AddFlags adds the flags that choose the backend.
func (o *Storage) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar((*string)(&o.Backend), "storage", string(o.Backend),
		"Where ElastiServices are stored: cluster (custom resources of the host cluster, which must have been deployed), etcd (an external one, see --etcd-servers) or embedded (an etcd inside this process, see --data-dir). Defaults to etcd when --etcd-servers is given.")
	flags.StringVar(&o.DataDir, "data-dir", o.DataDir,
		"The folder of the embedded store. One process at a time can use it.")
}

// Complete derives the backend from the other flags when it is not given.
func (o *Storage) Complete(etcd *genericoptions.EtcdOptions) {
	if o.Backend == "" && len(etcd.StorageConfig.Transport.ServerList) > 0 {
		o.Backend = StorageEtcd
	}
}

// Validate checks that the flags of the chosen backend, and only those, are given.
func (o *Storage) Validate(etcd *genericoptions.EtcdOptions) []error {
	servers := etcd.StorageConfig.Transport.ServerList
	var errs []error
	switch o.Backend {
	case StorageEtcd:
		if len(servers) == 0 {
			errs = append(errs, errors.New("--storage=etcd needs --etcd-servers"))
		}
		if o.DataDir != "" {
			errs = append(errs, errors.New("--data-dir is for --storage=embedded only"))
		}
	case StorageEmbedded:
		if o.DataDir == "" {
			errs = append(errs, errors.New("--storage=embedded needs --data-dir"))
		}
		if len(servers) > 0 {
			errs = append(errs, errors.New("--etcd-servers is for --storage=etcd only"))
		}
	case StorageCluster:
		errs = append(errs, o.validateCluster(etcd)...)
	case "":
		errs = append(errs, errors.New("choose where ElastiServices are stored: --storage=cluster, --storage=embedded with --data-dir, or --etcd-servers"))
	default:
		errs = append(errs, fmt.Errorf("--storage is %q, but must be one of %s", o.Backend, strings.Join([]string{string(StorageCluster), string(StorageEtcd), string(StorageEmbedded)}, ", ")))
	}
	return errs
}

// validateCluster checks that the flags of the other backends are not given.
func (o *Storage) validateCluster(etcd *genericoptions.EtcdOptions) []error {
	var errs []error
	if o.DataDir != "" {
		errs = append(errs, errors.New("--data-dir is for --storage=embedded only"))
	}
	if len(etcd.StorageConfig.Transport.ServerList) > 0 {
		errs = append(errs, errors.New("--etcd-servers is for --storage=etcd only"))
	}
	if etcd.EncryptionProviderConfigFilepath != "" {
		errs = append(errs, errors.New("--encryption-provider-config is not for --storage=cluster: the host cluster encrypts what it stores, name the resources of "+cluster.GroupVersion.Group+" in its own configuration"))
	}
	return errs
}

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
}

// start starts the backend when it runs in this process, and points etcd at it.
func (o *Storage) start(ctx context.Context, etcd *genericoptions.EtcdOptions, host *rest.Config) (*backend, error) {
	external := &backend{
		wait:      func(context.Context) error { return nil },
		close:     func() error { return nil },
		watched:   func(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter { return getter },
		unwatched: func(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter { return uncached{getter} },
	}
	switch o.Backend {
	case StorageCluster:
		store, err := cluster.NewBackend(ctx, host)
		if err != nil {
			return nil, err
		}
		if external.check, err = store.NewCheck(elasti.Resource("elastiservices"), "ElastiService"); err != nil {
			return nil, err
		}
		external.watched = func(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
			return store.RESTOptions(getter, !hasWatchCache(etcd))
		}
		external.unwatched = func(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
			return store.RESTOptions(getter, true)
		}
		return external, nil
	case StorageEmbedded:
		return o.startEmbedded(ctx, etcd)
	default:
		return external, nil
	}
}

func (o *Storage) startEmbedded(ctx context.Context, etcd *genericoptions.EtcdOptions) (*backend, error) {
	server, err := embedded.Start(ctx, embedded.Options{DataDir: o.DataDir, LockTimeout: predecessorTimeout})
	if err != nil {
		return nil, err
	}
	etcd.StorageConfig.Transport.ServerList = []string{server.Endpoint()}
	return &backend{
		wait:  server.Wait,
		close: server.Close,
		watched: func(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
			if hasWatchCache(etcd) {
				return server.InProcess(getter)
			}
			return getter
		},
		unwatched: func(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter { return uncached{getter} },
	}, nil
}

// applyTo sets the REST options of a generic server that has the recommended
// options. Without an etcd there are no health checks of one either.
func (o *Storage) applyTo(config *genericapiserver.RecommendedConfig, recommended *genericoptions.RecommendedOptions) error {
	if o.Backend != StorageCluster {
		return recommended.ApplyTo(config)
	}
	etcd := recommended.Etcd
	withoutEtcd := *recommended
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
	options, err := u.RESTOptionsGetter.GetRESTOptions(resource, example)
	options.Decorator = generic.UndecoratedStorage
	return options, err
}
