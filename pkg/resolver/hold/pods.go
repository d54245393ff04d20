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

// SetPods replaces what the EndpointSlices say about the pods.
func (q *Queue) SetPods(descriptions []endpoint.Description) {
	q.update(func() { q.pods.Update(descriptions) })
}

// Accepted tells that a connection to the port of a pod was accepted. It is
// enough when that alone means that the pod can answer.
func (q *Queue) Accepted(question endpoint.Question, enough bool) {
	q.update(func() { q.pods.Accepted(question.Pod, question.Port, enough) })
}

// Confirmed tells that the readiness probes of a pod succeeded.
func (q *Queue) Confirmed(question endpoint.Question) {
	q.update(func() { q.pods.Confirmed(question.Pod) })
}

func (q *Queue) update(change func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	change()
	q.pods.CountArrivals()
	if (q.held > 0 || q.keepAwakes > 0) && q.cold.EndpointReady.IsZero() && q.pods.AnyAnswering() {
		q.cold.EndpointReady = q.now()
	}
	q.signal()
	q.dispatch()
}

// Questions returns what is unknown about the pods on the ports that something
// waits for, and on all ports while pods are asked for without that.
func (q *Queue) Questions() []endpoint.Question {
	q.mu.Lock()
	defer q.mu.Unlock()
	var questions []endpoint.Question
	if q.keepAwakes > 0 {
		return q.pods.AllQuestions(questions)
	}
	for line := range q.lines {
		if line.pod == nil {
			questions = q.pods.Questions(questions, line.port)
		}
	}
	return questions
}

// Open reports whether a question is still worth asking.
func (q *Queue) Open(question endpoint.Question) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pods.Open(question)
}

// Changed returns a channel that has a value when the pods, or what is waited
// for, may have changed since the last receive. It has one receiver.
func (q *Queue) Changed() <-chan struct{} { return q.changed }

// signal tells the worker that something changed.
func (q *Queue) signal() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// Answering reports whether any pod can answer on the named port.
func (q *Queue) Answering(port string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pods.Answering(port)
}

// Wanting reports whether something waits for a pod, or asked for one, while
// there is none that can answer.
func (q *Queue) Wanting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for line := range q.lines {
		if line.pod == nil && !q.pods.Answering(line.port) {
			return true
		}
	}
	return q.keepAwakes > 0 && !q.pods.AnyAnswering()
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
