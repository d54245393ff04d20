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

import "github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"

// TakeAgain returns a lease on a pod to which the caller has a connection from
// an earlier lease on the named port. The connection stays usable when the pod
// becomes unready, as it does without a resolver. TakeAgain fails only when the pod
// has reached its concurrency limit, or other waiters wait for that pod; a Waiter
// with the pod can wait as well.
func (q *Queue) TakeAgain(port string, pod *endpoint.Pod, number uint16) (Lease, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if waiters := q.lines[line{port: port, pod: pod}]; waiters != nil && waiters.Len() > 0 {
		return Lease{}, false
	}
	return q.takeAgain(port, pod, number)
}

// takeAgain is TakeAgain without the waiters. It must be called with mu held.
func (q *Queue) takeAgain(port string, pod *endpoint.Pod, number uint16) (Lease, bool) {
	if !q.pods.TakeAgain(pod, q.limits.MaxConcurrencyPerPod) {
		return Lease{}, false
	}
	return Lease{Pod: pod, Number: number, queue: q, port: port}, true
}

// Charge adds bytes to the memory of a waiter, and fails with an error of the
// memory package when they exceed a limit. A waiter whose wait is over is not
// charged.
func (q *Queue) Charge(w *Waiter, bytes int64) error {
	// Taking memory may make other queues and this one shed, which locks mu.
	if err := q.account.Take(bytes); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.resolved || w.place == nil {
		q.account.Give(bytes)
		return nil
	}
	w.Bytes += bytes
	return nil
}
