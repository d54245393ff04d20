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

package wake

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// fakeServer records its calls, which fail while failing is true.
type fakeServer struct {
	mu      sync.Mutex
	calls   []time.Time
	pending []int32
	failing bool
}

func (s *fakeServer) Wake(_ context.Context, name string, request *v1alpha1.WakeRequest, _ metav1.CreateOptions) (*v1alpha1.WakeRequest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, time.Now())
	s.pending = append(s.pending, request.Spec.Pending)
	if s.failing || name != "cart" || request.Namespace != "shop" {
		return nil, errors.New("unavailable")
	}
	return request, nil
}

func (s *fakeServer) set(failing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = failing
}

func (s *fakeServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// gaps returns the times between calls.
func (s *fakeServer) gaps() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var gaps []time.Duration
	for i := 1; i < len(s.calls); i++ {
		gaps = append(gaps, s.calls[i].Sub(s.calls[i-1]))
	}
	return gaps
}

// demand is a Demand with fixed values.
type demand struct {
	mu        sync.Mutex
	needed    bool
	held      int
	succeeded int
}

func (d *demand) NeedsPod() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.needed }
func (d *demand) Held() int      { d.mu.Lock(); defer d.mu.Unlock(); return d.held }
func (d *demand) WakeSucceeded() { d.mu.Lock(); defer d.mu.Unlock(); d.succeeded++ }
func (d *demand) successes() int { d.mu.Lock(); defer d.mu.Unlock(); return d.succeeded }
func (d *demand) set(needed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.needed = needed
}

// run runs a waker in a bubble until test returns.
func run(t *testing.T, server *fakeServer, d *demand, test func(w *Waker, hurry chan<- struct{})) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := New(Options{Client: server, Namespace: "shop", Name: "cart", Demand: d, Calls: new(sync.WaitGroup)})
		ctx, cancel := context.WithCancel(t.Context())
		hurry := make(chan struct{}, 1)
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx, hurry) }()
		synctest.Wait()
		test(w, hurry)
		cancel()
		<-done
	})
}

func TestCallsAtOnceWithTheNumberOfHeldRequests(t *testing.T) {
	server, d := &fakeServer{}, &demand{needed: true, held: 7}
	run(t, server, d, func(*Waker, chan<- struct{}) {
		if server.count() != 1 || server.pending[0] != 7 || d.successes() != 1 {
			t.Errorf("%d calls with %v pending, %d succeeded", server.count(), server.pending, d.successes())
		}
	})
}

func TestRetriesFailuresWithBackoff(t *testing.T) {
	server, d := &fakeServer{failing: true}, &demand{needed: true}
	run(t, server, d, func(*Waker, chan<- struct{}) {
		<-time.After(time.Minute)
		gaps := server.gaps()
		if gaps[0] > 100*time.Millisecond {
			t.Errorf("the first retry comes after %s", gaps[0])
		}
		if last := gaps[len(gaps)-1]; last < 3*time.Second || last > 7*time.Second {
			t.Errorf("after a minute retries come every %s", last)
		}
		if d.successes() != 0 {
			t.Error("a failure counts as a success")
		}
		server.set(false)
		<-time.After(7 * time.Second)
		if d.successes() == 0 {
			t.Error("the call was not repeated")
		}
	})
}

func TestRepeatsWhileNoPodCanServe(t *testing.T) {
	server, d := &fakeServer{}, &demand{needed: true}
	run(t, server, d, func(_ *Waker, hurry chan<- struct{}) {
		<-time.After(5 * time.Minute)
		gaps := server.gaps()
		if gaps[0] < time.Second || gaps[0] > 2*time.Second {
			t.Errorf("the first repetition comes after %s", gaps[0])
		}
		if last := gaps[len(gaps)-1]; last < 10*time.Second || last > 20*time.Second {
			t.Errorf("after five minutes it repeats every %s", last)
		}
		// A change does not cause another call.
		before := server.count()
		hurry <- struct{}{}
		<-time.After(100 * time.Millisecond)
		if server.count() != before {
			t.Error("a change caused another call")
		}
	})
}

func TestCallsOnceAPodIsNeeded(t *testing.T) {
	server, d := &fakeServer{}, &demand{}
	run(t, server, d, func(_ *Waker, hurry chan<- struct{}) {
		<-time.After(time.Minute)
		if server.count() != 0 {
			t.Fatalf("%d calls while no pod is needed", server.count())
		}
		d.set(true)
		hurry <- struct{}{}
		synctest.Wait()
		if server.count() != 1 {
			t.Errorf("%d calls once a pod is needed, want 1", server.count())
		}
	})
}

// busyServer responds when respond is closed.
type busyServer struct {
	respond chan struct{}
	// canceled has the error of a call that was canceled before the response.
	canceled chan error
}

func (s *busyServer) Wake(ctx context.Context, _ string, request *v1alpha1.WakeRequest, _ metav1.CreateOptions) (*v1alpha1.WakeRequest, error) {
	select {
	case <-s.respond:
		return request, nil
	case <-ctx.Done():
		s.canceled <- ctx.Err()
		return nil, ctx.Err()
	}
}

// leave runs a waker until its call is in progress, and then ends it.
func leave(t *testing.T, server Client, d Demand, observe Observer) {
	t.Helper()
	w := New(Options{Client: server, Namespace: "shop", Name: "cart", Demand: d, Observe: observe, Calls: new(sync.WaitGroup)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx, nil) }()
	synctest.Wait()
	began := time.Now()
	cancel()
	<-done
	if waited := time.Since(began); waited != 0 {
		t.Errorf("it took %s to end", waited)
	}
}

// The server logs an error for each client that disconnects before the response. In
// most cold starts a pod serves before the wake request of every resolver has
// completed.
func TestCallInProgressCompletesWhenNothingIsHeldAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, d := &busyServer{respond: make(chan struct{}), canceled: make(chan error, 1)}, &demand{needed: true}
		observed := make(chan error, 1)
		leave(t, server, d, func(took time.Duration, err error) {
			if took != time.Second {
				t.Errorf("it took %s as far as is observed, want 1s", took)
			}
			observed <- err
		})
		<-time.After(time.Second)
		close(server.respond)
		if err := <-observed; err != nil {
			t.Errorf("the call failed: %v", err)
		}
		if len(server.canceled) > 0 {
			t.Error("the call was canceled before the response")
		}
		// The cold start that the call was for is over.
		if d.successes() != 0 {
			t.Error("a late response was counted")
		}
	})
}

func TestCallThatHangsEndsSoonAfterNothingIsHeldAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &busyServer{respond: make(chan struct{}), canceled: make(chan error, 1)}
		observed := make(chan error, 1)
		leave(t, server, &demand{needed: true}, func(_ time.Duration, err error) { observed <- err })
		began := time.Now()
		<-server.canceled
		if err := <-observed; err == nil {
			t.Error("a call without response counts as a success")
		}
		if lasted := time.Since(began); lasted != leftTimeout {
			t.Errorf("the call went on for %s, want %s", lasted, leftTimeout)
		}
	})
}

func TestClientsThatDisconnectDoNotCauseACallEach(t *testing.T) {
	server, d := &fakeServer{}, &demand{needed: true}
	synctest.Test(t, func(t *testing.T) {
		w := New(Options{Client: server, Namespace: "shop", Name: "cart", Demand: d, Calls: new(sync.WaitGroup)})
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			w.Run(ctx, nil)
			cancel()
		}
		if n := server.count(); n < 3 || n > 6 {
			t.Errorf("%d calls in a second of that", n)
		}
	})
}

// silentReplicas never respond to the first calls, as the replica of a node that died, and
// respond to each later one.
type silentReplicas struct {
	*fakeServer
	silent int
}

func (s silentReplicas) Wake(ctx context.Context, name string, request *v1alpha1.WakeRequest, options metav1.CreateOptions) (*v1alpha1.WakeRequest, error) {
	response, err := s.fakeServer.Wake(ctx, name, request, options)
	if s.count() <= s.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return response, err
}

// always has a call made beside each one without a response.
func always() *Beside { return &Beside{limiter: flowcontrol.NewFakeAlwaysRateLimiter()} }

// A call without a response is made again beside it, and the first response counts.
func TestACallIsMadeAgainBesideOneWithoutAResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for silent := range quickBeside + 1 {
			server, d, calls := silentReplicas{&fakeServer{}, silent}, &demand{needed: true}, new(sync.WaitGroup)
			w := New(Options{Client: server, Namespace: "shop", Name: "cart", Demand: d, Calls: calls, Beside: always()})
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(silent)*besideDelay+besideDelay/2)
			w.Run(ctx, nil)
			cancel()
			if d.successes() != 1 || server.count() != silent+1 {
				t.Errorf("behind %d replicas that do not respond, %d of %d calls succeeded", silent, d.successes(), server.count())
			}
			// Those without a response end by themselves.
			calls.Wait()
		}
	})
}

// slowReplica responds to the first call after a while, and the others fail at once.
type slowReplica struct {
	*fakeServer
	after time.Duration
}

func (s slowReplica) Wake(ctx context.Context, name string, request *v1alpha1.WakeRequest, options metav1.CreateOptions) (*v1alpha1.WakeRequest, error) {
	response, err := s.fakeServer.Wake(ctx, name, request, options)
	if s.count() > 1 {
		return nil, errors.New("no route to host")
	}
	<-time.After(s.after)
	return response, err
}

// Failures beside a call in progress say nothing of that one.
func TestACallGoesOnWhenOthersBesideItFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after = 3 * time.Second
		server, d, calls := slowReplica{&fakeServer{}, after}, &demand{needed: true}, new(sync.WaitGroup)
		w := New(Options{Client: server, Namespace: "shop", Name: "cart", Demand: d, Calls: calls, Beside: always()})
		ctx, cancel := context.WithTimeout(t.Context(), after+time.Millisecond)
		defer cancel()
		w.Run(ctx, nil)
		if d.successes() != 1 {
			t.Errorf("%d of %d calls succeeded", d.successes(), server.count())
		}
		calls.Wait()
	})
}

// Those that are canceled because another one has succeeded are no failures.
func TestSupersededCallsAreNotObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var observed atomic.Int32
		calls := new(sync.WaitGroup)
		w := New(Options{
			Client: silentReplicas{&fakeServer{}, 2}, Namespace: "shop", Name: "cart", Demand: &demand{needed: true}, Calls: calls,
			Beside: always(),
			Observe: func(_ time.Duration, err error) {
				observed.Add(1)
				if err != nil {
					t.Errorf("a call is observed as failed: %v", err)
				}
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*besideDelay+time.Millisecond)
		defer cancel()
		w.Run(ctx, nil)
		calls.Wait()
		if observed.Load() != 1 {
			t.Errorf("%d calls are observed, want the one that succeeded", observed.Load())
		}
	})
}

// Where the API server is only busy, more calls do not help: they are limited in number for
// each wake, and for all wakes together.
func TestCallsBesideOthersAreLimited(t *testing.T) {
	for name, test := range map[string]struct {
		limit *Beside
		want  int
	}{
		"for each wake":       {always(), 1 + quickBeside + int((callTimeout-quickBeside*besideDelay)/maxBesideDelay)},
		"for all wakes":       {&Beside{limiter: flowcontrol.NewTokenBucketPassiveRateLimiter(0.001, 3), reserved: map[string]time.Time{"shop": time.Now().Add(callTimeout)}}, 1 + 3},
		"not made by default": {nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, calls := silentReplicas{&fakeServer{}, math.MaxInt}, new(sync.WaitGroup)
				w := New(Options{Client: server, Namespace: "shop", Name: "cart", Demand: &demand{needed: true}, Calls: calls, Beside: test.limit})
				ctx, cancel := context.WithTimeout(t.Context(), callTimeout-time.Millisecond)
				defer cancel()
				w.Run(ctx, nil)
				if server.count() != test.want {
					t.Errorf("%d calls without a response, want %d", server.count(), test.want)
				}
				calls.Wait()
			})
		})
	}
}

// The wakes of one tenant may all be without a response, as half of many are when a
// replica dies. A single one of another tenant is made again as soon as ever.
func TestCallsBesideOthersAreNotTakenFromOtherNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		beside, calls := NewBeside(), new(sync.WaitGroup)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for range 200 {
			w := New(Options{Client: silentReplicas{&fakeServer{}, math.MaxInt}, Namespace: "crowd", Name: "cart", Demand: &demand{needed: true}, Calls: calls, Beside: beside})
			running.Go(func() { w.Run(ctx, nil) })
		}
		// They have used what is limited for all wakes together.
		<-time.After(callTimeout / 2)
		server, d := silentReplicas{&fakeServer{}, 1}, &demand{needed: true}
		w := New(Options{Client: server, Namespace: "shop", Name: "cart", Demand: d, Calls: calls, Beside: beside})
		running.Go(func() { w.Run(ctx, nil) })
		<-time.After(besideDelay + time.Millisecond)
		if d.successes() != 1 {
			t.Errorf("%d of %d calls succeeded", d.successes(), server.count())
		}
		cancel()
		running.Wait()
		calls.Wait()
		if len(beside.reserved) > 2 {
			t.Errorf("%d namespaces are kept", len(beside.reserved))
		}
	})
}

// slowServer takes a while for each response.
type slowServer struct {
	*fakeServer
	took time.Duration
}

func (s slowServer) Wake(ctx context.Context, name string, request *v1alpha1.WakeRequest, options metav1.CreateOptions) (*v1alpha1.WakeRequest, error) {
	response, err := s.fakeServer.Wake(ctx, name, request, options)
	<-time.After(s.took)
	return response, err
}

// An API server that is slow to respond to every call gets no more of them for that. Once it
// is fast again, a call without a response is made again as soon as before.
func TestABusyAPIServerGetsNoCallsBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wakes = 20
		beside := always()
		wake := func(client Client) {
			d, calls := &demand{needed: true}, new(sync.WaitGroup)
			w := New(Options{Client: client, Namespace: "shop", Name: "cart", Demand: d, Calls: calls, Beside: beside})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); w.Run(ctx, nil) }()
			for d.successes() == 0 {
				<-time.After(time.Millisecond)
			}
			cancel()
			<-done
			calls.Wait()
		}
		for range wakes {
			wake(slowServer{&fakeServer{}, time.Second})
		}
		server := &fakeServer{}
		for range wakes {
			wake(slowServer{server, time.Second})
		}
		if server.count() != wakes {
			t.Errorf("%d calls for %d wakes of a busy server", server.count(), wakes)
		}
		for range wakes {
			wake(&fakeServer{})
		}
		if got := beside.delay(1); got != besideDelay {
			t.Errorf("after that the delay is %s, want %s", got, besideDelay)
		}
	})
}

// Wakes of some targets may be slow for a reason of their own.
func TestSlowWakesOfSomeDoNotDelayCallsBesideThoseOfOthers(t *testing.T) {
	beside := NewBeside()
	for range 100 {
		beside.succeeded(5 * time.Millisecond)
		beside.succeeded(callTimeout - time.Second)
	}
	if got := beside.delay(1); got != besideDelay {
		t.Errorf("the delay is %s, want %s", got, besideDelay)
	}
	beside.succeeded(5 * time.Millisecond)
	beside.succeeded(5 * time.Millisecond)
	if got := beside.delay(1); got != besideDelay {
		t.Errorf("after two fast calls the delay is %s, want %s", got, besideDelay)
	}
}

// An API server that responds to nothing is reported.
func TestCallsThatAllHangFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, calls := silentReplicas{&fakeServer{}, math.MaxInt}, new(sync.WaitGroup)
		w := New(Options{Client: server, Namespace: "shop", Name: "cart", Demand: &demand{needed: true}, Calls: calls, Beside: always()})
		ctx, cancel := context.WithTimeout(t.Context(), callTimeout+time.Second)
		defer cancel()
		w.Run(ctx, nil)
		if !w.failing {
			t.Errorf("%d calls without a response are no failure", server.count())
		}
		calls.Wait()
	})
}

// A pod may become ready by other means than a wake of this resolver.
func TestNoCallBesideOthersIsMadeOnceNoPodIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, d, calls := silentReplicas{&fakeServer{}, math.MaxInt}, &demand{needed: true}, new(sync.WaitGroup)
		w := New(Options{Client: server, Namespace: "shop", Name: "cart", Demand: d, Calls: calls, Beside: always()})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx, nil) }()
		<-time.After(besideDelay / 2)
		d.set(false)
		<-time.After(3 * callTimeout)
		if server.count() != 1 {
			t.Errorf("%d calls were made, want the one that was needed", server.count())
		}
		cancel()
		<-done
		calls.Wait()
	})
}

// lostServer does not respond to calls that begin before it is back.
type lostServer struct {
	*fakeServer
	back time.Time
}

func (s lostServer) Wake(ctx context.Context, name string, request *v1alpha1.WakeRequest, options metav1.CreateOptions) (*v1alpha1.WakeRequest, error) {
	response, err := s.fakeServer.Wake(ctx, name, request, options)
	if time.Now().Before(s.back) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return response, err
}

// However long it is that no API server responds, the first one that does is called soon.
func TestAnAPIServerThatIsBackIsCalledSoon(t *testing.T) {
	for lost := time.Second; lost <= 3*callTimeout; lost += 700 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			d, calls := &demand{needed: true}, new(sync.WaitGroup)
			w := New(Options{Client: lostServer{&fakeServer{}, time.Now().Add(lost)}, Namespace: "shop", Name: "cart", Demand: d, Calls: calls, Beside: NewBeside()})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); w.Run(ctx, nil) }()
			<-time.After(lost + maxBesideDelay + time.Millisecond)
			if d.successes() == 0 {
				t.Errorf("no call succeeded within %s after %s without a response", maxBesideDelay, lost)
			}
			cancel()
			<-done
			calls.Wait()
		})
	}
}

// panickingServer panics in its first call.
type panickingServer struct{ *fakeServer }

func (s panickingServer) Wake(ctx context.Context, name string, request *v1alpha1.WakeRequest, options metav1.CreateOptions) (*v1alpha1.WakeRequest, error) {
	response, err := s.fakeServer.Wake(ctx, name, request, options)
	if s.count() == 1 {
		panic("a fault")
	}
	return response, err
}

// A panic of a call counts as a failure: the call is repeated.
func TestACallThatPanicsFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var panics atomic.Int32
		d := &demand{needed: true}
		w := New(Options{
			Client: panickingServer{&fakeServer{}}, Namespace: "shop", Name: "cart", Demand: d, Calls: new(sync.WaitGroup),
			Tasks: task.New(func(task.Panic) { panics.Add(1) }),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx, nil) }()
		<-time.After(repeatBackoff.Duration / 2)
		if panics.Load() != 1 || d.successes() != 1 {
			t.Errorf("%d panics, %d calls succeeded", panics.Load(), d.successes())
		}
		cancel()
		<-done
	})
}
