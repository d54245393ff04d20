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

	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"

	"github.com/truefoundry/elasti-apiserver/pkg/registry/elasti/elastiservice/consistency"
)

// readTracked reads at the version that a tracker has for a key. A store that is behind that
// version was restored from an older backup: the tracker is lowered then, and the read made
// again.
func readTracked[T any](ctx context.Context, store *genericregistry.Store, tracker *consistency.KeyTracker, key string, read func(resourceVersion string) (T, error)) (T, error) {
	tracked := tracker.ResourceVersion(key)
	result, err := read(tracked)
	if !storage.IsTooLargeResourceVersion(err) {
		return result, err
	}
	// The watch cache has waited in vain, maybe for all the time that the caller had.
	current, cancel := context.WithTimeout(context.WithoutCancel(ctx), currentVersionTimeout)
	defer cancel()
	if version, err := store.Storage.Storage.GetCurrentResourceVersion(current); err == nil {
		tracker.Lower(version)
	}
	lowered := tracker.ResourceVersion(key)
	if lowered == tracked {
		// The watch cache is behind the store.
		return result, err
	}
	return read(lowered)
}
