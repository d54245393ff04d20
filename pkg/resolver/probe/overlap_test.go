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

// A probe that a starting pod accepted and never responds to does not delay the
// next probe, which finds the pod ready before the first one times out.
func TestAProbeWithoutResponseDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &endpoint.Pod{Addresses: []netip.Addr{loopback}}
		queue := &fakeQueue{candidates: []endpoint.Candidate{{Pod: pod, Number: 1}}}
		probes := &v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{{HTTPGet: &v1alpha1.HTTPGetAction{Port: 1}, TimeoutSeconds: 1}}}
		var attempts atomic.Int32
		prober := New(Options{
			Queue: queue, Probes: func() *v1alpha1.ReadinessProbes { return probes }, Slots: make(chan struct{}, 10),
			RunProbe: func(ctx context.Context, _ Target) error {
				if attempts.Add(1) == 1 {
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
		for len(queue.Candidates()) > 0 {
			<-time.After(time.Millisecond)
		}
		if took := time.Since(started); took > 2*overlapInterval {
			t.Errorf("took %s", took)
		}
		// The probe connects to the port that receives the traffic: no other one is needed.
		if n := attempts.Load(); n != 2 {
			t.Errorf("ran %d probes, want 2", n)
		}
		cancel()
		<-done
	})
}

// Only a few probes of a pod run at a time, however long it does not respond.
func TestAPodThatNeverRespondsHasFewProbesOutstanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &endpoint.Pod{Addresses: []netip.Addr{loopback}}
		queue := &fakeQueue{candidates: []endpoint.Candidate{{Pod: pod, Number: 1}}}
		var running, most atomic.Int32
		prober := New(Options{
			Queue: queue, Probes: func() *v1alpha1.ReadinessProbes { return &v1alpha1.ReadinessProbes{} }, Slots: make(chan struct{}, 10),
			RunProbe: func(ctx context.Context, _ Target) error {
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

// A pod that did not respond for a long time is still found ready.
func TestAPodThatRespondsAfterALongTimeIsFoundReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &endpoint.Pod{Addresses: []netip.Addr{loopback}}
		queue := &fakeQueue{candidates: []endpoint.Candidate{{Pod: pod, Number: 1}}}
		silence := time.Now().Add(10 * time.Minute)
		ready := make(chan struct{}, overlap)
		prober := New(Options{
			Queue: queue, Probes: func() *v1alpha1.ReadinessProbes { return &v1alpha1.ReadinessProbes{} }, Slots: make(chan struct{}, 10),
			RunProbe: func(ctx context.Context, _ Target) error {
				response := time.NewTimer(100 * time.Millisecond)
				defer response.Stop()
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-response.C:
				}
				if time.Now().Before(silence) {
					<-ctx.Done()
					return ctx.Err()
				}
				ready <- struct{}{}
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
		case <-ready:
		case <-ctx.Done():
			t.Error("the pod was not found ready")
		}
		cancel()
		<-done
	})
}

// A panic of a probe counts as a failure: the pod is probed again, and the slot is
// returned.
func TestAProbeThatPanicsFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const failures = 2 * overlap
		pod := &endpoint.Pod{Addresses: []netip.Addr{loopback}}
		queue := &fakeQueue{candidates: []endpoint.Candidate{{Pod: pod, Number: 1}}}
		var attempts, panics atomic.Int32
		slots := make(chan struct{}, 10)
		prober := New(Options{
			Queue: queue, Probes: func() *v1alpha1.ReadinessProbes { return &v1alpha1.ReadinessProbes{} }, Slots: slots,
			Tasks: task.New(func(task.Panic) { panics.Add(1) }),
			RunProbe: func(context.Context, Target) error {
				if attempts.Add(1) <= failures {
					panic("a fault")
				}
				return nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); prober.Run(ctx, nil) }()
		for len(queue.Candidates()) > 0 {
			<-time.After(time.Millisecond)
		}
		if panics.Load() != failures || len(slots) != 0 {
			t.Errorf("%d panics, %d slots are taken", panics.Load(), len(slots))
		}
		cancel()
		<-done
	})
}
