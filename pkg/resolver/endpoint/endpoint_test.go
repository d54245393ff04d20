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

package endpoint

import (
	"net/netip"
	"testing"
	"time"
)

func describe(id string, ready, terminating bool) Description {
	return Description{
		ID: id, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		Ports: map[string]uint16{"http": 8080, "admin": 9090}, Ready: ready, Terminating: terminating,
	}
}

func take(s *Set, port string, limit int) string {
	pod, _ := s.Take(port, limit)
	if pod == nil {
		return ""
	}
	return pod.ID
}

func TestTakeSpreads(t *testing.T) {
	var s Set
	s.Update([]Description{describe("a", true, false), describe("b", true, false), describe("c", true, false)})
	counts := map[string]int{}
	for range 9 {
		counts[take(&s, "http", 0)]++
	}
	if counts["a"] != 3 || counts["b"] != 3 || counts["c"] != 3 {
		t.Errorf("9 requests went to %v", counts)
	}
	// What is in flight survives an update, and the idle pod comes first.
	s.Update([]Description{describe("a", true, false), describe("d", true, false)})
	for range 3 {
		if got := take(&s, "http", 0); got != "d" {
			t.Errorf("took %q, want the idle pod", got)
		}
	}
	if got := s.InFlight(); got != 6 {
		t.Errorf("%d are in flight", got)
	}
}

func TestTakeRespectsTheLimit(t *testing.T) {
	var s Set
	s.Update([]Description{describe("a", true, false)})
	pod, number := s.Take("http", 1)
	if pod == nil || number != 8080 {
		t.Fatalf("took %v, %d", pod, number)
	}
	// The limit is the pod's, whatever the port.
	if got := take(&s, "admin", 1); got != "" {
		t.Errorf("took %q over the limit", got)
	}
	s.Return(pod)
	if got := take(&s, "admin", 1); got != "a" {
		t.Errorf("took %q after the return", got)
	}
}

func TestWhichPodsCanServe(t *testing.T) {
	var s Set
	serves := func(want bool) {
		t.Helper()
		if got := s.Serving("http"); got != want {
			t.Errorf("serving is %t, want %t", got, want)
		}
	}
	candidate := func() Candidate {
		t.Helper()
		candidates := s.Candidates(nil, "http")
		if len(candidates) != 1 {
			t.Fatalf("there are %d candidates", len(candidates))
		}
		return candidates[0]
	}
	serves(false)
	s.Update([]Description{describe("a", true, true)})
	serves(false)
	if candidates := s.Candidates(nil, "http"); len(candidates) != 0 {
		t.Error("a terminating pod is a candidate")
	}

	s.Update([]Description{describe("a", false, false)})
	serves(false)
	s.ProbesSucceeded(candidate().Pod)
	serves(true)

	// A pod that becomes unready is not usable because of an earlier probe.
	s.Update([]Description{describe("a", true, false)})
	serves(true)
	s.Update([]Description{describe("a", false, false)})
	serves(false)

	// A refused connection makes its port unusable until one is accepted.
	s.Update([]Description{describe("a", true, false)})
	pod, _ := s.Take("http", 0)
	s.Return(pod)
	s.ConnectionRefused(pod, "http", time.Time{})
	serves(false)
	if !s.Serving("admin") {
		t.Error("the other port does not serve")
	}
	q := candidate()
	if !q.Ready || !s.NeedsProbe(q) {
		t.Errorf("the candidate is %+v", q)
	}
	s.Accepted(q.Pod, "http", false)
	serves(true)
	if s.NeedsProbe(q) {
		t.Error("the candidate still needs a probe")
	}

	// It also becomes usable again when the pod becomes ready again.
	s.ConnectionRefused(pod, "http", time.Time{})
	s.Update([]Description{describe("a", false, false)})
	s.Update([]Description{describe("a", true, false)})
	serves(true)
}

// TestPortsThatDidNotAcceptAreRechecked checks that a ready pod which refused a connection
// to a port gets one connection after each pause, and that others get none.
func TestPortsThatDidNotAcceptAreRechecked(t *testing.T) {
	var s Set
	now := time.Unix(1000, 0)
	clock := func() time.Time { return now }
	recheck := func(port string, limit int) string {
		t.Helper()
		pod, number := s.Recheck(port, limit, clock)
		if pod == nil {
			return ""
		}
		if number != pod.ports[port].number {
			t.Errorf("the number is %d", number)
		}
		s.Return(pod)
		return pod.ID
	}
	fail := func(id, port string) {
		t.Helper()
		for _, pod := range s.pods {
			if pod.ID == id {
				s.ConnectionRefused(pod, port, now)
				s.CountArrivals()
			}
		}
	}
	expect := func(when, port string, want ...string) {
		t.Helper()
		for _, want := range want {
			if got := recheck(port, 0); got != want {
				t.Errorf("%s, %s is rechecked of %q, want %q", when, port, got, want)
			}
		}
	}
	s.Update([]Description{describe("a", true, false), describe("b", false, false), describe("c", true, true)})
	for _, id := range []string{"a", "b", "c"} {
		fail(id, "http")
	}
	now = now.Add(recheckInterval - 1)
	expect("at once", "http", "")
	now = now.Add(1)
	expect("after the interval", "admin", "")
	expect("after the interval", "http", "a", "")
	now = now.Add(recheckInterval / 2)
	fail("a", "http")
	now = now.Add(recheckInterval / 2)
	expect("before twice the interval", "http", "")
	now = now.Add(recheckInterval)
	pod, _ := s.Recheck("http", 1, clock)
	now = now.Add(recheckInterval)
	if got := recheck("http", 1); got != "" {
		t.Errorf("%q is rechecked over its limit", got)
	}
	s.Accepted(pod, "http", false)
	s.CountArrivals()
	expect("once it has accepted", "http", "")
	s.Return(pod)

	fail("a", "http")
	now = now.Add(recheckInterval)
	for _, pause := range []time.Duration{2, 4, 8, 16, 30, 30} {
		expect("before a pause", "http", "a")
		fail("a", "http")
		now = now.Add(pause*time.Second - 1)
		expect("in a pause", "http", "")
		now = now.Add(1)
	}
}

func TestAcceptingIsEnoughWithoutProbes(t *testing.T) {
	var s Set
	s.Update([]Description{describe("a", false, false)})
	q := s.Candidates(nil, "http")[0]
	s.Accepted(q.Pod, "http", true)
	if !s.Serving("http") || s.Serving("admin") {
		t.Error("the port that accepted does not serve, or another does")
	}
}

func TestAReplacedPodIsAnother(t *testing.T) {
	var s Set
	s.Update([]Description{describe("a", false, false)})
	q := s.Candidates(nil, "http")[0]
	moved := describe("a", false, false)
	moved.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	s.Update([]Description{moved})
	if s.NeedsProbe(q) {
		t.Error("a candidate with an address that the pod no longer has needs a probe")
	}
}

func BenchmarkTake(b *testing.B) {
	var s Set
	var descriptions []Description
	for i := range 100 {
		descriptions = append(descriptions, describe(string(rune('a'+i)), true, false))
	}
	s.Update(descriptions)
	b.ReportAllocs()
	for b.Loop() {
		pod, _ := s.Take("http", 0)
		s.Return(pod)
	}
}
