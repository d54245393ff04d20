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
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const (
	// wakeRecordDelay is how much later than the wake its record is written: held
	// traffic and the statuses that resolvers act on come first.
	wakeRecordDelay = 500 * time.Millisecond
	// wakeRecordWorkers is how many records are written at a time.
	wakeRecordWorkers = 4
	// maxWakeRecords bounds the pending records. Further ones are dropped.
	maxWakeRecords = 20000
	// maxWakeRecordAttempts bounds the attempts to write a record: after 0.5, 1, 2,
	// 4 and 8 s.
	maxWakeRecordAttempts = 5
)

// WakeRecorder records in statuses which client woke the target, when and why. It
// does so after the wakes, which need no write to the storage. It is safe for
// concurrent use.
type WakeRecorder struct {
	statuses *StatusWriter

	mu sync.Mutex
	// queue is set by Run. Its workers use it without the mutex.
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]
	// pending has the last wake of each ElastiService that is not recorded yet.
	pending map[types.NamespacedName]pendingWake
}

// pendingWake is the record of a wake that is not written yet.
type pendingWake struct {
	uid    types.UID
	target v1alpha1.ScaleTargetRef
	record v1alpha1.WakeRecord
}

func newWakeRecorder(statuses *StatusWriter) *WakeRecorder {
	return &WakeRecorder{statuses: statuses, pending: map[types.NamespacedName]pendingWake{}}
}

// record enqueues the record of a wake of the target of an ElastiService. It does
// not block.
func (r *WakeRecorder) record(elastiService *elasti.ElastiService, wake elasti.WakeRecord) {
	key := cache.MetaObjectToName(elastiService).AsNamespacedName()
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.pending[key]; !ok && len(r.pending) >= maxWakeRecords {
		return
	}
	r.pending[key] = pendingWake{elastiService.UID, v1alpha1.ScaleTargetRef(elastiService.Spec.ScaleTargetRef), v1alpha1.WakeRecord{Time: wake.Time, By: wake.By, Reason: wake.Reason}}
	if r.queue != nil {
		r.queue.AddAfter(key, wakeRecordDelay)
	}
}

// Run writes records until ctx ends. It returns when everything that it started has
// ended. It must be called once.
func (r *WakeRecorder) Run(ctx context.Context) {
	queue := workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](wakeRecordDelay, time.Minute))
	r.start(queue)
	var running sync.WaitGroup
	defer running.Wait()
	defer queue.ShutDown()
	for range wakeRecordWorkers {
		running.Go(func() {
			for {
				key, shutdown := queue.Get()
				if shutdown {
					return
				}
				if ctx.Err() == nil {
					r.write(ctx, key)
				}
				queue.Done(key)
			}
		})
	}
	<-ctx.Done()
}

// start schedules the records of the wakes before Run.
func (r *WakeRecorder) start(queue workqueue.TypedRateLimitingInterface[types.NamespacedName]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = queue
	for key := range r.pending {
		queue.AddAfter(key, wakeRecordDelay)
	}
}

// write writes the record of the last wake of an ElastiService.
func (r *WakeRecorder) write(ctx context.Context, key types.NamespacedName) {
	r.mu.Lock()
	pending, ok := r.pending[key]
	r.mu.Unlock()
	if !ok {
		return
	}
	_, err := r.statuses.UpdateStatus(ctx, key, pending.uid, func(stored *v1alpha1.ElastiService) error {
		if stored.Spec.ScaleTargetRef == pending.target {
			stored.Status.LastWake = v1alpha1.LatestWake(stored.Status.LastWake, &pending.record, time.Now())
		}
		return nil
	})
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil && r.queue.NumRequeues(key) < maxWakeRecordAttempts {
		r.queue.AddRateLimited(key)
		return
	}
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to record a wake in the status", "elastiService", key)
	}
	r.queue.Forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending[key] == pending {
		delete(r.pending, key)
	}
}

func newWakeRecord(ctx context.Context, why string) elasti.WakeRecord {
	return elasti.WakeRecord{Time: metav1.Now().Rfc3339Copy(), By: callerOf(ctx), Reason: why}
}
