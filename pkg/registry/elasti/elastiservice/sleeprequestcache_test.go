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
	"slices"
	"strconv"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// laggingCache is a storage whose watch cache is behind what was written. It is for one
// goroutine at a time.
type laggingCache struct {
	storage.Interface
	// written is the version of the last write, cached the one that the cache has.
	written, cached uint64
	// waited has the keys of which reads waited for the cache, in vain.
	waited []string
}

func (*laggingCache) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (c *laggingCache) Get(ctx context.Context, key string, options storage.GetOptions, _ runtime.Object) error {
	requested, err := strconv.ParseUint(options.ResourceVersion, 10, 64)
	if err != nil || requested <= c.cached {
		return err
	}
	c.waited = append(c.waited, key)
	<-ctx.Done()
	return ctx.Err()
}

func (c *laggingCache) GuaranteedUpdate(_ context.Context, _ string, out runtime.Object, _ bool, _ *storage.Preconditions, _ storage.UpdateFunc, _ runtime.Object) error {
	c.written++
	return c.Versioner().UpdateObject(out, c.written)
}

// A tenant that requests sleep again and again delays no wake of another one.
func TestAWakeWaitsForRequestsForSleepOfItsOwnTargetAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := &laggingCache{}
		store := &genericregistry.Store{
			NewFunc: func() runtime.Object { return &elasti.ElastiService{} },
			KeyFunc: func(ctx context.Context, name string) (string, error) {
				return genericapirequest.NamespaceValue(ctx) + "/" + name, nil
			},
			UpdateStrategy: statusStrategy{},
			Storage:        genericregistry.DryRunnableStorage{Storage: cache},
		}
		targets := &targets{elastiServices: store, statuses: store, lastKnown: newLastKnown(store)}
		shop, other := genericapirequest.WithNamespace(t.Context(), "shop"), genericapirequest.WithNamespace(t.Context(), "other")
		requestSleep := func(ctx context.Context, name string) {
			t.Helper()
			if err := targets.requestSleep(ctx, name, metav1.Now(), nil); err != nil {
				t.Fatal(err)
			}
		}
		// The reads of a wake of a target that has the ElastiServices cart and cart-grpc.
		read := func(want ...string) {
			t.Helper()
			cache.waited = nil
			_, _ = targets.getCached(shop, "cart")
			cart := sleeping()
			cart.Status.TargetSharedWith = []string{"cart-grpc"}
			targets.withSleepRequest(shop, cart)
			if !slices.Equal(cache.waited, want) {
				t.Errorf("the wake waited for %q, want %q", cache.waited, want)
			}
		}
		requestSleep(other, "cart")
		requestSleep(shop, "basket")
		read()
		requestSleep(shop, "cart")
		read("shop/cart")
		requestSleep(shop, "cart-grpc")
		read("shop/cart", "shop/cart-grpc")
		cache.cached = cache.written
		requestSleep(other, "cart")
		read()
	})
}
