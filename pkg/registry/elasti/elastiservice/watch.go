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

// currentVersionTimeout is how long a watch waits for the current version of the
// store. A watch cache serves watches while its store does not respond.
const currentVersionTimeout = time.Second

// Watch implements rest.Watcher. A version that the store has not reached yet is
// from a store that this one has replaced, as when a backup is restored or the
// backend is changed. Such a watch is rejected with 410, so that the client lists
// again. Clients, resolvers among them, would otherwise see nothing until this
// store has had as many changes.
func (r *REST) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	if options != nil && !r.hasReached(ctx, options.ResourceVersion) {
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("resource version %s is newer than anything in the store, which has been replaced or restored: list again", options.ResourceVersion))
	}
	return r.Store.Watch(ctx, options)
}

// hasReached reports whether the store has reached a version. It returns true for
// what is not a version, and when the store does not respond in time: the watch
// handles these.
func (r *REST) hasReached(ctx context.Context, resourceVersion string) bool {
	version, err := r.Storage.Versioner().ParseResourceVersion(resourceVersion)
	if err != nil || version == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, currentVersionTimeout)
	defer cancel()
	// The watch cache may be behind the server that the version is from; the store
	// is not.
	current, err := r.Storage.Storage.GetCurrentResourceVersion(ctx)
	return err != nil || version <= current
}
