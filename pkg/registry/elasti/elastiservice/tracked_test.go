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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// restoredStore is a storage without objects. It is for one goroutine at a time.
type restoredStore struct {
	storage.Interface
	// current is the version of the store, and cached the one that the watch cache has.
	current, cached uint64
	// requested has the versions of all reads.
	requested []string
}

func (*restoredStore) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (s *restoredStore) GetCurrentResourceVersion(context.Context) (uint64, error) {
	return s.current, nil
}

func (s *restoredStore) read(resourceVersion string) error {
	s.requested = append(s.requested, resourceVersion)
	requested, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err == nil && requested > s.cached {
		return storage.NewTooLargeResourceVersionError(requested, s.cached, 1)
	}
	return err
}

func (s *restoredStore) Get(_ context.Context, _ string, options storage.GetOptions, _ runtime.Object) error {
	return s.read(options.ResourceVersion)
}

func (s *restoredStore) GetList(_ context.Context, _ string, options storage.ListOptions, _ runtime.Object) error {
	return s.read(options.ResourceVersion)
}

// The store has lost what this server wrote last. Until it has had as many changes, no read
// would see the versions of these writes.
func TestReadsDoNotWaitForWritesThatTheStoreHasLost(t *testing.T) {
	shop := genericapirequest.WithNamespace(t.Context(), "shop")
	written := &elasti.ElastiService{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", ResourceVersion: "10000"}, Spec: elasti.ElastiServiceSpec{Service: "cart"}}
	for name, read := range map[string]func(store *genericregistry.Store) (again func() error){
		"the ElastiServices that name a Service": func(store *genericregistry.Store) func() error {
			claims := &serviceClaims{store: store}
			claims.written.Observe(store.Storage.Versioner(), "shop/cart", written)
			return func() error { return claims.check(shop, written) }
		},
		"the requests for sleep": func(store *genericregistry.Store) func() error {
			targets := &targets{elastiServices: store}
			targets.sleepRequests.Observe(store.Storage.Versioner(), "shop/cart", written)
			return func() error {
				_, err := targets.getWithSleepRequest(shop, "cart")
				return err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			restored := &restoredStore{current: 10000, cached: 9999}
			again := read(&genericregistry.Store{
				NewFunc:     func() runtime.Object { return &elasti.ElastiService{} },
				NewListFunc: func() runtime.Object { return &elasti.ElastiServiceList{} },
				KeyRootFunc: func(context.Context) string { return "/" },
				KeyFunc:     func(_ context.Context, name string) (string, error) { return name, nil },
				Storage:     genericregistry.DryRunnableStorage{Storage: restored},
			})
			expect := func(works bool, want ...string) {
				t.Helper()
				restored.requested = nil
				if err := again(); (err == nil) != works {
					t.Errorf("reading returned %v", err)
				}
				if !slices.Equal(restored.requested, want) {
					t.Errorf("read at the versions %q, want %q", restored.requested, want)
				}
			}
			// The watch cache is behind the store, which has the write.
			expect(false, "10000")
			restored.current, restored.cached = 5000, 5000
			expect(true, "10000", "5000")
			expect(true, "5000")
		})
	}
}
