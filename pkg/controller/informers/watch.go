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
	// informer doubles its pauses up to 30 s; starting again makes them short
	// again, so that a kind that is installed is seen within seconds.
	restartAfter = 5 * time.Second
	// syncTimeout is how long a watch may take to know all objects, without
	// any error, before it is started again.
	syncTimeout = time.Minute
)

// sharedWatch is an informer that is replaced when it does not work.
type sharedWatch struct {
	source  Source
	clock   clock.WithTicker
	metrics *Metrics

	// users is guarded by the manager's mutex.
	users int
	// unused is closed when the last user is gone.
	unused chan struct{}
	// synced is closed when the first informer knows all objects.
	synced chan struct{}

	mu sync.RWMutex
	// current is the store of the informer that is in use: that of the last
	// one that knew all objects.
	current cache.Indexer
	// problem is why the last informer was given up, until one works.
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

// run replaces informers that do not work until ctx ends or nobody uses the
// watch any more.
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
		logger.Info("Starting a watch again", "reason", err)
		w.metrics.restarted(w.name())
		w.fail(err)
	}
}

// runInformer runs one informer. It returns an error when the informer does
// not work, and nil when it is not needed any more.
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

// logWatchError logs why a watch ended. That the server ends one now and then,
// or has forgotten where it was, is normal.
func logWatchError(ctx context.Context, _ *cache.Reflector, err error) {
	logger := klog.FromContext(ctx)
	if err == nil || errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		logger.V(4).Info("A watch ended and is started again", "reason", err)
		return
	}
	if apierrors.IsForbidden(err) {
		// It lasts, and is logged each time that the watch is given up.
		logger.V(4).Info("Watching is forbidden", "reason", err)
		return
	}
	logger.Error(err, "Watching failed and is tried again")
}

// supervise puts the informer to use when it knows all objects, and returns an
// error when it does not work.
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
			return fmt.Errorf("the objects are not known after %s", syncTimeout)
		case <-health.failed:
			if failing == nil {
				timer := w.clock.NewTimer(restartAfter)
				defer timer.Stop()
				failing = timer.C()
			}
		case <-failing:
			failing = nil
			// An informer that knows its objects resumes by itself where it
			// stopped, unless what it watches is gone.
			if err := health.err(); err != nil && (synced != nil || apierrors.IsNotFound(err)) {
				return err
			}
		}
	}
}

// use makes the store the one that users read, and tells them the differences
// to the one before.
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

// fail tells the users that an informer was given up.
func (w *sharedWatch) fail(problem error) {
	w.mu.Lock()
	w.problem = problem
	w.mu.Unlock()
	if w.source.Failed != nil {
		w.source.Failed()
	}
}

// handler passes on the changes of a store once it is in use. What changed
// before that is in the store by then, and use tells the users.
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

// listWatch reads through the source and notes whether that works.
func (w *sharedWatch) listWatch(health *health) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := w.source.List(ctx, options)
			health.note(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := w.source.Watch(ctx, options)
			health.note(err)
			return events, err
		},
	}, w.source.Client)
}

// sameVersion tells whether two states of an object are the same one. States
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

// health is what is known of the requests of an informer. Safe for concurrent
// use.
type health struct {
	// failed says that a request failed. It has room for one message and is
	// never closed.
	failed chan struct{}

	mu   sync.Mutex
	last error
}

func newHealth() *health { return &health{failed: make(chan struct{}, 1)} }

// note takes the outcome of a request.
func (h *health) note(err error) {
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
