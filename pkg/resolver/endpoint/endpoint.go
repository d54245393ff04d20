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

// Package endpoint knows the pods behind one Service: which of them can
// answer, and how much each has in flight.
//
// A pod can answer on a port when it is not terminating, no connection to that
// port was refused lately, and either the EndpointSlices call it ready or one
// of our own probes succeeded.
package endpoint

import (
	"net/netip"
	"slices"
)

// Description is what the EndpointSlices say about one pod.
type Description struct {
	// ID tells the pod from others of its Service, also from one that had the
	// same address before.
	ID string
	// Name is the name of the pod, for logs; may be empty.
	Name string
	// Addresses are the addresses of the pod, the preferred one first.
	Addresses []netip.Addr
	// Ports maps the name of a Service port to the port number on the pod.
	Ports map[string]uint16
	// Ready and Terminating are the conditions of the same name.
	Ready, Terminating bool
}

// Pod is one pod of a Service. Its identity and addresses never change and may
// be read by anyone; everything else belongs to its Set.
type Pod struct {
	// ID and Name are those of its description.
	ID, Name string
	// Addresses are those of its description.
	Addresses []netip.Addr

	// Owned by the Set.
	ready, terminating bool
	confirmed          bool
	ports              map[string]*port
	inFlight           int
	// removed is true once the EndpointSlices do not list it any more.
	removed bool
	// silent is how many connections it has on which nothing was said.
	silent int
}

type port struct {
	number uint16
	// accepts: a connection was accepted while the pod was not yet ready.
	accepts bool
	// refuses: a connection was refused, and none has been accepted since.
	refuses bool
}

// answers reports whether the pod can answer on p.
func (pod *Pod) answers(p *port) bool {
	return !pod.terminating && !p.refuses && (pod.ready || pod.confirmed || p.accepts)
}

// Question is what is not known about a pod: whether it can answer on a port.
type Question struct {
	Pod *Pod
	// Port is the name of the Service port, Number the one on the pod.
	Port   string
	Number uint16
	// Ready is true when the EndpointSlices call the pod ready, and only a
	// refused connection speaks against it.
	Ready bool
}

// Set is the pods of one Service. It is not safe for concurrent use: the queue
// that owns it guards it with its own lock.
type Set struct {
	pods []*Pod
	// next is where the search for a pod begins, so that equally busy pods
	// take turns.
	next int
	// arrivals counts how often pods have come that can answer.
	arrivals uint64
	// answering is how many could when that was counted last.
	answering int
}

// Arrivals returns how often pods have come that can answer on any port.
func (s *Set) Arrivals() uint64 { return s.arrivals }

// CountArrivals brings Arrivals up to date. It is called after every change.
func (s *Set) CountArrivals() {
	answering := 0
	for _, pod := range s.pods {
		if pod.answersAny() {
			answering++
		}
	}
	if answering > s.answering {
		s.arrivals++
	}
	s.answering = answering
}

func (pod *Pod) answersAny() bool {
	for _, p := range pod.ports {
		if pod.answers(p) {
			return true
		}
	}
	return false
}

// Update replaces what the EndpointSlices say.
func (s *Set) Update(descriptions []Description) {
	known := make(map[string]*Pod, len(s.pods))
	for _, pod := range s.pods {
		known[pod.ID] = pod
		pod.removed = true
	}
	pods := make([]*Pod, 0, len(descriptions))
	for _, description := range descriptions {
		pod := known[description.ID]
		if pod == nil || !sameAddresses(pod.Addresses, description.Addresses) {
			pod = &Pod{ID: description.ID, Name: description.Name, Addresses: description.Addresses}
		}
		pod.update(description)
		pod.removed = false
		pods = append(pods, pod)
	}
	s.pods = pods
}

func (pod *Pod) update(description Description) {
	becameReady := description.Ready && !pod.ready
	becameUnready := !description.Ready && pod.ready
	if becameUnready {
		// What was learned before it failed its probe is no longer worth anything.
		pod.confirmed = false
	}
	ports := make(map[string]*port, len(description.Ports))
	for name, number := range description.Ports {
		p := pod.ports[name]
		if p == nil || p.number != number {
			p = &port{number: number}
		}
		if becameReady {
			p.refuses = false
		}
		if becameUnready {
			p.accepts = false
		}
		ports[name] = p
	}
	pod.ports = ports
	pod.ready = description.Ready
	pod.terminating = description.Terminating
}

func sameAddresses(a, b []netip.Addr) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// Take picks the pod with the least in flight among those that can answer on
// the named port and have fewer than limit in flight (0: no limit), and counts
// one more in flight for it. It returns nil when there is none.
func (s *Set) Take(portName string, limit int) (*Pod, uint16) {
	return s.take(portName, limit, func(pod *Pod) *int { return &pod.inFlight })
}

// TakeSilent is Take for a connection on which nothing was said. These are
// counted by themselves, with the same limit.
func (s *Set) TakeSilent(portName string, limit int) (*Pod, uint16) {
	return s.take(portName, limit, func(pod *Pod) *int { return &pod.silent })
}

func (s *Set) take(portName string, limit int, counter func(*Pod) *int) (*Pod, uint16) {
	var best *Pod
	var number uint16
	count := len(s.pods)
	for i := range count {
		pod := s.pods[(s.next+i)%count]
		p := pod.ports[portName]
		if p == nil || !pod.answers(p) || (limit > 0 && *counter(pod) >= limit) {
			continue
		}
		if best == nil || *counter(pod) < *counter(best) {
			best, number = pod, p.number
		}
	}
	if best != nil {
		*counter(best)++
		s.next = (s.next + 1) % count
	}
	return best, number
}

// TakeAgain counts one more in flight for a pod that was taken before, unless it
// has limit in flight already (0: no limit), and reports whether it did.
func (s *Set) TakeAgain(pod *Pod, limit int) bool {
	if limit > 0 && pod.inFlight >= limit {
		return false
	}
	pod.inFlight++
	return true
}

// TakeThis counts one more in flight for a pod, unless it cannot answer on the
// named port at the number, or has limit in flight (0: no limit), and reports
// whether it did. With spread it does not either while another pod could be taken
// that has less in flight.
func (s *Set) TakeThis(pod *Pod, portName string, number uint16, limit int, spread bool) bool {
	p := pod.ports[portName]
	if pod.removed || p == nil || p.number != number || !pod.answers(p) || (limit > 0 && pod.inFlight >= limit) {
		return false
	}
	if spread {
		for _, other := range s.pods {
			if q := other.ports[portName]; q != nil && other.answers(q) && other.inFlight < pod.inFlight {
				return false
			}
		}
	}
	pod.inFlight++
	return true
}

// Usable reports whether a pod is still there and not about to end.
func (s *Set) Usable(pod *Pod) bool { return !pod.removed && !pod.terminating }

// Return counts one less in flight for a pod that was taken.
func (s *Set) Return(pod *Pod) {
	pod.inFlight--
}

// ReturnSilent counts one silent connection less for a pod that was taken.
func (s *Set) ReturnSilent(pod *Pod) {
	pod.silent--
}

// Speak counts a silent connection of a pod as one in flight, and reports
// whether there was room for it below limit (0: no limit).
func (s *Set) Speak(pod *Pod, limit int) bool {
	if limit > 0 && pod.inFlight >= limit {
		return false
	}
	pod.silent--
	pod.inFlight++
	return true
}

// Fall counts one in flight as a silent connection.
func (s *Set) Fall(pod *Pod) {
	pod.inFlight--
	pod.silent++
}

// Answering reports whether any pod can answer on the named port.
func (s *Set) Answering(portName string) bool {
	for _, pod := range s.pods {
		if p := pod.ports[portName]; p != nil && pod.answers(p) {
			return true
		}
	}
	return false
}

// AnyAnswering reports whether any pod can answer on any port.
func (s *Set) AnyAnswering() bool {
	return slices.ContainsFunc(s.pods, (*Pod).answersAny)
}

// Count returns how many pods there are that are not terminating.
func (s *Set) Count() int {
	count := 0
	for _, pod := range s.pods {
		if !pod.terminating {
			count++
		}
	}
	return count
}

// InFlight returns how much all pods of the set have in flight.
func (s *Set) InFlight() int {
	sum := 0
	for _, pod := range s.pods {
		sum += pod.inFlight
	}
	return sum
}

// Silent returns how many silent connections all pods of the set have.
func (s *Set) Silent() int {
	sum := 0
	for _, pod := range s.pods {
		sum += pod.silent
	}
	return sum
}

// Refused notes that a connection to the port of a pod was not accepted.
func (s *Set) Refused(pod *Pod, portName string) {
	if p := pod.ports[portName]; p != nil {
		p.refuses, p.accepts = true, false
	}
}

// Accepted notes that a connection to the port of a pod was accepted, and
// whether that alone means that the pod can answer on it.
func (s *Set) Accepted(pod *Pod, portName string, enough bool) {
	if p := pod.ports[portName]; p != nil {
		p.refuses = false
		p.accepts = p.accepts || enough
	}
}

// Confirmed notes that the readiness probes of a pod succeeded.
func (s *Set) Confirmed(pod *Pod) {
	pod.confirmed = true
}

// Open reports whether a question is still unanswered.
func (s *Set) Open(question Question) bool {
	p := question.Pod.ports[question.Port]
	return p != nil && p.number == question.Number && !question.Pod.terminating &&
		!question.Pod.answers(p) && !question.Pod.removed
}

// Questions appends what is unknown about the pods on the named port.
func (s *Set) Questions(questions []Question, portName string) []Question {
	for _, pod := range s.pods {
		if p := pod.ports[portName]; p != nil {
			questions = pod.question(questions, portName, p)
		}
	}
	return questions
}

// AllQuestions appends what is unknown about the pods on any port.
func (s *Set) AllQuestions(questions []Question) []Question {
	for _, pod := range s.pods {
		for name, p := range pod.ports {
			questions = pod.question(questions, name, p)
		}
	}
	return questions
}

func (pod *Pod) question(questions []Question, portName string, p *port) []Question {
	if pod.terminating || pod.answers(p) {
		return questions
	}
	return append(questions, Question{Pod: pod, Port: portName, Number: p.number, Ready: pod.ready})
}
