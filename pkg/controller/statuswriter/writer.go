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

package statuswriter

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/fairqueue"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

const (
	// The pauses between the attempts for one status: 50, 100, 200 ms … up to
	// 30 s.
	baseRetryDelay = 50 * time.Millisecond
	maxRetryDelay  = 30 * time.Second
)

// Statuses changes the statuses of ElastiServices inside of the server, which no
// request can. It is safe for concurrent use.
type Statuses interface {
	// UpdateStatus calls change with the stored ElastiService, and stores the status
	// that change leaves. An ElastiService with another UID counts as not found.
	// change may be called more than once; its error is returned unwrapped.
	UpdateStatus(ctx context.Context, key types.NamespacedName, uid types.UID, change func(stored *v1alpha1.ElastiService) error) (*v1alpha1.ElastiService, error)
}

// Options configure a Writer. All fields but Waiting are required.
type Options struct {
	// Statuses changes statuses.
	Statuses Statuses
	// Clock is the time.
	Clock clock.WithTicker
	// Watched returns the resource version that the watch has of an
	// ElastiService, empty when it has none.
	Watched func(types.NamespacedName) string
	// Written is called with each status that was written, and with the
	// ElastiService as it was before.
	Written func(before *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus)
	// Failed is called with each failure to write a status in the background.
	// It is retried.
	Failed func(ctx context.Context, key types.NamespacedName, err error)
	// Waiting is called with the number of statuses that wait to be written, whenever that
	// has changed. It must not block.
	Waiting func(statuses int)
}

// Writer writes the statuses that syncs compute. It has workers of its own: a resolver
// slice that is needed now must not wait until a slow store has written the status of
// the previous sync. Of several statuses of an ElastiService only the last one is
// written. It is safe for concurrent use.
type Writer struct {
	options Options
	queue   *fairqueue.WorkQueue[types.NamespacedName]

	mu sync.Mutex
	// pending has the statuses that the watch may not have delivered yet. An entry is
	// deleted by the later of the response to its write and the sync after its watch
	// event, and with the ElastiService.
	pending map[types.NamespacedName]*pendingStatus
}

// pendingStatus is the status that an ElastiService is to have.
type pendingStatus struct {
	// writing is held during a write, so that an older status never follows a
	// newer one.
	writing sync.Mutex

	// The rest is guarded by the mutex of the writer.

	uid types.UID
	// before is the ElastiService with the status that was written last.
	before *v1alpha1.ElastiService
	// status is replaced, never modified. Only the fields that the controller owns
	// count.
	status *v1alpha1.ElastiServiceStatus
	// version is the resource version that has the status. Empty until it is
	// written.
	version string
}

// recordedPorts returns the proxy ports that are stored, as far as is known: a watch that
// is behind the last write does not have them.
func (p *pendingStatus) recordedPorts(watched *v1alpha1.ElastiService) []v1alpha1.ProxyPort {
	if IsNewer(watched.ResourceVersion, p.before.ResourceVersion) {
		return watched.Status.ProxyPorts
	}
	return p.before.Status.ProxyPorts
}

// New returns a writer that writes in the background while it runs.
func New(options Options) *Writer {
	queue := fairqueue.NewWorkQueue(fairqueue.WorkQueueOptions[types.NamespacedName]{
		Clock: options.Clock, NamespaceOf: fairqueue.NamespaceOf, FirstRetry: baseRetryDelay, LastRetry: maxRetryDelay,
		Waiting: options.Waiting,
	})
	return &Writer{
		options: options,
		queue:   queue,
		pending: map[types.NamespacedName]*pendingStatus{},
	}
}

// WithPending returns the ElastiService with the status that was computed last, even
// if it is not written, or not watched, yet.
func (w *Writer) WithPending(elastiService *v1alpha1.ElastiService) *v1alpha1.ElastiService {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := resources.KeyOf(elastiService)
	pending, ok := w.pending[key]
	if !ok {
		return elastiService
	}
	if pending.uid != elastiService.UID || pending.version != "" && !IsNewer(pending.version, elastiService.ResourceVersion) {
		delete(w.pending, key)
		return elastiService
	}
	merged := withStatus(elastiService, pending.status)
	if pending.version == "" {
		// Proxy ports count only when they are recorded.
		merged.Status.ProxyPorts = pending.recordedPorts(elastiService)
	}
	return merged
}

// Enqueue enqueues a status if it differs from that of the ElastiService, which is as
// WithPending returns it. It reports whether they differ.
func (w *Writer) Enqueue(elastiService *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) bool {
	if !w.record(elastiService, status) {
		return false
	}
	w.queue.Add(resources.KeyOf(elastiService))
	return true
}

// WriteNow writes a status before it returns.
func (w *Writer) WriteNow(ctx context.Context, elastiService *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) error {
	w.record(elastiService, status)
	return w.write(ctx, resources.KeyOf(elastiService))
}

func (w *Writer) record(elastiService *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) bool {
	if equality.Semantic.DeepEqual(ownStatus(&elastiService.Status), ownStatus(status)) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := resources.KeyOf(elastiService)
	pending, ok := w.pending[key]
	if !ok {
		pending = &pendingStatus{}
		w.pending[key] = pending
	}
	if !ok || pending.version != "" || pending.uid != elastiService.UID {
		pending.before = elastiService
	}
	pending.uid, pending.status, pending.version = elastiService.UID, status, ""
	return true
}

// Run writes statuses, workers at a time, until ctx ends. It returns when
// everything that it started has ended. It must be called once.
func (w *Writer) Run(ctx context.Context, workers int) {
	w.queue.Run(ctx, workers, w.work)
}

// work writes one status.
func (w *Writer) work(ctx context.Context, key types.NamespacedName) {
	if err := w.write(ctx, key); err == nil {
		w.queue.Forget(key)
	} else if ctx.Err() == nil {
		w.options.Failed(ctx, key, err)
		w.queue.AddRateLimited(key)
	}
}

// write writes the status that an ElastiService is to have, if it does not
// have it yet.
func (w *Writer) write(ctx context.Context, key types.NamespacedName) error {
	w.mu.Lock()
	pending := w.pending[key]
	w.mu.Unlock()
	if pending == nil {
		return nil
	}
	pending.writing.Lock()
	defer pending.writing.Unlock()
	w.mu.Lock()
	uid, before, status, done := pending.uid, pending.before, pending.status, pending.version != ""
	w.mu.Unlock()
	if done {
		return nil
	}
	updated, err := w.options.Statuses.UpdateStatus(ctx, key, uid, func(stored *v1alpha1.ElastiService) error {
		stored.Status = *withOwnStatus(&stored.Status, status).DeepCopy()
		return nil
	})
	switch {
	case apierrors.IsNotFound(err):
		// The ElastiService is deleted, and its status with it.
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.pending[key] == pending && pending.uid == uid {
			delete(w.pending, key)
		}
		return nil
	case err != nil:
		return fmt.Errorf("updating status: %w", err)
	}
	w.options.Written(before, status)
	w.mu.Lock()
	defer w.mu.Unlock()
	if pending.uid == uid {
		pending.before = withStatus(before, status)
	}
	if pending.status != status {
		return nil
	}
	pending.version = updated.ResourceVersion
	if watched := w.options.Watched(key); w.pending[key] == pending && watched != "" && !IsNewer(pending.version, watched) {
		// The watch event came before the response, and the next sync may be late.
		delete(w.pending, key)
	}
	return nil
}

// Forget drops the status that an ElastiService was to have.
func (w *Writer) Forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pending, key)
	w.queue.Forget(key)
}

// IsNewer reports whether a resource version is newer than another one. Versions
// that cannot be compared are not.
func IsNewer(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order > 0
}
