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
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Backend makes storages in the host cluster.
type Backend struct {
	config *rest.Config
	client *http.Client
	// writer distinguishes this process's writes to progress markers from others.
	writer string
	logger klog.Logger
	// failsOnDamage makes a list fail that has a damaged object.
	failsOnDamage bool
}

// NewBackend returns the backend in a host cluster.
func NewBackend(ctx context.Context, host *rest.Config) (*Backend, error) {
	config := rest.AddUserAgent(rest.CopyConfig(host), "storage")
	// The host cluster limits by its own flow control. A limit here would let
	// requests wait behind each other that have nothing to do with each other.
	config.QPS = -1
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("creating the client for the storage in the host cluster: %w", err)
	}
	feature.DefaultFeatureSupportChecker.CheckClient(ctx, progressSupport{}, storage.RequestWatchProgress)
	return &Backend{config: config, client: client, writer: string(uuid.NewUUID()), logger: klog.FromContext(ctx)}, nil
}

// FailingOnDamage returns a backend whose lists fail when a stored object is damaged, for
// readers that must not do without it.
func (b *Backend) FailingOnDamage() *Backend {
	failing := *b
	failing.failsOnDamage = true
	return &failing
}

// storedPrefix is what the kinds of stored objects begin with.
const storedPrefix = "Stored"

// checkTimeout bounds one check of whether the host cluster responds.
const checkTimeout = 2 * time.Second

// NewCheck returns a function that reports why the stored objects of a resource
// of a kind cannot be read, or nil when they can. It is safe for concurrent use.
func (b *Backend) NewCheck(resource schema.GroupResource, kind string) (func(ctx context.Context) error, error) {
	host, err := newHostClient(b.config, b.client, hostResource(resource), storedPrefix+kind)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		if _, err := host.page(ctx, &metav1.ListOptions{Limit: 1}); err != nil {
			return asStorageError(err, "reading "+host.resource)
		}
		return nil
	}, nil
}

// RESTOptions returns the options of a getter with this backend in the place of
// etcd. Resources that have a watch cache keep it unless uncached is true.
func (b *Backend) RESTOptions(getter generic.RESTOptionsGetter, uncached bool) generic.RESTOptionsGetter {
	return restOptions{getter, b, uncached}
}

type restOptions struct {
	generic.RESTOptionsGetter
	backend  *Backend
	uncached bool
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o restOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := o.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	options.Decorator = o.backend.newCachedStorage
	if o.uncached {
		options.Decorator = o.backend.newUncachedStorage
	}
	return options, nil
}

// newCachedStorage is a generic.StorageDecorator that makes storages with a watch
// cache.
func (b *Backend) newCachedStorage(
	config *storagebackend.ConfigForResource,
	resourcePrefix string,
	keyFunc func(obj runtime.Object) (string, error),
	newFunc func() runtime.Object,
	newListFunc func() runtime.Object,
	attributes storage.AttrFunc,
	indexerFuncs storage.IndexerFuncs,
	indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	raw, closeRaw, err := b.newStore(config, resourcePrefix, newFunc)
	if err != nil {
		return nil, nil, err
	}
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             raw,
		Versioner:           raw.versioner,
		GroupResource:       config.GroupResource,
		EventsHistoryWindow: config.EventsHistoryWindow,
		ResourcePrefix:      resourcePrefix,
		KeyFunc:             keyFunc,
		NewFunc:             newFunc,
		NewListFunc:         newListFunc,
		GetAttrsFunc:        attributes,
		IndexerFuncs:        indexerFuncs,
		Indexers:            indexers,
		Codec:               config.Codec,
	})
	if err != nil {
		closeRaw()
		return nil, nil, fmt.Errorf("creating the watch cache of %s: %w", config.GroupResource, err)
	}
	delegator := cacher.NewCacheDelegator(cached, raw)
	return delegator, sync.OnceFunc(func() {
		delegator.Stop()
		// Ends the readers that wait for the watch cache.
		closeRaw()
		cached.Stop()
	}), nil
}

// newUncachedStorage is a generic.StorageDecorator that makes storages which read
// from the host cluster each time.
func (b *Backend) newUncachedStorage(
	config *storagebackend.ConfigForResource,
	resourcePrefix string,
	_ func(obj runtime.Object) (string, error),
	newFunc func() runtime.Object,
	_ func() runtime.Object,
	_ storage.AttrFunc,
	_ storage.IndexerFuncs,
	_ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	return b.newStore(config, resourcePrefix, newFunc)
}

// newStore makes the storage of a resource. The function ends its goroutines.
func (b *Backend) newStore(config *storagebackend.ConfigForResource, resourcePrefix string, newFunc func() runtime.Object) (*store, func(), error) {
	prefix := strings.TrimSuffix(resourcePrefix, "/") + "/"
	if prefix == "/" || !strings.HasPrefix(prefix, "/") {
		return nil, nil, fmt.Errorf("the prefix %q of %s must begin with a slash and a name", resourcePrefix, config.GroupResource)
	}
	if config.Transformer != nil {
		return nil, nil, errors.New("objects in the host cluster are encrypted by the host cluster: leave --encryption-provider-config away, and let that of its API servers name the resources of " + GroupVersion.Group)
	}
	kind := storedPrefix + reflect.TypeOf(newFunc()).Elem().Name()
	host, err := newHostClient(b.config, b.client, hostResource(config.GroupResource), kind)
	if err != nil {
		return nil, nil, err
	}
	versioner := storage.APIObjectVersioner{}
	made := &store{
		host:      host,
		codec:     config.Codec,
		decoder:   etcd3.NewDefaultDecoder(config.Codec, versioner),
		versioner: versioner,
		newFunc:   newFunc,
		prefix:    prefix,
		resource:  config.GroupResource,
		progress:  newProgress(host.touch, b.writer, clock.RealClock{}),
		logger:    klog.LoggerWithValues(b.logger, "resource", config.GroupResource),

		failsOnDamage: b.failsOnDamage,
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), made.logger))
	var running sync.WaitGroup
	running.Go(func() { made.progress.run(ctx) })
	return made, sync.OnceFunc(func() {
		cancel()
		running.Wait()
	}), nil
}

// progressSupport makes the watch cache request progress. The watch cache decides by
// the version of an etcd: progressSupport returns the first one that supports it.
type progressSupport struct{}

// Endpoints returns the name under which Status is called.
func (progressSupport) Endpoints() []string { return []string{GroupVersion.Group} }

// Status returns the version of an etcd that supports requests for progress.
func (progressSupport) Status(context.Context, string) (*clientv3.StatusResponse, error) {
	return &clientv3.StatusResponse{Version: "3.5.13"}, nil
}
