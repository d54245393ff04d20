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

package elastiservice

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/client-go/tools/cache"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// readTimeout is how long a wake waits for the storage before it continues with
// the last known object. A watch cache responds at once; the storage behind it is
// read only for objects that are newer than the cache, and while the cache is not
// ready.
const readTimeout = 2 * time.Second

// LastKnown holds every ElastiService as it was last read, so that wakes work
// while the storage cannot be read: the watch cache serves nothing from the
// failure of its watch until it has listed again. The objects are shared with the
// watch cache. It is safe for concurrent use.
type LastKnown struct {
	elastiServices *genericregistry.Store
	objects        cache.Store
}

func newLastKnown(elastiServices *genericregistry.Store) *LastKnown {
	return &LastKnown{elastiServices: elastiServices, objects: cache.NewStore(cache.MetaNamespaceKeyFunc)}
}

// Run follows the watch cache until ctx ends.
func (k *LastKnown) Run(ctx context.Context) {
	source := &cache.ListWatch{ListWithContextFunc: k.list, WatchFuncWithContext: k.watch}
	reflector := cache.NewReflectorWithOptions(source, &elasti.ElastiService{}, k.objects, cache.ReflectorOptions{Name: "last known ElastiServices"})
	reflector.RunWithContext(ctx)
}

// get returns an ElastiService as it was last read, which must not be changed.
func (k *LastKnown) get(name types.NamespacedName) (*elasti.ElastiService, bool) {
	found, exists, err := k.objects.GetByKey(name.String())
	if err != nil || !exists {
		return nil, false
	}
	return found.(*elasti.ElastiService), true
}

func (k *LastKnown) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	internal, err := internalListOptions(options)
	if err != nil {
		return nil, err
	}
	listed, err := k.elastiServices.List(ctx, internal)
	if err != nil {
		return nil, fmt.Errorf("listing elastiservices: %w", err)
	}
	return listed, nil
}

func (k *LastKnown) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	internal, err := internalListOptions(options)
	if err != nil {
		return nil, err
	}
	events, err := k.elastiServices.Watch(ctx, internal)
	if err != nil {
		return nil, fmt.Errorf("watching elastiservices: %w", err)
	}
	return watch.Filter(events, func(event watch.Event) (watch.Event, bool) {
		if shared, ok := event.Object.(runtime.CacheableObject); ok {
			event.Object = shared.GetObject()
		}
		return event, true
	}), nil
}
