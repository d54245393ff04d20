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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/watch"
)

// Watch implements rest.Watcher. A version that the store has not reached yet
// is from another one, which this one has replaced: a backup, or another
// backend. Its watchers are told to list again (410). They would see nothing
// otherwise until this store has as many changes behind it, and resolvers are
// among them.
func (r *REST) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	if options != nil {
		if err := r.expectReached(ctx, options.ResourceVersion); err != nil {
			return nil, err
		}
	}
	return r.Store.Watch(ctx, options)
}

// expectReached returns an error when the store has not reached a version. What
// is no version is left to the store.
func (r *REST) expectReached(ctx context.Context, resourceVersion string) error {
	version, err := r.Storage.Versioner().ParseResourceVersion(resourceVersion)
	if err != nil || version == 0 {
		return nil
	}
	// A watch cache may be behind the server that the version is from; the store
	// behind both is not.
	current, err := r.Storage.Storage.GetCurrentResourceVersion(ctx)
	if err != nil || version <= current {
		// A store that does not answer lets the watch fail, or answers it later.
		return nil
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("resource version %d is newer than anything in the store (%d), which has been replaced or restored: list again", version, current))
}
