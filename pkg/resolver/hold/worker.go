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

package hold

import "context"

// WakeSucceeded records that a wake call succeeded.
func (q *Queue) WakeSucceeded() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cold.WakeSucceeded.IsZero() {
		q.cold.WakeSucceeded = q.now()
	}
}

// ColdStart returns the times of the current or latest cold start.
func (q *Queue) ColdStart() ColdStart {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cold
}

// KeepAwake keeps the worker running without holding anything, until the function
// that it returns is called.
func (q *Queue) KeepAwake() (stop func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.keepAwakes++
	if q.held == 0 && q.keepAwakes == 1 && !q.pods.AnyServing() {
		q.cold = ColdStart{Began: q.now()}
	}
	q.ensureRunning()
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.keepAwakes--
		q.ensureRunning()
	}
}

// ensureRunning starts the worker when it is needed and cancels it when it is not.
// It must be called with mu held.
func (q *Queue) ensureRunning() {
	needed := !q.closed && (q.held > 0 || q.keepAwakes > 0)
	switch {
	case needed && q.worker == nil:
		ctx, cancel := context.WithCancel(context.Background())
		q.worker = cancel
		q.working.Go(func() { q.runWorker(ctx) })
	case !needed && q.worker != nil:
		q.worker()
	}
}

func (q *Queue) runWorker(ctx context.Context) {
	q.tasks.Repeat(ctx, func() { q.work(ctx) })
	q.mu.Lock()
	defer q.mu.Unlock()
	q.worker()
	q.worker = nil
	// Something may have been held between the end of ctx and now.
	q.ensureRunning()
}

// Close ends all waits with ErrClosed, admits no more, and returns when the worker
// has ended. Leases stay valid.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	for w := q.newest(); w != nil; w = q.newest() {
		q.remove(w)
		w.err = ErrClosed
		w.Resolve()
	}
	q.ensureRunning()
	q.mu.Unlock()
	q.working.Wait()
}
