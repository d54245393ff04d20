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

package durability

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elastiv1alpha1client "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
)

const (
	// writerCount is how many writers a load has.
	writerCount = 16
	// changesPerObject is how often a writer changes an ElastiService after its creation.
	changesPerObject = 3
	// keptEvery is of how many ElastiServices of a writer one is not deleted.
	keptEvery = 2
)

// load is concurrent writers that create, change and delete ElastiServices, each of them
// its own. It ends with stop.
type load struct {
	client  elastiv1alpha1client.ElastiServiceInterface
	writers []*writer
	running sync.WaitGroup
	end     context.CancelFunc
	// acknowledged counts the writes that were, failed those that got an error or no
	// response, so that it is not known whether they are carried out, and found those of
	// them that a later read has found to be.
	acknowledged, failed, found atomic.Int64
	// gate is held for reading during each request, and for writing while the load pauses.
	gate sync.RWMutex
}

// startLoad starts a load in a namespace, through the aggregator.
func startLoad(t *testing.T, namespace string) *load {
	t.Helper()
	ctx, end := context.WithCancel(context.Background())
	l := &load{client: elastiServices(t, throughTheAggregator(), namespace), end: end}
	for number := range writerCount {
		w := &writer{load: l, number: number}
		l.writers = append(l.writers, w)
		l.running.Go(func() { w.run(ctx) })
	}
	t.Cleanup(l.stop)
	return l
}

// stop ends the writers after their current requests. It may be called more than once.
func (l *load) stop() {
	l.end()
	l.running.Wait()
}

// pause returns when no request of the load is in progress. There is none until resume is
// called, or the test ends.
func (l *load) pause(t *testing.T) (resume func()) {
	t.Helper()
	l.gate.Lock()
	resume = sync.OnceFunc(l.gate.Unlock)
	t.Cleanup(resume)
	return resume
}

// awaitAcknowledged waits until that many more writes are acknowledged.
func (l *load) awaitAcknowledged(t *testing.T, more int64) {
	t.Helper()
	want := l.acknowledged.Load() + more
	eventually(t, fmt.Sprintf("%d more writes are acknowledged", more), func(context.Context) string {
		if missing := want - l.acknowledged.Load(); missing > 0 {
			return fmt.Sprintf("%d are missing", missing)
		}
		return ""
	})
}

// writer is a writer of a load. Its fields other than load belong to run until the load
// has stopped.
type writer struct {
	load       *load
	number     int
	records    []*record
	complaints []string
}

// releases reports whether the writer removes the finalizers of what it deletes, as an
// administrator may. All of its ElastiServices then name the same Service, one after the
// other.
func (w *writer) releases() bool { return w.number%2 == 1 }

func (w *writer) run(ctx context.Context) {
	for ctx.Err() == nil && len(w.complaints) == 0 {
		r := &record{name: fmt.Sprintf("writer-%d-%d", w.number, len(w.records))}
		r.service = r.name
		if w.releases() {
			r.service = fmt.Sprintf("writer-%d", w.number)
		}
		w.records = append(w.records, r)
		current := w.create(ctx, r)
		for range changesPerObject {
			current = w.change(ctx, r, current)
		}
		if w.releases() || len(w.records)%keptEvery == 0 {
			w.remove(ctx, r)
		}
	}
}

// goesOn reports whether a step of run is to be made.
func (w *writer) goesOn(ctx context.Context) bool { return ctx.Err() == nil && len(w.complaints) == 0 }

// request makes one request, which finishes also when the load ends meanwhile.
func (w *writer) request(ctx context.Context, send func(ctx context.Context) error) error {
	w.load.gate.RLock()
	defer w.load.gate.RUnlock()
	return send(context.WithoutCancel(ctx))
}

func (w *writer) complain(format string, arguments ...any) {
	w.complaints = append(w.complaints, fmt.Sprintf(format, arguments...))
}

// acknowledge records that a write was acknowledged, with the state that it made.
func (w *writer) acknowledge(r *record, stored *v1alpha1.ElastiService) {
	w.load.acknowledged.Add(1)
	if stored == nil {
		return
	}
	if counter, err := counterOf(stored); err != nil || counter != r.sent {
		w.complain("the response to write %d of %s is not of that write: %+v (%v)", r.sent, r.name, stored, err)
	}
	r.learn(stored)
}

// create creates the ElastiService of a record, and returns it.
func (w *writer) create(ctx context.Context, r *record) (created *v1alpha1.ElastiService) {
	for w.goesOn(ctx) {
		r.sent++
		err := w.request(ctx, func(ctx context.Context) (err error) {
			created, err = w.load.client.Create(ctx, r.newObject(), metav1.CreateOptions{})
			return err
		})
		switch {
		case err == nil:
			w.acknowledge(r, created)
			return created
		case apierrors.IsInvalid(err):
			w.complain("the creation of %s was rejected: %v", r.name, err)
		case !apierrors.IsAlreadyExists(err):
			w.load.failed.Add(1)
		}
		// An attempt before may have been carried out.
		if existing := w.read(ctx, r); existing != nil {
			return existing
		}
	}
	return nil
}

// change changes an ElastiService that is as in current, and returns it.
func (w *writer) change(ctx context.Context, r *record, current *v1alpha1.ElastiService) *v1alpha1.ElastiService {
	for w.goesOn(ctx) && current != nil {
		r.sent++
		next := current.DeepCopy()
		setCounter(next, r.sent)
		var changed *v1alpha1.ElastiService
		err := w.request(ctx, func(ctx context.Context) (err error) {
			changed, err = w.load.client.Update(ctx, next, metav1.UpdateOptions{})
			return err
		})
		switch {
		case err == nil:
			w.acknowledge(r, changed)
			return changed
		case apierrors.IsInvalid(err):
			w.complain("write %d of %s was rejected: %v", r.sent, r.name, err)
		case !apierrors.IsConflict(err):
			w.load.failed.Add(1)
		}
		// The controller may have changed it meanwhile, or this attempt.
		current = w.read(ctx, r)
	}
	return current
}

// remove deletes an ElastiService.
func (w *writer) remove(ctx context.Context, r *record) {
	for w.goesOn(ctx) && !r.deleted {
		repeated := r.deletionSent
		r.deletionSent = true
		err := w.request(ctx, func(ctx context.Context) error {
			return w.load.client.Delete(ctx, r.name, metav1.DeleteOptions{})
		})
		switch {
		case err == nil:
			w.acknowledge(r, nil)
			r.deleted = true
		case apierrors.IsNotFound(err):
			if !repeated {
				w.complain("%s does not exist at its first deletion, but its write %d was acknowledged", r.name, r.acknowledged)
			}
			r.deleted, r.removed = true, true
		default:
			w.load.failed.Add(1)
			w.read(ctx, r)
		}
	}
	for w.releases() && w.goesOn(ctx) && !r.removed {
		w.release(ctx, r)
	}
}

// release removes the finalizers of an ElastiService that is being deleted, if it still
// exists.
func (w *writer) release(ctx context.Context, r *record) {
	existing := w.read(ctx, r)
	if existing == nil {
		r.removed = w.goesOn(ctx)
		return
	}
	existing.Finalizers = nil
	err := w.request(ctx, func(ctx context.Context) error {
		_, err := w.load.client.Update(ctx, existing, metav1.UpdateOptions{})
		return err
	})
	switch {
	case err == nil:
		w.load.acknowledged.Add(1)
	case !apierrors.IsConflict(err) && !apierrors.IsNotFound(err):
		w.load.failed.Add(1)
	}
}

// read waits until the ElastiService of a record can be read, and returns it as it is
// stored, or nil if it does not exist or the load ends.
func (w *writer) read(ctx context.Context, r *record) (stored *v1alpha1.ElastiService) {
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		err := w.request(ctx, func(ctx context.Context) (err error) {
			stored, err = w.load.client.Get(ctx, r.name, metav1.GetOptions{})
			return err
		})
		if apierrors.IsNotFound(err) {
			stored, err = nil, nil
		}
		return err == nil, nil
	})
	if err != nil {
		return nil
	}
	if complaint := r.complaint(stored); complaint != "" {
		w.complain("%s", complaint)
	}
	if stored != nil {
		before := r.acknowledged
		if r.learn(stored); r.acknowledged > before {
			w.load.found.Add(1)
		}
	}
	return stored
}
