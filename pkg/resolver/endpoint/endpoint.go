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

// Package endpoint tracks the pods behind one Service: which of them can serve,
// and how much each has in flight.
//
// A pod can serve on a port when it is not terminating, the last connection to
// that port was not refused, and the EndpointSlices list it as ready, the probes of
// the resolver succeeded, or a connection to that port was accepted where that is
// enough. A ready pod that refused one gets another one from time to time.
//
// It sends nothing to a pod, and does not know what waits for one. Begin with Set.
package endpoint

import (
	"net/netip"
	"slices"
	"time"
)

const (
	// recheckInterval is how long a port of a ready pod is not used after a refused
	// connection, for which a single lost packet is enough. Then it gets one, and others
	// after pauses that double up to maxRecheckInterval: each may delay a request.
	recheckInterval    = time.Second
	maxRecheckInterval = 30 * time.Second
)

// Description is what the EndpointSlices say about one pod.
type Description struct {
	// ID identifies the pod among those of its Service, also where an earlier pod
	// had the same address.
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

// Pod is one pod of a Service. Its identity and addresses are immutable; all other
// fields belong to its Set.
type Pod struct {
	// ID and Name are those of its description.
	ID, Name string
	// Addresses are those of its description.
	Addresses []netip.Addr

	// Owned by the Set.
	ready, terminating bool
	probed             bool
	ports              map[string]*port
	inFlight           int
	// removed is true once the EndpointSlices no longer list the pod.
	removed bool
	// silent is how many connections it has on which no byte was sent.
	silent int
}

type port struct {
	number uint16
	// accepts: a connection was accepted while the pod was not yet ready.
	accepts bool
	// refused: a connection was refused, and none has been accepted since.
	refused bool
	// recheckAt is when a ready pod that refused a connection is to get another one, and
	// recheckPause how long after that the next one.
	recheckAt    time.Time
	recheckPause time.Duration
}

// serves reports whether the pod can serve on p.
func (pod *Pod) serves(p *port) bool {
	return !pod.terminating && !p.refused && (pod.ready || pod.probed || p.accepts)
}

// Candidate is a port of a pod of which it is not known yet whether it can serve.
type Candidate struct {
	Pod *Pod
	// Port is the name of the Service port, Number the one on the pod.
	Port   string
	Number uint16
	// Ready is true when the EndpointSlices list the pod as ready and only a
	// refused connection makes it unusable.
	Ready bool
}

// Set is the pods of one Service. It is not safe for concurrent use: the queue
// that owns it guards it with its own lock.
type Set struct {
	pods []*Pod
	// next is where the search for a pod begins, so that equally busy pods
	// take turns.
	next int
	// arrivals is how often the number of pods that can serve has grown.
	arrivals uint64
	// serving is that number at the last call of CountArrivals.
	serving int
	// rechecks is true when a port of a pod had refused a connection then.
	rechecks bool
}

// Arrivals returns how often the number of pods that can serve has grown.
func (s *Set) Arrivals() uint64 { return s.arrivals }

// CountArrivals updates Arrivals, and whether there is anything for Recheck. It must be
// called after every change.
func (s *Set) CountArrivals() {
	serving := 0
	s.rechecks = false
	for _, pod := range s.pods {
		if pod.servesAny() {
			serving++
		}
		s.rechecks = s.rechecks || pod.rechecksAny()
	}
	if serving > s.serving {
		s.arrivals++
	}
	s.serving = serving
}

func (pod *Pod) servesAny() bool {
	for _, p := range pod.ports {
		if pod.serves(p) {
			return true
		}
	}
	return false
}

func (pod *Pod) rechecksAny() bool {
	for _, p := range pod.ports {
		if p.refused {
			return true
		}
	}
	return false
}

// Update replaces the pods with those that the EndpointSlices list.
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
		// The kubelet's probe failed, which is newer than the result of the resolver.
		pod.probed = false
	}
	ports := make(map[string]*port, len(description.Ports))
	for name, number := range description.Ports {
		p := pod.ports[name]
		if p == nil || p.number != number {
			p = &port{number: number}
		}
		if becameReady {
			p.refused = false
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

// Take picks the pod with the least in flight among those that can serve on the
// named port and have fewer than limit in flight (0: no limit), and counts one
// more in flight for it. It returns nil when there is none.
func (s *Set) Take(portName string, limit int) (*Pod, uint16) {
	return s.take(portName, limit, func(pod *Pod) *int { return &pod.inFlight })
}

// TakeSilent is Take for a connection on which no byte was sent. Such connections
// are counted separately, with the same limit.
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
		if p == nil || !pod.serves(p) || (limit > 0 && *counter(pod) >= limit) {
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

// Recheck picks a ready pod that has refused a connection to the named port, to find out
// whether it accepts again, unless that was done lately or the pod has limit in flight (0: no
// limit). It counts one more in flight for it. It returns nil when there is none.
func (s *Set) Recheck(portName string, limit int, now func() time.Time) (*Pod, uint16) {
	return s.recheck(portName, limit, now, func(pod *Pod) *int { return &pod.inFlight })
}

// RecheckSilent is Recheck for a connection on which no byte was sent.
func (s *Set) RecheckSilent(portName string, limit int, now func() time.Time) (*Pod, uint16) {
	return s.recheck(portName, limit, now, func(pod *Pod) *int { return &pod.silent })
}

func (s *Set) recheck(portName string, limit int, now func() time.Time, counter func(*Pod) *int) (*Pod, uint16) {
	if !s.rechecks {
		return nil, 0
	}
	at := now()
	for _, pod := range s.pods {
		p := pod.ports[portName]
		if p == nil || !p.refused || !pod.ready || pod.terminating || at.Before(p.recheckAt) || (limit > 0 && *counter(pod) >= limit) {
			continue
		}
		p.recheckAt = at.Add(p.recheckPause)
		p.recheckPause = min(2*p.recheckPause, maxRecheckInterval)
		*counter(pod)++
		return pod, p.number
	}
	return nil, 0
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

// TakeThis counts one more in flight for a pod and reports whether it did. It does
// not when the pod cannot serve on the named port at the number, or has limit in
// flight (0: no limit). With spread it also does not while another pod that can
// serve has less in flight.
func (s *Set) TakeThis(pod *Pod, portName string, number uint16, limit int, spread bool) bool {
	p := pod.ports[portName]
	if pod.removed || p == nil || p.number != number || !pod.serves(p) || (limit > 0 && pod.inFlight >= limit) {
		return false
	}
	if spread {
		for _, other := range s.pods {
			if q := other.ports[portName]; q != nil && other.serves(q) && other.inFlight < pod.inFlight {
				return false
			}
		}
	}
	pod.inFlight++
	return true
}

// Usable reports whether a pod is still listed and not terminating.
func (s *Set) Usable(pod *Pod) bool { return !pod.removed && !pod.terminating }

// Return counts one less in flight for a pod that was taken.
func (s *Set) Return(pod *Pod) {
	pod.inFlight--
}

// ReturnSilent counts one silent connection less for a pod that was taken.
func (s *Set) ReturnSilent(pod *Pod) {
	pod.silent--
}

// MarkActive counts a silent connection of a pod as one in flight, unless the pod has
// limit in flight (0: no limit), and reports whether it did.
func (s *Set) MarkActive(pod *Pod, limit int) bool {
	if limit > 0 && pod.inFlight >= limit {
		return false
	}
	pod.silent--
	pod.inFlight++
	return true
}

// MarkSilent counts one in flight as a silent connection.
func (s *Set) MarkSilent(pod *Pod) {
	pod.inFlight--
	pod.silent++
}

// Serving reports whether any pod can serve on the named port.
func (s *Set) Serving(portName string) bool {
	for _, pod := range s.pods {
		if p := pod.ports[portName]; p != nil && pod.serves(p) {
			return true
		}
	}
	return false
}

// AnyServing reports whether any pod can serve on any port.
func (s *Set) AnyServing() bool {
	return slices.ContainsFunc(s.pods, (*Pod).servesAny)
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

// ConnectionRefused records that a connection to the port of a pod was refused.
func (s *Set) ConnectionRefused(pod *Pod, portName string, now time.Time) {
	if p := pod.ports[portName]; p != nil {
		if !p.refused {
			p.recheckAt, p.recheckPause = now.Add(recheckInterval), 2*recheckInterval
		}
		p.refused, p.accepts = true, false
	}
}

// Accepted records that a connection to the port of a pod was accepted. With
// enough that alone means that the pod can serve on the port.
func (s *Set) Accepted(pod *Pod, portName string, enough bool) {
	if p := pod.ports[portName]; p != nil {
		p.refused = false
		p.accepts = p.accepts || enough
	}
}

// ProbesSucceeded records that the readiness probes of a pod succeeded.
func (s *Set) ProbesSucceeded(pod *Pod) {
	pod.probed = true
}

// NeedsProbe reports whether a candidate is still not known to be able to serve.
func (s *Set) NeedsProbe(candidate Candidate) bool {
	p := candidate.Pod.ports[candidate.Port]
	return p != nil && p.number == candidate.Number && !candidate.Pod.terminating &&
		!candidate.Pod.serves(p) && !candidate.Pod.removed
}

// Candidates appends the candidates on the named port.
func (s *Set) Candidates(candidates []Candidate, portName string) []Candidate {
	for _, pod := range s.pods {
		if p := pod.ports[portName]; p != nil {
			candidates = pod.candidate(candidates, portName, p)
		}
	}
	return candidates
}

// AllCandidates appends the candidates on all ports.
func (s *Set) AllCandidates(candidates []Candidate) []Candidate {
	for _, pod := range s.pods {
		for name, p := range pod.ports {
			candidates = pod.candidate(candidates, name, p)
		}
	}
	return candidates
}

func (pod *Pod) candidate(candidates []Candidate, portName string, p *port) []Candidate {
	if pod.terminating || pod.serves(p) {
		return candidates
	}
	return append(candidates, Candidate{Pod: pod, Port: portName, Number: p.number, Ready: pod.ready})
}
