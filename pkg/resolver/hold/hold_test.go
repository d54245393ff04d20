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
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newQueue(limits Limits, bytes int64, work func(context.Context)) *Queue {
	if work == nil {
		work = waitForEnd
	}
	return New(Options{Limits: limits, Budget: memory.NewBudget(memory.Limits{Process: bytes}), Work: work})
}

// waitForEnd is a worker that does nothing.
func waitForEnd(ctx context.Context) { <-ctx.Done() }

func pods(ids ...string) []endpoint.Description {
	var descriptions []endpoint.Description
	for _, id := range ids {
		descriptions = append(descriptions, endpoint.Description{
			ID: id, Name: id, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
			Ports: map[string]uint16{"": 80, "other": 81}, Ready: true,
		})
	}
	return descriptions
}

func TestFirstComeFirstServed(t *testing.T) {
	q := newQueue(Limits{MaxPending: 100, MaxConcurrencyPerPod: 1}, 1<<20, nil)
	defer q.Close()
	var order []string
	waiters := map[string]*Waiter{}
	for i := range 5 {
		name := fmt.Sprint(i)
		waiters[name] = &Waiter{Bytes: 1, Resolve: func() { order = append(order, name) }}
		if err := q.Join(waiters[name]); err != nil {
			t.Fatal(err)
		}
	}
	q.SetPods(pods("a"))
	if _, ok := q.TryTake(""); ok {
		t.Error("a later caller was served first")
	}
	// The first one's connection is refused: it keeps its place.
	lease, _, err := waiters["0"].Result()
	if err != nil {
		t.Fatal(err)
	}
	lease.ConnectionRefused()
	if err := q.Rejoin(waiters["0"]); err != nil {
		t.Fatal(err)
	}
	candidate := q.Candidates()[0]
	q.Accepted(candidate, false)
	for i := range 5 {
		lease, _, err := waiters[fmt.Sprint(i)].Result()
		if err != nil {
			t.Fatal(err)
		}
		lease.Release()
	}
	if got := fmt.Sprint(order); got != "[0 0 1 2 3 4]" {
		t.Errorf("served in the order %s", got)
	}
	if q.Held() != 0 || q.InFlight() != 0 || q.account.Used() != 0 {
		t.Errorf("%d held, %d in flight, %d bytes", q.Held(), q.InFlight(), q.account.Used())
	}
}

func TestPortsDoNotWaitForEachOther(t *testing.T) {
	q := newQueue(Limits{MaxPending: 100}, 1<<20, nil)
	defer q.Close()
	resolved := map[string]bool{}
	for _, port := range []string{"missing", "", "other"} {
		if err := q.Join(&Waiter{Port: port, Resolve: func() { resolved[port] = true }}); err != nil {
			t.Fatal(err)
		}
	}
	q.SetPods(pods("a"))
	if resolved["missing"] || !resolved[""] || !resolved["other"] {
		t.Errorf("resolved are %v", resolved)
	}
}

func TestLimits(t *testing.T) {
	q := newQueue(Limits{MaxPending: 2}, 10, nil)
	w := func(bytes int64) *Waiter { return &Waiter{Bytes: bytes, Resolve: func() {}} }
	first := w(5)
	for _, step := range []struct {
		waiter *Waiter
		want   error
	}{{first, nil}, {w(6), memory.ErrProcessLimit}, {w(5), nil}, {w(0), ErrTooManyPending}} {
		if err := q.Join(step.waiter); !errors.Is(err, step.want) {
			t.Errorf("joining with %d bytes: %v, want %v", step.waiter.Bytes, err, step.want)
		}
	}
	if !q.Leave(first) {
		t.Error("a waiter cannot leave")
	}
	if q.Leave(first) {
		t.Error("a waiter can leave twice")
	}
	again := w(5)
	if err := q.Join(again); err != nil {
		t.Errorf("the place of a waiter that left is not free: %v", err)
	}
	q.Close()
	if _, _, err := again.Result(); !errors.Is(err, ErrClosed) {
		t.Errorf("closing ended the wait with %v", err)
	}
	if err := q.Join(w(0)); !errors.Is(err, ErrClosed) {
		t.Errorf("joining a closed queue: %v", err)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(Limits{MaxPending: 1}, 1<<20, nil)
		defer q.Close()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, ErrTimeout)
		defer cancel()
		started := time.Now()
		if _, _, err := q.Wait(ctx, &Waiter{}); !errors.Is(err, ErrTimeout) || time.Since(started) != time.Minute {
			t.Errorf("got %v after %s", err, time.Since(started))
		}
		if q.Held() != 0 {
			t.Error("the place is not free")
		}
	})
}

// The worker runs exactly while something is held or kept awake, and never twice.
func TestWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, runs := 0, 0
		q := newQueue(Limits{MaxPending: 10}, 1<<20, func(ctx context.Context) {
			mu.Lock()
			running++
			runs++
			if running > 1 {
				t.Error("it runs twice at a time")
			}
			mu.Unlock()
			<-ctx.Done()
			// It takes a while to end, and meanwhile more may be held.
			<-time.After(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
		})
		check := func(wantRunning, wantRuns int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if running != wantRunning || runs != wantRuns {
				t.Errorf("%d running after %d runs, want %d after %d", running, runs, wantRunning, wantRuns)
			}
		}
		check(0, 0)
		w := &Waiter{Resolve: func() {}}
		if err := q.Join(w); err != nil {
			t.Fatal(err)
		}
		check(1, 1)
		q.Leave(w)
		again := &Waiter{Resolve: func() {}}
		if err := q.Join(again); err != nil {
			t.Fatal(err)
		}
		check(1, 1)
		<-time.After(2 * time.Second)
		check(1, 2)
		stop := q.KeepAwake()
		q.Leave(again)
		check(1, 2)
		stop()
		<-time.After(2 * time.Second)
		check(0, 2)
		q.Close()
	})
}

func TestColdStartRecordsItsSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(Limits{MaxPending: 10}, 1<<20, nil)
		defer q.Close()
		began := time.Now()
		w := &Waiter{Resolve: func() {}}
		if err := q.Join(w); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Millisecond)
		q.WakeSucceeded()
		<-time.After(time.Second)
		q.WakeSucceeded()
		q.SetPods(pods("a"))
		_, cold, err := w.Result()
		if err != nil {
			t.Fatal(err)
		}
		if !cold.Began.Equal(began) || cold.WakeSucceeded.Sub(began) != time.Millisecond || cold.EndpointReady.Sub(cold.WakeSucceeded) != time.Second {
			t.Errorf("the cold start is %+v", cold)
		}
	})
}

func TestWanting(t *testing.T) {
	q := newQueue(Limits{MaxPending: 10, MaxConcurrencyPerPod: 1}, 1<<20, nil)
	defer q.Close()
	wants := func(want bool) {
		t.Helper()
		if got := q.NeedsPod(); got != want {
			t.Errorf("wanting is %t", got)
		}
	}
	wants(false)
	stop := q.KeepAwake()
	wants(true)
	stop()
	wants(false)
	for range 2 {
		if err := q.Join(&Waiter{Resolve: func() {}}); err != nil {
			t.Fatal(err)
		}
	}
	wants(true)
	q.SetPods(pods("a"))
	// One waits for the concurrency limit of the pod: adding pods is the task of the
	// autoscaler.
	wants(false)
	q.SetPods(nil)
	wants(true)
}

// TestAPodThatDidNotAcceptIsUsedAgain checks that a lease finds out now and then whether a
// ready pod accepts connections again, although nothing waits and another pod serves.
func TestAPodThatDidNotAcceptIsUsedAgain(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	at := netip.MustParseAddrPort(listener.Addr().String())
	for name, take := range map[string]func(q *Queue, last Lease) (Lease, bool){
		"a new connection":  func(q *Queue, _ Lease) (Lease, bool) { return q.TryTake("") },
		"a kept connection": func(q *Queue, last Lease) (Lease, bool) { return q.TryTakeNext("", last) },
		"a silent client":   func(q *Queue, _ Lease) (Lease, bool) { return q.TryTakeSilent("") },
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			q := New(Options{Limits: Limits{MaxPending: 1}, Budget: memory.NewBudget(memory.Limits{Process: 1 << 20}), Now: func() time.Time { return now }})
			defer q.Close()
			descriptions := pods("a", "b")
			for i := range descriptions {
				descriptions[i].Addresses, descriptions[i].Ports = []netip.Addr{at.Addr()}, map[string]uint16{"": at.Port()}
			}
			q.SetPods(descriptions)
			lease, _ := q.TryTake("")
			lease.ConnectionRefused()
			last, _ := q.TryTake("")
			last.Release()
			from := func(want *endpoint.Pod) Lease {
				t.Helper()
				lease, ok := take(q, last)
				if !ok || lease.Pod != want {
					t.Fatalf("took %v, want %s", lease.Pod, want.ID)
				}
				return lease
			}
			from(last.Pod).Release()
			now = now.Add(time.Second)
			from(lease.Pod).ConnectionRefused()
			from(last.Pod).Release()
			now = now.Add(2 * time.Second)
			again := from(lease.Pod)
			from(last.Pod).Release()
			if _, ok := q.TryTake("other"); ok {
				t.Error("another port is rechecked")
			}
			conn, err := again.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
			again.Release()
			if unused := q.pods.Candidates(nil, ""); len(unused) > 0 {
				t.Errorf("%s is not used although it accepts", unused[0].Pod.ID)
			}
			if waiting, silent := q.Silent(); q.InFlight() != 0 || waiting+silent != 0 {
				t.Errorf("%d are in flight, %d silent", q.InFlight(), silent)
			}
		})
	}
}

// TestPassiveWaiters checks that passive waiters wait for a pod that is busy, and not for
// another one once that is removed or does not accept a connection.
func TestPassiveWaiters(t *testing.T) {
	for name, end := range map[string]func(q *Queue, lease Lease){
		"removed":         func(q *Queue, _ Lease) { q.SetPods(nil) },
		"does not accept": func(_ *Queue, lease Lease) { lease.ConnectionRefused() },
	} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(Limits{MaxPending: 10, MaxConcurrencyPerPod: 1}, 1<<20, nil)
			defer q.Close()
			q.SetPods(pods("a"))
			lease, ok := q.TryTake("")
			if !ok {
				t.Fatal("there is no pod")
			}
			resolved := 0
			join := func(passive bool) *Waiter {
				t.Helper()
				w := &Waiter{Bytes: 1, Passive: passive, Resolve: func() { resolved++ }}
				if err := q.Join(w); err != nil {
					t.Fatal(err)
				}
				return w
			}
			passive := []*Waiter{join(true), join(true)}
			other := join(false)
			passive = append(passive, join(true))
			if resolved > 0 || q.NeedsPod() {
				t.Errorf("%d of them do not wait, or another pod is needed", resolved)
			}
			end(q, lease)
			for _, w := range append(passive, join(true)) {
				if _, _, err := w.Result(); !errors.Is(err, ErrAsleep) {
					t.Errorf("the wait ended with %v", err)
				}
			}
			if resolved != 4 || !q.NeedsPod() {
				t.Errorf("%d are resolved, or the waiter that is not passive needs no pod", resolved)
			}
			if !q.Leave(other) || q.NeedsPod() || q.Held() != 0 || q.account.Used() != 0 {
				t.Errorf("a pod is needed still, or %d are held with %d bytes", q.Held(), q.account.Used())
			}
		})
	}
}

// Under concurrency every waiter is served once, and the counters return to zero.
func TestManyAtOnce(t *testing.T) {
	q := newQueue(Limits{MaxPending: 10_000, MaxConcurrencyPerPod: 3}, 1<<30, nil)
	defer q.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var running sync.WaitGroup
	for i := range 500 {
		running.Go(func() {
			lease, ok := q.TryTake("")
			if !ok {
				var err error
				if lease, _, err = q.Wait(ctx, &Waiter{Bytes: 10}); err != nil {
					t.Error(err)
					return
				}
			}
			if i%50 == 0 {
				lease.ConnectionRefused()
				for _, candidate := range q.Candidates() {
					q.Accepted(candidate, false)
				}
				return
			}
			lease.Release()
		})
	}
	running.Go(func() {
		for i := range 50 {
			q.SetPods(pods("a", fmt.Sprint(i)))
		}
	})
	served := make(chan struct{})
	go func() { running.Wait(); close(served) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-served:
			if q.Held() != 0 || q.InFlight() != 0 || q.account.Used() != 0 {
				t.Errorf("%d held, %d in flight, %d bytes", q.Held(), q.InFlight(), q.account.Used())
			}
			return
		case <-tick.C:
			// What a prober would do.
			for _, candidate := range q.Candidates() {
				q.Accepted(candidate, false)
			}
		}
	}
}

func BenchmarkTake(b *testing.B) {
	q := newQueue(Limits{MaxPending: 10}, 1<<20, nil)
	defer q.Close()
	q.SetPods(pods("a", "b", "c"))
	b.ReportAllocs()
	for b.Loop() {
		lease, _ := q.TryTake("")
		lease.Release()
	}
}

// A worker that panics is started again while something is held.
func TestAWorkerThatPanicsIsRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs, panics atomic.Int32
		q := New(Options{
			Limits: Limits{MaxPending: 1}, Budget: memory.NewBudget(memory.Limits{Process: 1 << 20}),
			Tasks: task.New(func(task.Panic) { panics.Add(1) }),
			Work: func(ctx context.Context) {
				if runs.Add(1) == 1 {
					panic("a fault")
				}
				<-ctx.Done()
			},
		})
		w := &Waiter{Resolve: func() {}}
		if err := q.Join(w); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if runs.Load() != 2 || panics.Load() != 1 {
			t.Errorf("%d runs, %d panics", runs.Load(), panics.Load())
		}
		q.Leave(w)
		q.Close()
	})
}
