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

package elastiservice

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// A queue keeps one due time for each key, the earliest. That of a drain that has begun
// again may be for its first start, so the drain may still last when a pass decides its step
// and have ended when the pass carries it out.
func TestDrainThatEndsDuringAPassIsFollowedByAnotherPass(t *testing.T) {
	const convergence = 3 * time.Second
	for name, drained := range map[string]time.Duration{
		"begins":                -1,
		"lasts":                 time.Second,
		"ends during the pass":  convergence,
		"ended before the pass": 2 * convergence,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &Controller{
					clock: clock.RealClock{}, queue: newQueue(clock.RealClock{}, nil),
					targetKeys: &resources.TargetKeys{}, options: Options{ConvergenceTime: convergence},
				}
				p := &pass{elastiService: cartElastiService(), state: &state{}, scaleDown: scaleDownDrain}
				p.result.mode, p.allAccepting, p.allFamilies = v1alpha1.ModeProxy, true, true
				if drained >= 0 {
					p.state.startDrain(time.Now().Add(-drained))
				}
				if err := c.continueScaleDown(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var syncs []time.Duration
				began := time.Now()
				c.queue.Run(ctx, 1, func(context.Context, types.NamespacedName) {
					syncs = append(syncs, p.state.drained(time.Now()))
					if took := time.Since(began); took > convergence {
						t.Errorf("it was synced after %s, which is later than the drain ends", took)
					}
				})
				if len(syncs) != 1 || syncs[0] < convergence {
					t.Errorf("it was synced when the resolvers were in the path for %s, want once after %s", syncs, convergence)
				}
			})
		})
	}
}
