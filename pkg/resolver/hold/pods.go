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

import (
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
)

// SetLimits changes the limits. What is already held stays held.
func (q *Queue) SetLimits(limits Limits) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limits = limits
	q.dispatch()
}

// SetPods replaces the pods with those that the EndpointSlices list.
func (q *Queue) SetPods(descriptions []endpoint.Description) {
	q.update(func() { q.pods.Update(descriptions) })
}

// Accepted records that a connection to the port of a pod was accepted. With
// enough that alone means that the pod can serve on the port.
func (q *Queue) Accepted(candidate endpoint.Candidate, enough bool) {
	q.update(func() { q.pods.Accepted(candidate.Pod, candidate.Port, enough) })
}

// ProbesSucceeded records that the readiness probes of a pod succeeded.
func (q *Queue) ProbesSucceeded(candidate endpoint.Candidate) {
	q.update(func() { q.pods.ProbesSucceeded(candidate.Pod) })
}

func (q *Queue) update(change func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	change()
	q.pods.CountArrivals()
	if (q.held > 0 || q.keepAwakes > 0) && q.cold.EndpointReady.IsZero() && q.pods.AnyServing() {
		q.cold.EndpointReady = q.now()
	}
	q.signal()
	q.dispatch()
}

// Candidates returns the pods to probe: those on the ports that a waiter waits
// for, and those on all ports while KeepAwake is in effect.
func (q *Queue) Candidates() []endpoint.Candidate {
	q.mu.Lock()
	defer q.mu.Unlock()
	var candidates []endpoint.Candidate
	if q.keepAwakes > 0 {
		return q.pods.AllCandidates(candidates)
	}
	for line := range q.lines {
		if line.pod == nil {
			candidates = q.pods.Candidates(candidates, line.port)
		}
	}
	return candidates
}

// NeedsProbe reports whether a candidate is still not known to be able to serve.
func (q *Queue) NeedsProbe(candidate endpoint.Candidate) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pods.NeedsProbe(candidate)
}

// Changed returns a channel that has a value when the pods or the waiters may have
// changed since the last receive. It has one receiver.
func (q *Queue) Changed() <-chan struct{} { return q.changed }

// signal notifies the worker of a change.
func (q *Queue) signal() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// Serving reports whether any pod can serve on the named port.
func (q *Queue) Serving(port string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pods.Serving(port)
}

// NeedsPod reports whether there is a waiter or KeepAwake is in effect while no pod
// can serve.
func (q *Queue) NeedsPod() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for line := range q.lines {
		if line.pod == nil && !q.pods.Serving(line.port) {
			return true
		}
	}
	return q.keepAwakes > 0 && !q.pods.AnyServing()
}

// Held returns how many waiters there are.
func (q *Queue) Held() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held
}

// Pods returns how many pods there are that are not terminating, ready or not.
func (q *Queue) Pods() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pods.Count()
}

// InFlight returns how many leases on current pods have not ended.
func (q *Queue) InFlight() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pods.InFlight()
}
