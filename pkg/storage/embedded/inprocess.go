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

package embedded

import (
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
)

// InProcess returns the REST options of getter, with storages that have a watch
// cache and read, write and watch through the in-process client, which is faster
// than the socket that everything else uses.
//
// The server must be running for as long as such a storage is in use.
func (s *Server) InProcess(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return inProcess{getter, s}
}

type inProcess struct {
	generic.RESTOptionsGetter
	server *Server
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (p inProcess) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := p.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	options.Decorator = p.server.newCachedStorage
	return options, nil
}

// newCachedStorage is a generic.StorageDecorator. It does what
// registry.StorageWithCacher does, with the storage of newStorage.
func (s *Server) newCachedStorage(
	config *storagebackend.ConfigForResource,
	resourcePrefix string,
	keyFunc func(obj runtime.Object) (string, error),
	newFunc func() runtime.Object,
	newListFunc func() runtime.Object,
	attributes storage.AttrFunc,
	indexerFuncs storage.IndexerFuncs,
	indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	raw, closeRaw, err := s.newStorage(config, newFunc, newListFunc, resourcePrefix)
	if err != nil {
		return nil, nil, err
	}
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             raw,
		Versioner:           storage.APIObjectVersioner{},
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
		cached.Stop()
		closeRaw()
	}), nil
}

// newStorage does what factory.Create does, with the in-process client.
func (s *Server) newStorage(config *storagebackend.ConfigForResource, newFunc, newListFunc func() runtime.Object, resourcePrefix string) (storage.Interface, func(), error) {
	client, err := kubernetes.New(clientv3.Config{Endpoints: []string{s.endpoint}, Logger: s.etcd.Server.Logger()})
	if err != nil {
		return nil, nil, fmt.Errorf("creating the client of the store: %w", err)
	}
	functions := v3client.New(s.etcd.Server)
	closeClients := func() {
		// Both return that they are closed.
		_ = functions.Close()
		_ = client.Close()
	}
	// Only what is rare goes through the socket: compaction and the size.
	client.KV, client.Watcher = etcd3.NewETCDLatencyTracker(functions.KV), functions.Watcher
	var compactor etcd3.Compactor
	stopCompactor := func() {}
	if config.CompactionInterval != 0 {
		running := etcd3.StartCompactorPerEndpoint(client.Client, config.CompactionInterval)
		compactor, stopCompactor = running, running.Stop
	}
	transformer := config.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	versioner := storage.APIObjectVersioner{}
	decoder := etcd3.NewDefaultDecoder(config.Codec, versioner)
	deletesDamaged := utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
	if deletesDamaged {
		transformer = etcd3.WithCorruptObjErrorHandlingTransformer(transformer)
		decoder = etcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}
	store, err := etcd3.New(client, compactor, config.Codec, newFunc, newListFunc, config.Prefix, resourcePrefix, config.GroupResource,
		transformer, config.LeaseManagerConfig, decoder, versioner)
	if err != nil {
		stopCompactor()
		closeClients()
		return nil, nil, fmt.Errorf("creating the storage of %s: %w", config.GroupResource, err)
	}
	closeAll := func() {
		stopCompactor()
		store.Close()
		closeClients()
	}
	if deletesDamaged {
		return etcd3.NewStoreWithUnsafeCorruptObjectDeletion(store, config.GroupResource), closeAll, nil
	}
	return store, closeAll, nil
}
