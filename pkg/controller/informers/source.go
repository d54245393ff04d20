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

package informers

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Key identifies a watch: all that need the same resource in the same scope
// share one.
type Key struct {
	// Resource is what is watched.
	Resource schema.GroupVersionResource
	// Namespace is the namespace that is watched, or empty for all.
	Namespace string
}

// Source describes how a watch is made, what is kept of its objects, and what is
// called for changes.
type Source struct {
	Key
	// List and Watch read the objects.
	List  func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error)
	Watch func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
	// Client is what List and Watch use. It only determines whether lists
	// are streamed, which the fake clients cannot do.
	Client any
	// Example is an object of the type that List and Watch return.
	Example runtime.Object
	// Transform returns what is kept of an object, which must have object
	// metadata. It may be called with its own result, and then returns it.
	Transform cache.TransformFunc
	// Indexers index what Transform returned.
	Indexers cache.Indexers
	// Changed is called after what is kept of an object changed: after is nil
	// for an object that was deleted, before is nil when what was kept of it is
	// not at hand. It may be called from several goroutines at a time, also
	// twice for one change, and must not block.
	Changed func(before, after any)
	// Deleted, if set, is called before Changed when the watch has reported that an
	// object was deleted, with what was kept of it. It is not called for an object
	// that is missing from a list: what serves the lists may have lost it. It must
	// not block.
	Deleted func(last any)
	// Synced, if set, is called when the cache is synced for the first time, after
	// Changed was called for each object, and again after each restart.
	Synced func()
	// Failed, if set, is called when the watch begins to fail, or fails for another
	// reason than before: when it is restarted because of that, and as soon as it is
	// forbidden before its cache is synced.
	Failed func()
}
