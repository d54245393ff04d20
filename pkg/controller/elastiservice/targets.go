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
	"errors"
	"fmt"
	"sync"

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
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// targetID is the identity of a target, however its kind is spelled.
type targetID struct {
	resource schema.GroupVersionResource
	object   types.NamespacedName
}

// targetUse is what an ElastiService holds of its target. Only the worker that
// has the ElastiService uses it.
type targetUse struct {
	id     targetID
	handle *informers.Handle
	// scale is the scale that was read when the object had version, for kinds
	// that do not say it.
	scale   *observedScale
	version string
}

// targetWatches watches the targets of the ElastiServices. Safe for concurrent
// use, but for one ElastiService at a time.
type targetWatches struct {
	informers *informers.Manager
	dynamic   dynamic.Interface
	scaling   Scaling
	// scope is the namespace of the watch for the targets of a namespace.
	scope func(namespace string) string
	// enqueue says that the target of an ElastiService may have changed,
	// enqueueUrgently that it was scaled to zero.
	enqueue         func(types.NamespacedName)
	enqueueUrgently func(types.NamespacedName)

	mu sync.Mutex
	// uses are the targets of the ElastiServices, users the reverse.
	uses  map[types.NamespacedName]*targetUse
	users map[targetID]sets.Set[types.NamespacedName]
}

// targetObservation is what is known of a target.
type targetObservation struct {
	// target is nil when there is none, or when that is not known.
	target *observedTarget
	// scale is set with target.
	scale *observedScale
	// pending is true when the target is not known for now: the watch does not
	// know the objects yet, or the server does not answer.
	pending bool
	// problem says why the target cannot be observed.
	problem error
	// unwatched is true when nothing tells that the problem is over.
	unwatched bool
}

// failedObservation sorts out what an error says about a target.
func failedObservation(err error) targetObservation {
	var kindError *scaling.KindError
	lasting := errors.As(err, &kindError) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
	return targetObservation{problem: err, pending: !lasting, unwatched: true}
}

// atZero tells whether the target is known to want no replicas.
func (o targetObservation) atZero() bool { return o.scale != nil && o.scale.wanted == 0 }

// observe returns what is known of the target of an ElastiService, and sees to
// it that the ElastiService is enqueued when that changes.
func (t *targetWatches) observe(ctx context.Context, key types.NamespacedName, target scaling.Target) targetObservation {
	resource, err := t.scaling.Resolve(ctx, target)
	if err != nil {
		// When discovery does not answer, what was known stays known.
		var kindError *scaling.KindError
		if errors.As(err, &kindError) {
			t.forget(key)
		}
		return failedObservation(err)
	}
	use, err := t.use(key, targetID{resource: resource, object: types.NamespacedName{Namespace: target.Namespace, Name: target.Name}})
	if err != nil {
		return failedObservation(err)
	}
	if apierrors.IsForbidden(use.handle.Problem()) {
		return t.observeScale(ctx, target)
	}
	if !use.handle.HasSynced() {
		return targetObservation{pending: true}
	}
	object, ok := use.handle.Get(target.Namespace, target.Name)
	if !ok {
		return targetObservation{problem: notFoundError(resource, target.Name)}
	}
	observed := object.(*observedTarget)
	if observed.scale != nil {
		return targetObservation{target: observed, scale: observed.scale}
	}
	if use.scale == nil || use.version != observed.ResourceVersion {
		scale, err := t.scaling.Get(ctx, target)
		if err != nil {
			return failedObservation(err)
		}
		use.scale, use.version = scaleOf(scale), observed.ResourceVersion
	}
	return targetObservation{target: observed, scale: use.scale}
}

// observeScale returns what the scale alone tells, for kinds that may be scaled
// but not watched. Each failure of the watch asks for it again.
func (t *targetWatches) observeScale(ctx context.Context, target scaling.Target) targetObservation {
	scale, err := t.scaling.Get(ctx, target)
	if err != nil {
		return failedObservation(err)
	}
	meta := metav1.ObjectMeta{Namespace: target.Namespace, Name: target.Name, UID: scale.UID, ResourceVersion: scale.ResourceVersion}
	return targetObservation{target: &observedTarget{ObjectMeta: meta}, scale: scaleOf(scale)}
}

// usersOf returns the ElastiServices that have a target.
func (t *targetWatches) usersOf(ctx context.Context, target scaling.Target) []types.NamespacedName {
	resource, err := t.scaling.Resolve(ctx, target)
	if err != nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.users[targetID{resource: resource, object: types.NamespacedName{Namespace: target.Namespace, Name: target.Name}}].UnsortedList()
}

// forget ends the watching for an ElastiService.
func (t *targetWatches) forget(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked(key)
}

func (t *targetWatches) forgetLocked(key types.NamespacedName) {
	use, ok := t.uses[key]
	if !ok {
		return
	}
	delete(t.uses, key)
	t.users[use.id].Delete(key)
	if len(t.users[use.id]) == 0 {
		delete(t.users, use.id)
	}
	use.handle.Release()
}

func (t *targetWatches) use(key types.NamespacedName, id targetID) (*targetUse, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if use, ok := t.uses[key]; ok && use.id == id {
		return use, nil
	}
	handle, err := t.informers.Acquire(t.source(id.resource, t.scope(id.object.Namespace)))
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", id.resource.Resource, err)
	}
	// After acquiring the new watch: it may be the one that the old use shares.
	t.forgetLocked(key)
	use := &targetUse{id: id, handle: handle}
	t.uses[key] = use
	if t.users[id] == nil {
		t.users[id] = sets.New[types.NamespacedName]()
	}
	t.users[id].Insert(key)
	return use, nil
}

func (t *targetWatches) source(resource schema.GroupVersionResource, namespace string) informers.Source {
	client := t.dynamic.Resource(resource).Namespace(namespace)
	return informers.Source{
		Key: informers.Key{Resource: resource, Namespace: namespace},
		List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		Watch: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
		Client:    t.dynamic,
		Example:   &unstructured.Unstructured{},
		Transform: keepTarget(resource.GroupResource()),
		Changed:   func(before, after any) { t.changed(resource, before, after) },
		Synced:    func() { t.enqueueUsers(resource, namespace) },
		Failed:    func() { t.enqueueUsers(resource, namespace) },
	}
}

func (t *targetWatches) changed(resource schema.GroupVersionResource, before, after any) {
	object := after
	if object == nil {
		object = before
	}
	target := object.(*observedTarget)
	id := targetID{resource: resource, object: types.NamespacedName{Namespace: target.Namespace, Name: target.Name}}
	t.mu.Lock()
	users := t.users[id].UnsortedList()
	t.mu.Unlock()
	enqueue := t.enqueue
	if wentToZero(before, after) {
		enqueue = t.enqueueUrgently
	}
	for _, key := range users {
		enqueue(key)
	}
}

// wentToZero tells whether a target was scaled to zero. The resolver slice
// must be in place before its endpoints are gone.
func wentToZero(before, after any) bool {
	old, ok := before.(*observedTarget)
	if !ok {
		return false
	}
	current, ok := after.(*observedTarget)
	return ok && old.scale != nil && current.scale != nil && old.scale.wanted > 0 && current.scale.wanted == 0
}

// enqueueUsers enqueues all that depend on a watch: also those whose target
// turns out not to be there, or not to be watched.
func (t *targetWatches) enqueueUsers(resource schema.GroupVersionResource, namespace string) {
	var affected []types.NamespacedName
	t.mu.Lock()
	for key, use := range t.uses {
		if use.id.resource == resource && (namespace == "" || namespace == key.Namespace) {
			affected = append(affected, key)
		}
	}
	t.mu.Unlock()
	for _, key := range affected {
		t.enqueue(key)
	}
}

func notFoundError(resource schema.GroupVersionResource, name string) error {
	return apierrors.NewNotFound(resource.GroupResource(), name)
}
