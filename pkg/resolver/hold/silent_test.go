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
	"errors"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
)

// silent returns a waiter of a connection on which no byte was sent.
func silent() (*Waiter, *bool) {
	resolved := false
	return &Waiter{Silent: true, Bytes: 1, Resolve: func() { resolved = true }}, &resolved
}

func TestSilentWaitersWakeNothingAndAreNotPending(t *testing.T) {
	q := newQueue(Limits{MaxPending: 1}, 1<<20, nil)
	defer q.Close()
	w, resolved := silent()
	if err := q.Join(w); err != nil {
		t.Fatal(err)
	}
	if q.Held() != 0 || q.NeedsPod() || q.worker != nil {
		t.Errorf("%d are held, a pod is needed: %t", q.Held(), q.NeedsPod())
	}
	loud := &Waiter{Resolve: func() {}}
	if err := q.Join(loud); err != nil {
		t.Errorf("a silent waiter takes the place of another: %v", err)
	}
	q.SetPods(pods("a"))
	lease, _, err := w.Result()
	if !*resolved || err != nil || !lease.silent {
		t.Fatalf("resolved is %t: %+v, %v", *resolved, lease, err)
	}
	if q.InFlight() != 1 {
		t.Errorf("%d are in flight, want the one that is not silent", q.InFlight())
	}
	lease.Release()
	if waiting, leased := q.Silent(); waiting+leased != 0 || q.account.Used() != 0 {
		t.Errorf("%d wait, %d are leased, %d bytes are taken", waiting, leased, q.account.Used())
	}
}

func TestSilentLeasesHaveTheirOwnLimit(t *testing.T) {
	q := newQueue(Limits{MaxPending: 10, MaxConcurrencyPerPod: 1}, 1<<20, nil)
	defer q.Close()
	q.SetPods(pods("a"))
	first, ok := q.TryTakeSilent("")
	if !ok {
		t.Fatal("there is no place for a silent connection")
	}
	if _, ok := q.TryTakeSilent(""); ok {
		t.Error("there are two silent connections, the limit is one")
	}
	busy, ok := q.TryTake("")
	if !ok {
		t.Fatal("a silent connection takes the place of another")
	}
	if _, ok := first.MarkActive(false); ok {
		t.Error("there are two in flight, the limit is one")
	}
	busy.Release()
	active, ok := first.MarkActive(false)
	if !ok || q.InFlight() != 1 {
		t.Fatalf("%d are in flight", q.InFlight())
	}
	other, ok := q.TryTakeSilent("")
	if !ok {
		t.Fatal("the place of the one that speaks is not free")
	}
	// What the pod sends first cannot be undone.
	greeted, ok := other.MarkActive(true)
	if !ok || q.InFlight() != 2 {
		t.Fatalf("%d are in flight", q.InFlight())
	}
	silent := greeted.MarkSilent()
	if q.InFlight() != 1 {
		t.Errorf("%d are in flight", q.InFlight())
	}
	silent.Release()
	active.Release()
	if waiting, leased := q.Silent(); waiting+leased+q.InFlight() != 0 {
		t.Errorf("%d wait, %d are leased, %d are in flight", waiting, leased, q.InFlight())
	}
}

func TestSilentWaiterThatIsPromoted(t *testing.T) {
	q := newQueue(Limits{MaxPending: 1}, 1<<20, nil)
	first, _ := silent()
	second, _ := silent()
	for _, w := range []*Waiter{first, second} {
		if err := q.Join(w); err != nil {
			t.Fatal(err)
		}
	}
	called := false
	if !q.Promote(first, func() { called = true }) || !called || q.Held() != 1 || !q.NeedsPod() {
		t.Errorf("%d are held, a pod is needed: %t", q.Held(), q.NeedsPod())
	}
	if q.Promote(second, func() { t.Error("there is no room for it") }) {
		t.Error("more are held than may be")
	}
	if _, _, err := second.Result(); !errors.Is(err, ErrTooManyPending) {
		t.Errorf("got %v", err)
	}
	q.Close()
	if q.Promote(first, func() { t.Error("the wait was over") }) {
		t.Error("a wait that is over goes on")
	}
	if q.account.Used() != 0 {
		t.Errorf("%d bytes are taken", q.account.Used())
	}
}

// The queue with the most memory sheds: first the silent waiters, then the newest
// ones. Other queues keep their waiters.
func TestFloodIsShedForOthers(t *testing.T) {
	budget := memory.NewBudget(memory.Limits{Process: 100})
	flood := New(Options{Limits: Limits{MaxPending: 1000}, Budget: budget, Work: waitForEnd})
	small := New(Options{Limits: Limits{MaxPending: 1000}, Budget: budget, Work: waitForEnd})
	var waiters []*Waiter
	for i := range 9 {
		w := &Waiter{Port: []string{"", "other"}[i%2], Bytes: 10, Resolve: func() {}}
		if err := flood.Join(w); err != nil {
			t.Fatal(err)
		}
		waiters = append(waiters, w)
	}
	mute := &Waiter{Silent: true, Bytes: 10, Resolve: func() {}}
	if err := flood.Join(mute); err != nil {
		t.Fatal(err)
	}
	if err := flood.Join(&Waiter{Bytes: 10, Resolve: func() {}}); !errors.Is(err, memory.ErrProcessLimit) {
		t.Errorf("the flood makes room for itself: %v", err)
	}
	for range 3 {
		if err := small.Join(&Waiter{Bytes: 10, Resolve: func() { t.Error("another is shed") }}); err != nil {
			t.Fatal(err)
		}
	}
	for i, w := range append(waiters, mute) {
		_, _, err := w.Result()
		if shed := errors.Is(err, memory.ErrShed); shed != (i >= 7) {
			t.Errorf("waiter %d: %v", i, err)
		}
	}
	if flood.Held() != 7 || small.Held() != 3 || budget.Used() != 100 {
		t.Errorf("%d and %d are held, %d bytes taken", flood.Held(), small.Held(), budget.Used())
	}
	flood.Close()
	for _, line := range small.lines {
		for element := line.Front(); element != nil; element = element.Next() {
			element.Value.(*Waiter).Resolve = func() {}
		}
	}
	small.Close()
	if budget.Used() != 0 {
		t.Errorf("%d bytes are taken in the end", budget.Used())
	}
}
