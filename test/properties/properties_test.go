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

package properties

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var (
	seed     = flag.Uint64("seed", 1, "the seed of the sequence")
	duration = flag.Duration("for", time.Minute, "how long new actions are started")
)

// maxBurst is the maximum number of actions before the next quiet period.
const maxBurst = 8

func TestWhateverHappensTargetsStayInReach(t *testing.T) {
	w := newTestbed(t)
	random := rand.New(rand.NewPCG(*seed, 0))
	var trace strings.Builder
	t.Cleanup(func() {
		t.Logf("seed %d, %d rounds, %d times asleep, %d times awake", *seed, w.round, w.history.slept, w.history.woken)
		t.Logf("what was done:\n%s", trace.String())
		if t.Failed() {
			w.logServers(t)
		}
	})
	if w.expectQuiet(t); t.Failed() {
		return
	}
	for end := time.Now().Add(*duration); time.Now().Before(end); {
		w.round++
		w.touched = newTouched()
		for _, action := range w.burst(random) {
			what, err := action(t.Context(), w, random)
			line := fmt.Sprintf("round %d: %s", w.round, what)
			if err != nil {
				line += fmt.Sprintf(": %v", err)
			}
			fmt.Fprintln(&trace, line)
		}
		if w.expectQuiet(t); t.Failed() {
			return
		}
	}
	if w.history.slept == 0 || w.history.woken == 0 {
		t.Errorf("targets were put to sleep %d times and woken %d times: the sequence shows nothing, drive another one or a longer one", w.history.slept, w.history.woken)
	}
}

// burst returns the actions of a round. The first one takes targets up and down, so
// that a short sequence shows something, too.
func (w *testbed) burst(random *rand.Rand) (actions []action) {
	if w.round == 1 {
		return []action{wakeFirstTenant, putSecondTenantToSleep}
	}
	if w.empty {
		actions = append(actions, applyAllElastiServices)
	}
	for range 1 + random.IntN(maxBurst) {
		actions = append(actions, choose(random))
	}
	return actions
}

// expectQuiet waits for a quiet period without violations, and checks all writes since the
// last one.
func (w *testbed) expectQuiet(t *testing.T) {
	t.Helper()
	for _, violation := range w.awaitQuiet(t.Context()) {
		t.Errorf("round %d, still after %s: %s", w.round, quietTimeout, violation)
	}
	for _, gap := range w.history.advance(w.touched) {
		t.Errorf("round %d: %s", w.round, gap)
	}
	for _, failure := range w.failures {
		t.Errorf("round %d: %s", w.round, failure)
	}
	w.failures = nil
}

const (
	// quietTimeout is longer than all timeouts of the product: of a Lease that was not
	// released, of resolvers that do not come back, and of endpoints that do not become
	// ready.
	quietTimeout = 3 * time.Minute
	// quiet is the time without writes after which a quiet period begins.
	quiet        = 2 * time.Second
	pollInterval = 250 * time.Millisecond
)

// awaitQuiet waits until there are no more writes and no violations. It returns the
// remaining violations.
func (w *testbed) awaitQuiet(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, quietTimeout)
	defer cancel()
	var violations []string
	written, since := w.history.written(), time.Now()
	for {
		observed, err := w.observe(ctx)
		switch now := w.history.written(); {
		case ctx.Err() != nil:
			if len(violations) == 0 {
				violations = []string{"something is written all the time"}
			}
			return violations
		case err != nil:
			violations, since = []string{err.Error()}, time.Now()
		default:
			violations = observed.violations(w)
			if len(violations) > 0 || now != written {
				written, since = now, time.Now()
			}
			if time.Since(since) >= quiet {
				observed.record(w)
				return nil
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
}
