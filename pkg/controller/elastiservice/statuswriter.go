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
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
)

// statusWriter writes the statuses that were decided on. It has workers of its
// own: a resolver slice that is needed now must not wait until a slow store has
// taken the status of the look before. Of several statuses of an ElastiService
// only the last one is written. Safe for concurrent use.
type statusWriter struct {
	elasti versioned.Interface
	// watched returns the resource version that the watch has of an
	// ElastiService, empty when it has none.
	watched func(types.NamespacedName) string
	// wrote tells of a status that was written, and of the ElastiService as it
	// was before.
	wrote func(before *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus)
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]
	// newcomers are those whose first statuses wait for their place in the queue.
	newcomers *newcomers

	mu sync.Mutex
	// wanted are the statuses that are not known to be in the watch yet. What
	// comes later, the answer to the write or the look after the watch has it,
	// takes them out, and so does the end of the ElastiService.
	wanted map[types.NamespacedName]*wantedStatus
}

// wantedStatus is the status that an ElastiService is to have.
type wantedStatus struct {
	// writing is held during a write, so that an older status never follows a
	// newer one.
	writing sync.Mutex

	// The rest is guarded by the mutex of the writer.

	uid types.UID
	// before is the ElastiService with the status that was written last.
	before *v1alpha1.ElastiService
	// status is replaced, never changed. Only what the controller owns of it
	// counts.
	status *v1alpha1.ElastiServiceStatus
	// version is the resource version that has the status. Empty until it is
	// written.
	version string
}

func newStatusWriter(elasti versioned.Interface, clock clock.WithTicker, watched func(types.NamespacedName) string, wrote func(*v1alpha1.ElastiService, *v1alpha1.ElastiServiceStatus)) *statusWriter {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, lastRetry),
		workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Clock: clock})
	return &statusWriter{
		elasti:    elasti,
		watched:   watched,
		wrote:     wrote,
		queue:     queue,
		newcomers: newNewcomers(clock, queue.Add),
		wanted:    map[types.NamespacedName]*wantedStatus{},
	}
}

// overlay returns the ElastiService with the status that was decided on last,
// also where it is not written, or not watched, yet.
func (w *statusWriter) overlay(elastiService *v1alpha1.ElastiService) *v1alpha1.ElastiService {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := keyOf(elastiService)
	wanted, ok := w.wanted[key]
	if !ok {
		return elastiService
	}
	if wanted.uid != elastiService.UID || wanted.version != "" && !isNewer(wanted.version, elastiService.ResourceVersion) {
		delete(w.wanted, key)
		return elastiService
	}
	overlaid := withStatus(elastiService, wanted.status)
	if wanted.version == "" {
		// Proxy ports count only when they are recorded.
		overlaid.Status.ProxyPorts = elastiService.Status.ProxyPorts
	}
	return overlaid
}

// withStatus returns an ElastiService with what the controller owns of the
// status taken from another one.
func withStatus(elastiService *v1alpha1.ElastiService, own *v1alpha1.ElastiServiceStatus) *v1alpha1.ElastiService {
	with := *elastiService
	with.Status = withOwnStatus(&elastiService.Status, own)
	return &with
}

// want has a status written in the background, if it differs from the one that
// the ElastiService, as it was overlaid, has. It reports whether it does.
func (w *statusWriter) want(elastiService *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) bool {
	if !w.note(elastiService, status) {
		return false
	}
	key := keyOf(elastiService)
	if len(elastiService.Status.Conditions) == 0 || w.newcomers.has(key) {
		w.newcomers.add(key)
	} else {
		w.queue.Add(key)
	}
	return true
}

// writeNow writes a status before it returns.
func (w *statusWriter) writeNow(ctx context.Context, elastiService *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) error {
	w.note(elastiService, status)
	return w.write(ctx, keyOf(elastiService))
}

func (w *statusWriter) note(elastiService *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) bool {
	if equality.Semantic.DeepEqual(ownStatus(&elastiService.Status), ownStatus(status)) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := keyOf(elastiService)
	wanted, ok := w.wanted[key]
	if !ok {
		wanted = &wantedStatus{}
		w.wanted[key] = wanted
	}
	if !ok || wanted.version != "" || wanted.uid != elastiService.UID {
		wanted.before = elastiService
	}
	wanted.uid, wanted.status, wanted.version = elastiService.UID, status, ""
	return true
}

// work writes statuses until the queue is shut down.
func (w *statusWriter) work(ctx context.Context, failed func(types.NamespacedName, error)) {
	for {
		key, shutdown := w.queue.Get()
		if shutdown {
			return
		}
		if ctx.Err() == nil {
			if err := w.write(ctx, key); err == nil {
				w.queue.Forget(key)
			} else if ctx.Err() == nil {
				failed(key, err)
				w.queue.AddRateLimited(key)
			}
		}
		w.queue.Done(key)
	}
}

// write writes the status that an ElastiService is to have, if it does not
// have it yet.
func (w *statusWriter) write(ctx context.Context, key types.NamespacedName) error {
	w.mu.Lock()
	wanted := w.wanted[key]
	w.mu.Unlock()
	if wanted == nil {
		return nil
	}
	wanted.writing.Lock()
	defer wanted.writing.Unlock()
	w.mu.Lock()
	uid, before, status, done := wanted.uid, wanted.before, wanted.status, wanted.version != ""
	w.mu.Unlock()
	if done {
		return nil
	}
	updated, err := w.elasti.ElastiV1alpha1().ElastiServices(key.Namespace).
		ApplyStatus(ctx, applyStatus(key, uid, status), metav1.ApplyOptions{FieldManager: statusFieldManager, Force: true})
	switch {
	case apierrors.IsNotFound(err):
		// It is gone, and so is what would be reported of it.
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.wanted[key] == wanted && wanted.uid == uid {
			delete(w.wanted, key)
		}
		return nil
	case err != nil:
		return fmt.Errorf("writing the status: %w", err)
	}
	w.wrote(before, status)
	w.mu.Lock()
	defer w.mu.Unlock()
	if wanted.status != status {
		if wanted.uid == uid {
			wanted.before = withStatus(before, status)
		}
		return nil
	}
	wanted.version = updated.ResourceVersion
	if watched := w.watched(key); w.wanted[key] == wanted && watched != "" && !isNewer(wanted.version, watched) {
		// The watch was faster than the answer: nobody may look again for long.
		delete(w.wanted, key)
	}
	return nil
}

// forget drops the status that an ElastiService was to have.
func (w *statusWriter) forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.wanted, key)
	w.queue.Forget(key)
}

// statusFailed tells of a status that could not be written.
func (c *Controller) statusFailed(ctx context.Context) func(types.NamespacedName, error) {
	return func(key types.NamespacedName, err error) {
		c.metrics.reconciled(key, errorClass(err), 0)
		if errorClass(err) != errorConflict {
			klog.FromContext(ctx).Error(err, "Writing the status of an ElastiService failed, it is tried again", "elastiService", key)
		}
	}
}

// withOwnStatus returns a status with what the controller owns taken from
// another one.
func withOwnStatus(status, own *v1alpha1.ElastiServiceStatus) v1alpha1.ElastiServiceStatus {
	merged := *ownStatus(own)
	merged.LastActivityTime, merged.SleepRequestedTime, merged.Activity = status.LastActivityTime, status.SleepRequestedTime, status.Activity
	for i := range status.Conditions {
		if !slices.Contains(ownConditions, status.Conditions[i].Type) {
			merged.Conditions = append(merged.Conditions, status.Conditions[i])
		}
	}
	return merged
}

// isNewer tells whether a resource version is newer than another one. Versions
// that cannot be compared are not.
func isNewer(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order > 0
}
