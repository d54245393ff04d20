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

// TryTakeNext is TryTake for a client whose connection to the pod of its last lease is
// still open. It returns the same pod while that can serve and is below its concurrency
// limit, unless it is time to find out whether a pod accepts connections again. When pods
// have been added since, it moves once to a less busy one, so that a target that is scaled up
// spreads its load.
func (q *Queue) TryTakeNext(port string, last Lease) (Lease, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if waiters := q.lines[line{port: port}]; waiters != nil && waiters.Len() > 0 {
		return Lease{}, false
	}
	if lease, ok := q.recheck(port); ok {
		return lease, true
	}
	if last.queue == q && last.port == port &&
		q.pods.TakeThis(last.Pod, port, last.Number, q.limits.MaxConcurrencyPerPod, last.arrivals != q.pods.Arrivals()) {
		return q.lease(last.Pod, last.Number, port), true
	}
	return q.take(port)
}

// Usable reports whether the pod of an earlier lease can still receive requests.
func (l Lease) Usable() bool {
	l.queue.mu.Lock()
	defer l.queue.mu.Unlock()
	return l.queue.pods.Usable(l.Pod)
}
