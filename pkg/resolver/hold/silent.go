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

// TryTakeSilent returns a silent lease, for a connection on which no byte was sent,
// when a pod can be used at once. Such connections are not in flight: they have a
// limit of their own, of the same size.
func (q *Queue) TryTakeSilent(port string) (Lease, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if pod, number := q.pods.RecheckSilent(port, q.limits.MaxConcurrencyPerPod, q.now); pod != nil {
		return Lease{Pod: pod, Number: number, queue: q, port: port, silent: true, recheck: true}, true
	}
	return q.takeSilent(port)
}

// takeSilent is TryTakeSilent. It must be called with mu held.
func (q *Queue) takeSilent(port string) (Lease, bool) {
	pod, number := q.pods.TakeSilent(port, q.limits.MaxConcurrencyPerPod)
	if pod == nil {
		return Lease{}, false
	}
	return Lease{Pod: pod, Number: number, queue: q, port: port, silent: true}, true
}

// Silent returns how many silent connections wait for a pod, and how many have a
// lease on a current pod.
func (q *Queue) Silent() (waiting, leased int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, line := range q.silent {
		waiting += line.Len()
	}
	return waiting, q.pods.Silent()
}

// MarkActive returns the lease as one that is in flight, once a byte was sent on the
// connection. When the pod has reached its concurrency limit it returns false and
// the lease unchanged; with anyway, for a connection that cannot move to another
// pod, the limit does not apply. It must be called on a silent lease.
func (l Lease) MarkActive(anyway bool) (Lease, bool) {
	q := l.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	limit := q.limits.MaxConcurrencyPerPod
	if anyway {
		limit = 0
	}
	if !q.pods.MarkActive(l.Pod, limit) {
		return l, false
	}
	l.silent = false
	q.dispatch()
	return l, true
}

// MarkSilent returns the lease as a silent one, because no byte was sent on the
// connection. It must not be called on a silent lease.
func (l Lease) MarkSilent() Lease {
	q := l.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pods.MarkSilent(l.Pod)
	l.silent = true
	q.dispatch()
	return l
}

// Promote makes a silent waiter one that is held and wakes the target, at the end of the
// line. It calls before with the queue locked, before the new wait can be resolved. It
// returns false when the wait is over already, or the limit on waiters is reached; Result
// then returns how it ended.
func (q *Queue) Promote(w *Waiter, before func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.resolved {
		return false
	}
	if q.held >= q.limits.MaxPending {
		q.remove(w)
		w.err = ErrTooManyPending
		return false
	}
	before()
	q.leaveLine(w)
	w.Silent = false
	q.enter(w, false)
	return true
}
