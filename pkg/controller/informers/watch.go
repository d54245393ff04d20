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
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// restartAfter is how long a watch may fail before it is started again. An
	// informer doubles its pauses up to 30 s; a restart makes them short again, so
	// that a kind that is installed is observed within seconds.
	restartAfter = 5 * time.Second
	// syncTimeout is how long the cache of a watch may take to sync, without any
	// error, before the watch is restarted.
	syncTimeout = time.Minute
)

// sharedWatch is an informer that is replaced when it fails.
type sharedWatch struct {
	source  Source
	clock   clock.WithTicker
	metrics *Metrics

	// users is guarded by the manager's mutex.
	users int
	// unused is closed when the last user has released it.
	unused chan struct{}
	// synced is closed when the cache of the first informer is synced.
	synced chan struct{}

	mu sync.RWMutex
	// current is the store of the informer that is in use: that of the last
	// one whose cache was synced.
	current cache.Indexer
	// problem is why the last informer failed, until one works.
	problem error
}

func newSharedWatch(source Source, clock clock.WithTicker, metrics *Metrics) *sharedWatch {
	return &sharedWatch{
		source:  source,
		clock:   clock,
		metrics: metrics,
		unused:  make(chan struct{}),
		synced:  make(chan struct{}),
		current: cache.NewIndexer(cache.MetaNamespaceKeyFunc, source.Indexers),
	}
}

func (w *sharedWatch) store() cache.Indexer {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.current
}

func (w *sharedWatch) inUse(store cache.Indexer) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.current == store
}

func (w *sharedWatch) name() string { return w.source.Resource.GroupResource().String() }

// run replaces informers that fail until ctx ends or the watch has no user any
// more.
func (w *sharedWatch) run(ctx context.Context) {
	logger := klog.FromContext(ctx).WithValues("resource", w.name(), "namespace", w.source.Namespace)
	ctx = klog.NewContext(ctx, logger)
	w.metrics.started(w.name())
	defer w.metrics.stopped(w.name())
	for {
		err := w.runInformer(ctx)
		if err == nil {
			return
		}
		logger.Info("Restarting a watch", "err", err)
		w.metrics.restarted(w.name())
		w.fail(err)
	}
}

// runInformer runs one informer. It returns an error when the informer fails, and
// nil when it is not needed any more.
func (w *sharedWatch) runInformer(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	health := newHealth()
	informer := cache.NewSharedIndexInformerWithOptions(w.listWatch(health), w.source.Example, cache.SharedIndexInformerOptions{Indexers: w.source.Indexers})
	if w.source.Transform != nil {
		if err := informer.SetTransform(w.source.Transform); err != nil {
			cancel()
			return fmt.Errorf("setting the transform: %w", err)
		}
	}
	if err := informer.SetWatchErrorHandlerWithContext(logWatchError); err != nil {
		cancel()
		return fmt.Errorf("setting the error handler: %w", err)
	}
	store := informer.GetIndexer()
	if _, err := informer.AddEventHandler(w.handler(store)); err != nil {
		cancel()
		return fmt.Errorf("adding the event handler: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		informer.RunWithContext(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	return w.supervise(ctx, informer, health)
}

// logWatchError logs why a watch ended. It is normal that the server ends one now
// and then, or has compacted its resource version.
func logWatchError(ctx context.Context, _ *cache.Reflector, err error) {
	logger := klog.FromContext(ctx)
	if err == nil || errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		logger.V(4).Info("A watch ended and is restarted", "err", err)
		return
	}
	if apierrors.IsForbidden(err) {
		// It lasts, and is logged each time that the watch is abandoned.
		logger.V(4).Info("Watching is forbidden", "err", err)
		return
	}
	logger.Error(err, "Failed to watch, will retry")
}

// supervise puts the informer to use when its cache is synced, and returns an error
// when it fails.
func (w *sharedWatch) supervise(ctx context.Context, informer cache.SharedIndexInformer, health *health) error {
	syncTimer := w.clock.NewTimer(syncTimeout)
	defer syncTimer.Stop()
	synced := informer.HasSyncedChecker().Done()
	syncExpired := syncTimer.C()
	var failing <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.unused:
			return nil
		case <-synced:
			synced, syncExpired = nil, nil
			w.use(informer.GetIndexer())
		case <-syncExpired:
			return fmt.Errorf("the cache is not synced after %s", syncTimeout)
		case <-health.failed:
			if err := health.err(); synced != nil && apierrors.IsForbidden(err) {
				// It lasts: users need not wait for the restart to learn of it.
				w.fail(err)
			}
			if failing == nil {
				timer := w.clock.NewTimer(restartAfter)
				defer timer.Stop()
				failing = timer.C()
			}
		case <-failing:
			failing = nil
			// An informer whose cache is synced resumes by itself where it
			// stopped, unless what it watches is deleted.
			if err := health.err(); err != nil && (synced != nil || apierrors.IsNotFound(err)) {
				return err
			}
		}
	}
}

// use makes the store the one that users read, and reports the differences to the
// one before to them.
func (w *sharedWatch) use(store cache.Indexer) {
	w.mu.Lock()
	before := w.current
	w.current = store
	w.problem = nil
	w.mu.Unlock()

	for _, object := range before.List() {
		if _, ok, _ := store.Get(object); !ok {
			w.changed(object, nil)
		}
	}
	for _, object := range store.List() {
		known, ok, _ := before.Get(object)
		switch {
		case !ok:
			w.changed(nil, object)
		case !sameVersion(known, object):
			w.changed(known, object)
		}
	}
	select {
	case <-w.synced:
	default:
		close(w.synced)
	}
	if w.source.Synced != nil {
		w.source.Synced()
	}
}

// fail records why an informer fails, and reports it to the users if the one before did
// not fail for the same reason.
func (w *sharedWatch) fail(problem error) {
	w.mu.Lock()
	known := w.problem != nil && apierrors.ReasonForError(w.problem) == apierrors.ReasonForError(problem)
	w.problem = problem
	w.mu.Unlock()
	if !known && w.source.Failed != nil {
		w.source.Failed()
	}
}

// handler passes on the changes of a store once it is in use. What changed
// before that is in the store by then, and use reports it to the users.
func (w *sharedWatch) handler(store cache.Indexer) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if w.inUse(store) {
				w.changed(nil, object)
			}
		},
		UpdateFunc: func(before, after any) {
			if w.inUse(store) && !sameVersion(before, after) {
				w.changed(before, after)
			}
		},
		DeleteFunc: func(object any) {
			tombstone, missing := object.(cache.DeletedFinalStateUnknown)
			if missing {
				object = tombstone.Obj
			}
			if !w.inUse(store) {
				return
			}
			if !missing && w.source.Deleted != nil {
				w.source.Deleted(object)
			}
			w.changed(object, nil)
		},
	}
}

func (w *sharedWatch) changed(before, after any) {
	w.metrics.handled(w.name(), before, after)
	w.source.Changed(before, after)
}

// listWatch reads through the source and records whether that works.
func (w *sharedWatch) listWatch(health *health) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := w.source.List(ctx, options)
			health.record(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := w.source.Watch(ctx, options)
			health.record(err)
			return events, err
		},
	}, w.source.Client)
}

// sameVersion reports whether two states of an object are the same one. States
// without a version never are.
func sameVersion(one, other any) bool {
	first, err := meta.Accessor(one)
	if err != nil {
		return false
	}
	second, err := meta.Accessor(other)
	if err != nil {
		return false
	}
	return first.GetResourceVersion() != "" && first.GetUID() == second.GetUID() && first.GetResourceVersion() == second.GetResourceVersion()
}

// health is the health of the requests of an informer. It is safe for concurrent
// use.
type health struct {
	// failed signals that a request failed. It has room for one message and is
	// never closed.
	failed chan struct{}

	mu   sync.Mutex
	last error
}

func newHealth() *health { return &health{failed: make(chan struct{}, 1)} }

// record records the result of a request.
func (h *health) record(err error) {
	h.mu.Lock()
	h.last = err
	h.mu.Unlock()
	if err != nil {
		select {
		case h.failed <- struct{}{}:
		default:
		}
	}
}

// err returns the error of the last request.
func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}
