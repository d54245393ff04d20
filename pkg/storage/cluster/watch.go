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

package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
)

// watchBufferSize is how many events wait for a slow reader before the stream of
// the host cluster does.
const watchBufferSize = 100

// watcher is the watch of a key or a prefix. It ends with the stream of the host
// cluster: the watch cache above begins a new one where it ended.
type watcher struct {
	store *store
	// key is the one watched, or the prefix of those watched.
	key       string
	recursive bool
	predicate storage.SelectionPredicate
	bookmarks bool
	events    watch.Interface
	results   chan watch.Event
	cancel    context.CancelFunc

	// number is that of the watch for the progress, if it has bookmarks.
	number uint64

	// Owned by run.

	// initial are the objects that the watch begins with.
	initial []*StoredObject
	// endOfInitial is the version of the bookmark after the initial objects, or 0
	// if there is none.
	endOfInitial uint64
	// selected are the objects that match the predicate, by key. The host sends no
	// previous objects, so that this shows which ones match no more. It is nil without a
	// predicate, and otherwise bounded by the number of stored objects.
	selected map[string]runtime.Object
}

// Watch implements storage.Interface.
func (s *store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	prepared, err := storage.PrepareKey(s.prefix, key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	version, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{
		store:     s,
		key:       prepared,
		recursive: opts.Recursive,
		predicate: opts.Predicate,
		bookmarks: opts.ProgressNotify,
		results:   make(chan watch.Event, watchBufferSize),
		cancel:    cancel,
	}
	if !w.predicate.Empty() {
		w.selected = map[string]runtime.Object{}
	}
	if err := w.begin(ctx, version, opts); err != nil {
		defer cancel()
		return failedWatch(ctx, err)
	}
	go w.run(ctx)
	utilflowcontrol.WatchInitialized(ctx)
	return w, nil
}

// failedWatch returns the watch for a client whose watch did not begin because of an
// error: an empty one when the client has disconnected.
func failedWatch(ctx context.Context, err error) (watch.Interface, error) {
	select {
	case <-ctx.Done():
		return watch.NewEmptyWatch(), nil
	default:
		return asErrorEvent(err)
	}
}

// asErrorEvent returns a watch of one error. An error that is not a response of the
// host is returned itself: the watch cache then retries without a new list.
func asErrorEvent(err error) (watch.Interface, error) {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return nil, fmt.Errorf("watching the stored objects in the host cluster: %w", err)
	}
	failed := make(chan watch.Event, 1)
	object := status.Status()
	failed <- watch.Event{Type: watch.Error, Object: &object}
	close(failed)
	return watch.NewProxyWatcher(failed), nil
}

// begin reads the initial objects of the watch, and opens the stream of the host.
func (w *watcher) begin(ctx context.Context, version uint64, opts storage.ListOptions) error {
	wantsInitial := opts.SendInitialEvents == nil && version == 0 || opts.SendInitialEvents != nil && *opts.SendInitialEvents
	var current uint64
	var err error
	switch {
	case wantsInitial:
		requested := version
		if w.initial, version, err = w.store.read(ctx, w.key, w.recursive, 0, ""); err != nil {
			return err
		}
		if requested > version {
			return storage.NewTooLargeResourceVersionError(requested, version, 1)
		}
		if opts.SendInitialEvents != nil && opts.Predicate.AllowWatchBookmarks {
			w.endOfInitial = version
		}
		current = version
	case version == 0:
		if version, err = w.store.GetCurrentResourceVersion(ctx); err != nil {
			return err
		}
		current = version
	default:
		if current, err = w.store.host.version(ctx); err != nil {
			return err
		}
		if version > current {
			// The host would send nothing until it has had as many changes.
			return apierrors.NewResourceExpired(fmt.Sprintf("resource version %d is newer than what the host cluster has, which is at %d: it was restored from an older backup, list again", version, current))
		}
	}
	if w.selected != nil && !wantsInitial {
		if err := w.remember(ctx, version); err != nil {
			return err
		}
	}
	if w.bookmarks {
		w.number = w.store.progress.begin(version, current)
	}
	w.events, err = w.store.host.watch(ctx, version)
	return err
}

// remember records which objects were selected at the version that the watch begins
// with.
func (w *watcher) remember(ctx context.Context, version uint64) error {
	objects, _, err := w.store.read(ctx, w.key, w.recursive, version, "")
	if err != nil {
		return err
	}
	for _, stored := range objects {
		if object, err := w.decode(stored); err == nil && w.matches(object) {
			w.selected[stored.key()] = object
		}
	}
	return nil
}

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.cancel() }

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.results }

func (w *watcher) run(ctx context.Context) {
	defer close(w.results)
	defer w.cancel()
	defer w.events.Stop()
	for _, stored := range w.initial {
		if !w.send(ctx, w.changed(stored, true)) {
			return
		}
	}
	w.initial = nil
	if w.endOfInitial > 0 && !w.send(ctx, w.bookmark(w.endOfInitial, true)) {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-w.events.ResultChan():
			if !open || !w.send(ctx, w.translate(event)) {
				return
			}
		}
	}
}

// send sends an event to the client. It reports whether the watch continues.
func (w *watcher) send(ctx context.Context, event *watch.Event) bool {
	// The host cluster reports the end of the stream as an error. The client that ended
	// it does not need that error.
	if ctx.Err() != nil {
		return false
	}
	if event == nil {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case w.results <- *event:
		return event.Type != watch.Error
	}
}

// translate returns the event of this API server for one of the host cluster, or
// nil if there is none.
func (w *watcher) translate(event watch.Event) *watch.Event {
	if event.Type == watch.Error {
		return &event
	}
	stored, ok := event.Object.(*StoredObject)
	if !ok {
		return failure(fmt.Errorf("the host cluster sent a %T in a watch", event.Object))
	}
	if version, err := stored.version(); err == nil && w.bookmarks {
		w.store.progress.observe(w.number, version)
	}
	if event.Type == watch.Bookmark || storesNothing(stored.Name) {
		return w.progressed(stored)
	}
	if !w.concerns(stored) {
		return nil
	}
	if event.Type == watch.Deleted {
		return w.deleted(stored)
	}
	return w.changed(stored, event.Type == watch.Added)
}

func (w *watcher) concerns(stored *StoredObject) bool {
	whole := w.store.prefix + stored.key()
	return whole == w.key || w.recursive && strings.HasPrefix(whole, w.key)
}

// changed returns the event of an object that was created or changed.
func (w *watcher) changed(stored *StoredObject, added bool) *watch.Event {
	object, err := w.decode(stored)
	if err != nil {
		w.store.logger.Error(err, "Leaving a damaged object out of a watch, its readers keep the last version that was intact", "name", stored.Name)
		return w.progressed(stored)
	}
	if w.selected == nil {
		return eventOf(added, object)
	}
	previous, had := w.selected[stored.key()]
	if w.matches(object) {
		w.selected[stored.key()] = object
		return eventOf(!had, object)
	}
	if !had {
		return nil
	}
	delete(w.selected, stored.key())
	return w.deletion(previous, stored)
}

// deleted returns the event of an object that was deleted. The host sends it as
// it was, with the version of the deletion.
func (w *watcher) deleted(stored *StoredObject) *watch.Event {
	if w.selected != nil {
		previous, had := w.selected[stored.key()]
		delete(w.selected, stored.key())
		if !had {
			return nil
		}
		return w.deletion(previous, stored)
	}
	object, err := w.decode(stored)
	if err != nil {
		w.store.logger.Error(err, "A damaged object was deleted", "name", stored.Name)
		if object, err = w.named(stored.Name); err != nil {
			return failure(err)
		}
	}
	return w.deletion(object, stored)
}

// deletion returns the event of the deletion of an object, at the version of a
// stored one.
func (w *watcher) deletion(object runtime.Object, stored *StoredObject) *watch.Event {
	version, err := stored.version()
	if err == nil {
		object = object.DeepCopyObject()
		err = w.store.versioner.UpdateObject(object, version)
	}
	if err != nil {
		return failure(err)
	}
	return &watch.Event{Type: watch.Deleted, Object: object}
}

// named returns an object with nothing but a name.
func (w *watcher) named(name string) (runtime.Object, error) {
	key, known := keyOf(name)
	if !known {
		return nil, fmt.Errorf("the key of the stored object %s is not known", name)
	}
	object := w.store.newFunc()
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, fmt.Errorf("naming a damaged object: %w", err)
	}
	namespace, name, namespaced := strings.Cut(key, "/")
	if !namespaced {
		namespace, name = "", key
	}
	accessor.SetNamespace(namespace)
	accessor.SetName(name)
	return object, nil
}

// progressed returns the bookmark at the version of a stored object, or nil for a
// reader that wants none.
func (w *watcher) progressed(stored *StoredObject) *watch.Event {
	if !w.bookmarks {
		return nil
	}
	version, err := stored.version()
	if err != nil {
		return failure(err)
	}
	return w.bookmark(version, false)
}

func (w *watcher) bookmark(version uint64, endOfInitial bool) *watch.Event {
	object := w.store.newFunc()
	err := w.store.versioner.UpdateObject(object, version)
	if err == nil && endOfInitial {
		err = storage.AnnotateInitialEventsEndBookmark(object)
	}
	if err != nil {
		return failure(err)
	}
	return &watch.Event{Type: watch.Bookmark, Object: object}
}

func (w *watcher) decode(stored *StoredObject) (runtime.Object, error) {
	object := w.store.newFunc()
	return object, w.store.decode(stored, object)
}

func (w *watcher) matches(object runtime.Object) bool {
	matches, err := w.predicate.Matches(object)
	return err == nil && matches
}

func eventOf(added bool, object runtime.Object) *watch.Event {
	if added {
		return &watch.Event{Type: watch.Added, Object: object}
	}
	return &watch.Event{Type: watch.Modified, Object: object}
}

// failure returns the event that ends a watch.
func failure(err error) *watch.Event {
	status := apierrors.NewInternalError(err).Status()
	return &watch.Event{Type: watch.Error, Object: &metav1.Status{Status: status.Status, Message: status.Message, Reason: status.Reason, Code: status.Code}}
}
