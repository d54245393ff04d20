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
	"testing"
	"testing/synctest"
	"time"

	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
)

// silentStorage has a store that does not respond.
type silentStorage struct {
	storage.Interface
}

func (silentStorage) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (silentStorage) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// Watches are served from the watch cache while its store does not respond.
func TestWatchDoesNotWaitForAStoreThatDoesNotRespond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &REST{Store: &genericregistry.Store{Storage: genericregistry.DryRunnableStorage{Storage: silentStorage{}}}}
		began := time.Now()
		if !r.hasReached(t.Context(), "7") {
			t.Error("a watch is rejected while the store does not respond")
		}
		if waited := time.Since(began); waited != currentVersionTimeout {
			t.Errorf("the watch waited for %s, want %s", waited, currentVersionTimeout)
		}
	})
}
