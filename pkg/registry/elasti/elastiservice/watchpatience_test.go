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

// silentStorage is one whose store does not answer.
type silentStorage struct {
	storage.Interface
}

func (silentStorage) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (silentStorage) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// Watches are served from the watch cache while the store behind it is away.
func TestWatchDoesNotWaitForAStoreThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &REST{Store: &genericregistry.Store{Storage: genericregistry.DryRunnableStorage{Storage: silentStorage{}}}}
		began := time.Now()
		if !r.hasReached(t.Context(), "7") {
			t.Error("a store that does not answer refuses a watch")
		}
		if waited := time.Since(began); waited != reachedPatience {
			t.Errorf("the watch waited for %s, want %s", waited, reachedPatience)
		}
	})
}
