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
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
)

// The probes of a service whose pods never respond leave slots for the probes of
// other services.
func TestAServiceWhosePodsNeverRespondDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := make(chan struct{}, 4)
		probes := func() *v1alpha1.ReadinessProbes {
			return &v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{{HTTPGet: &v1alpha1.HTTPGetAction{Port: 1}, TimeoutSeconds: 3600}}}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		many := &fakeQueue{}
		for i := range 8 {
			many.candidates = append(many.candidates, endpoint.Candidate{Pod: &endpoint.Pod{Name: fmt.Sprint(i), Addresses: []netip.Addr{loopback}}, Number: 1})
		}
		hung := New(Options{Queue: many, Probes: probes, Slots: slots, RunProbe: func(ctx context.Context, _ Target) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		running.Go(func() { hung.Run(ctx, nil) })
		// Each time-out doubles the timeout of the next probe.
		<-time.After(2 * time.Minute)
		one := &fakeQueue{candidates: []endpoint.Candidate{{Pod: &endpoint.Pod{Addresses: []netip.Addr{loopback}}, Number: 1}}}
		other := New(Options{Queue: one, Probes: probes, Slots: slots, RunProbe: func(context.Context, Target) error { return nil }})
		began := time.Now()
		running.Go(func() { other.Run(ctx, nil) })
		for len(one.Candidates()) > 0 && time.Since(began) < time.Minute {
			<-time.After(time.Millisecond)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("a pod that responds at once was found after %s", took)
		}
		cancel()
		running.Wait()
	})
}
