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

package target

import (
	"context"
	"errors"
	"fmt"
	"sync"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// targetID identifies a target, whatever the spelling of its kind is.
type targetID struct {
	resource schema.GroupVersionResource
	object   types.NamespacedName
}

// targetUse is the watch of an ElastiService for its target. It is used only by the
// worker that processes the ElastiService.
type targetUse struct {
	id     targetID
	handle *informers.Handle
	// scale is the scale that was read when the object had version, for kinds whose
	// objects do not have it.
	scale   *Scale
	version string
}

// ScaleReader reads the scales of targets.
type ScaleReader interface {
	Resolve(ctx context.Context, target scaling.Target) (schema.GroupVersionResource, error)
	Get(ctx context.Context, target scaling.Target) (*autoscalingv1.Scale, error)
}

// WatchesOptions configure Watches. All fields are required.
type WatchesOptions struct {
	// Informers and Dynamic watch the targets.
	Informers *informers.Manager
	Dynamic   dynamic.Interface
	// Scaling reads the scales of kinds whose objects do not have them.
	Scaling ScaleReader
	// Scope returns the namespace of the watch for the targets of a namespace.
	Scope func(namespace string) string
	// Enqueue is called when the target of an ElastiService may have changed,
	// EnqueueUrgently when it was scaled to zero.
	Enqueue         func(types.NamespacedName)
	EnqueueUrgently func(types.NamespacedName)
}

// Watches watches the targets of the ElastiServices. It is safe for concurrent
// use, but for a single ElastiService by one goroutine at a time.
type Watches struct {
	options WatchesOptions

	mu sync.Mutex
	// uses are the targets of the ElastiServices, users the reverse. Forget
	// removes an ElastiService from both.
	uses  map[types.NamespacedName]*targetUse
	users map[targetID]sets.Set[types.NamespacedName]
}

// NewWatches returns watches that watch nothing yet.
func NewWatches(options WatchesOptions) *Watches {
	return &Watches{
		options: options,
		uses:    map[types.NamespacedName]*targetUse{},
		users:   map[targetID]sets.Set[types.NamespacedName]{},
	}
}

// Observation is the observed state of a target.
type Observation struct {
	// Resource is that of the target, while its kind is known.
	Resource schema.GroupVersionResource
	// Object is nil when the target does not exist, or when that is not known.
	Object *Object
	// Scale is set together with Object.
	Scale *Scale
	// Pending is true when the target is not known for now: the caches are not synced
	// yet, or the server does not respond.
	Pending bool
	// Problem says why the target cannot be observed.
	Problem error
	// Unwatched is true when no watch reports changes, such as that the problem is over.
	Unwatched bool
}

// FailedObservation returns the observation for an error.
func FailedObservation(err error) Observation {
	var kindError *scaling.KindError
	lasting := errors.As(err, &kindError) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
	return Observation{Problem: err, Pending: !lasting, Unwatched: true}
}

// AtZero reports whether the target is known to be scaled to zero.
func (o Observation) AtZero() bool { return o.Scale != nil && o.Scale.Desired == 0 }

// Missing reports whether the target is known not to exist.
func (o Observation) Missing() bool {
	var kindError *scaling.KindError
	return !o.Pending && (apierrors.IsNotFound(o.Problem) || errors.As(o.Problem, &kindError))
}

// IsAsIn reports whether the target was observed as it was when a scale was read: a scale
// has the resource version of its object. Of a target of which only the scale is known there
// is nothing else to observe.
func (o Observation) IsAsIn(scale *autoscalingv1.Scale) bool {
	return o.Object != nil && (o.Object.Traits == nil || o.Object.ResourceVersion == scale.ResourceVersion)
}

// Observe returns the observed state of the target of an ElastiService. The
// ElastiService is enqueued when that changes.
func (w *Watches) Observe(ctx context.Context, key types.NamespacedName, target scaling.Target) Observation {
	resource, err := w.options.Scaling.Resolve(ctx, target)
	if err != nil {
		// The watch is kept when discovery does not respond.
		var kindError *scaling.KindError
		if errors.As(err, &kindError) {
			w.Forget(key)
		}
		return FailedObservation(err)
	}
	use, err := w.use(key, targetID{resource: resource, object: target.NamespacedName()})
	if err != nil {
		return FailedObservation(err)
	}
	if apierrors.IsForbidden(use.handle.Problem()) {
		return w.observeScale(ctx, resource, target)
	}
	if !use.handle.HasSynced() {
		return Observation{Pending: true}
	}
	object, ok := use.handle.Get(target.Namespace, target.Name)
	if !ok {
		return Observation{Problem: notFoundError(resource, target.Name)}
	}
	observed := object.(*Object)
	if observed.Scale != nil {
		return Observation{Resource: resource, Object: observed, Scale: observed.Scale}
	}
	if use.scale == nil || use.version != observed.ResourceVersion {
		scale, err := w.options.Scaling.Get(ctx, target)
		if err != nil {
			return FailedObservation(err)
		}
		use.scale, use.version = scaleOf(scale), observed.ResourceVersion
	}
	return Observation{Resource: resource, Object: observed, Scale: use.scale}
}

// observeScale returns what is observed from the scale alone, for kinds that may be
// scaled but not watched.
func (w *Watches) observeScale(ctx context.Context, resource schema.GroupVersionResource, target scaling.Target) Observation {
	scale, err := w.options.Scaling.Get(ctx, target)
	if err != nil {
		return FailedObservation(err)
	}
	meta := metav1.ObjectMeta{Namespace: target.Namespace, Name: target.Name, UID: scale.UID, ResourceVersion: scale.ResourceVersion}
	return Observation{Resource: resource, Object: &Object{ObjectMeta: meta, Resource: resource.GroupResource()}, Scale: scaleOf(scale), Unwatched: true}
}

// Forget stops watching the target of an ElastiService.
func (w *Watches) Forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgetLocked(key)
}

func (w *Watches) forgetLocked(key types.NamespacedName) {
	use, ok := w.uses[key]
	if !ok {
		return
	}
	delete(w.uses, key)
	w.users[use.id].Delete(key)
	if len(w.users[use.id]) == 0 {
		delete(w.users, use.id)
	}
	use.handle.Release()
}

func (w *Watches) use(key types.NamespacedName, id targetID) (*targetUse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if use, ok := w.uses[key]; ok && use.id == id {
		return use, nil
	}
	handle, err := w.options.Informers.Acquire(w.source(id.resource, w.options.Scope(id.object.Namespace)))
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", id.resource.Resource, err)
	}
	// After acquiring the new watch: it may be the one that the old use shares.
	w.forgetLocked(key)
	use := &targetUse{id: id, handle: handle}
	w.uses[key] = use
	if w.users[id] == nil {
		w.users[id] = sets.New[types.NamespacedName]()
	}
	w.users[id].Insert(key)
	return use, nil
}

func (w *Watches) source(resource schema.GroupVersionResource, namespace string) informers.Source {
	client := w.options.Dynamic.Resource(resource).Namespace(namespace)
	return informers.Source{
		Key: informers.Key{Resource: resource, Namespace: namespace},
		List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		Watch: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
		Client:    w.options.Dynamic,
		Example:   &unstructured.Unstructured{},
		Transform: keepTarget(resource.GroupResource()),
		Changed:   func(before, after any) { w.changed(resource, before, after) },
		Synced:    func() { w.enqueueUsers(resource, namespace) },
		Failed:    func() { w.enqueueUsers(resource, namespace) },
	}
}

func (w *Watches) changed(resource schema.GroupVersionResource, before, after any) {
	object := after
	if object == nil {
		object = before
	}
	target := object.(*Object)
	id := targetID{resource: resource, object: resources.KeyOf(target)}
	w.mu.Lock()
	users := w.users[id].UnsortedList()
	w.mu.Unlock()
	enqueue := w.options.Enqueue
	if wentToZero(before, after) {
		enqueue = w.options.EnqueueUrgently
	}
	for _, key := range users {
		enqueue(key)
	}
}

// wentToZero reports whether a target was scaled to zero. The resolver slice
// must be in place before its endpoints are deleted.
func wentToZero(before, after any) bool {
	old, ok := before.(*Object)
	if !ok {
		return false
	}
	current, ok := after.(*Object)
	return ok && old.Scale != nil && current.Scale != nil && old.Scale.Desired > 0 && current.Scale.Desired == 0
}

// enqueueUsers enqueues all ElastiServices that depend on a watch: also those whose
// target turns out not to exist, or not to be watched.
func (w *Watches) enqueueUsers(resource schema.GroupVersionResource, namespace string) {
	var affected []types.NamespacedName
	w.mu.Lock()
	for key, use := range w.uses {
		if use.id.resource == resource && (namespace == "" || namespace == key.Namespace) {
			affected = append(affected, key)
		}
	}
	w.mu.Unlock()
	for _, key := range affected {
		w.options.Enqueue(key)
	}
}

func notFoundError(resource schema.GroupVersionResource, name string) error {
	return apierrors.NewNotFound(resource.GroupResource(), name)
}
