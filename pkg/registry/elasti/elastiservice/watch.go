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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/watch"
)

// reachedPatience is how long a watch waits for the version that the store has
// reached. A watch cache serves watches while its store does not answer.
const reachedPatience = time.Second

// Watch implements rest.Watcher. A version that the store has not reached yet
// is from another one, which this one has replaced: a backup, or another
// backend. Its watchers are told to list again (410). They would see nothing
// otherwise until this store has as many changes behind it, and resolvers are
// among them.
func (r *REST) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	if options != nil && !r.hasReached(ctx, options.ResourceVersion) {
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("resource version %s is newer than anything in the store, which has been replaced or restored: list again", options.ResourceVersion))
	}
	return r.Store.Watch(ctx, options)
}

// hasReached tells whether the store has reached a version. What is no version,
// and a store that does not answer in time, are left to the watch.
func (r *REST) hasReached(ctx context.Context, resourceVersion string) bool {
	version, err := r.Storage.Versioner().ParseResourceVersion(resourceVersion)
	if err != nil || version == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, reachedPatience)
	defer cancel()
	// A watch cache may be behind the server that the version is from; the store
	// behind both is not.
	current, err := r.Storage.Storage.GetCurrentResourceVersion(ctx)
	return err != nil || version <= current
}
