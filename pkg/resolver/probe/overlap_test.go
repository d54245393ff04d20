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

package probe

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// A pod that accepted a probe while it started, and never answers that one, is
// found ready by the next, which does not wait until the first has timed out.
func TestAProbeThatIsNotAnsweredDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &endpoint.Pod{Addresses: []netip.Addr{loopback}}
		queue := &fakeQueue{questions: []endpoint.Question{{Pod: pod, Number: 1}}}
		probes := &v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{{HTTPGet: &v1alpha1.HTTPGetAction{Port: 1}, TimeoutSeconds: 1}}}
		var asked atomic.Int32
		prober := New(Options{
			Queue: queue, Probes: func() *v1alpha1.ReadinessProbes { return probes }, Slots: make(chan struct{}, 10),
			Ask: func(ctx context.Context, _ Target) error {
				if asked.Add(1) == 1 {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		started := time.Now()
		go func() { defer close(done); prober.Run(ctx, nil) }()
		for len(queue.Questions()) > 0 {
			<-time.After(time.Millisecond)
		}
		if took := time.Since(started); took > 2*overlapInterval {
			t.Errorf("took %s", took)
		}
		// The probed port is the one that traffic goes to: nothing else is asked.
		if n := asked.Load(); n != 2 {
			t.Errorf("asked %d times, want 2", n)
		}
		cancel()
		<-done
	})
}

// However long a pod answers nothing, only a few probes of it run at a time.
func TestAPodThatNeverAnswersIsAskedFewTimesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &endpoint.Pod{Addresses: []netip.Addr{loopback}}
		queue := &fakeQueue{questions: []endpoint.Question{{Pod: pod, Number: 1}}}
		var running, most atomic.Int32
		prober := New(Options{
			Queue: queue, Probes: func() *v1alpha1.ReadinessProbes { return &v1alpha1.ReadinessProbes{} }, Slots: make(chan struct{}, 10),
			Ask: func(ctx context.Context, _ Target) error {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				<-ctx.Done()
				return ctx.Err()
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		prober.Run(ctx, nil)
		if n := most.Load(); n != overlap {
			t.Errorf("%d probes ran at a time, want %d", n, overlap)
		}
	})
}

// A pod that answered nothing for a long time is still given time to answer.
func TestAPodThatAnswersAfterALongSilenceIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &endpoint.Pod{Addresses: []netip.Addr{loopback}}
		queue := &fakeQueue{questions: []endpoint.Question{{Pod: pod, Number: 1}}}
		silence := time.Now().Add(10 * time.Minute)
		heard := make(chan struct{}, overlap)
		prober := New(Options{
			Queue: queue, Probes: func() *v1alpha1.ReadinessProbes { return &v1alpha1.ReadinessProbes{} }, Slots: make(chan struct{}, 10),
			Ask: func(ctx context.Context, _ Target) error {
				answer := time.NewTimer(100 * time.Millisecond)
				defer answer.Stop()
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-answer.C:
				}
				if time.Now().Before(silence) {
					<-ctx.Done()
					return ctx.Err()
				}
				heard <- struct{}{}
				return nil
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			prober.Run(ctx, nil)
		}()
		select {
		case <-heard:
		case <-ctx.Done():
			t.Error("the pod was not heard")
		}
		cancel()
		<-done
	})
}

// TestAProbeThatPanicsFails: the pod is probed again as after any failure, and all
// slots come back.
func TestAProbeThatPanicsFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const failures = 2 * overlap
		pod := &endpoint.Pod{Addresses: []netip.Addr{loopback}}
		queue := &fakeQueue{questions: []endpoint.Question{{Pod: pod, Number: 1}}}
		var asked, panics atomic.Int32
		slots := make(chan struct{}, 10)
		prober := New(Options{
			Queue: queue, Probes: func() *v1alpha1.ReadinessProbes { return &v1alpha1.ReadinessProbes{} }, Slots: slots,
			Tasks: task.New(func(task.Panic) { panics.Add(1) }),
			Ask: func(context.Context, Target) error {
				if asked.Add(1) <= failures {
					panic("a fault of ours")
				}
				return nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); prober.Run(ctx, nil) }()
		for len(queue.Questions()) > 0 {
			<-time.After(time.Millisecond)
		}
		if panics.Load() != failures || len(slots) != 0 {
			t.Errorf("%d panics, %d slots are taken", panics.Load(), len(slots))
		}
		cancel()
		<-done
	})
}
