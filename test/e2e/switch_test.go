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

package e2e

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	switchedApplications = 5
	// switchTimeout bounds one round, which includes the linger time and the start of pods.
	switchTimeout = 45 * time.Second
)

// switchRounds is how often each application sleeps and wakes. make soak sets a higher
// number.
var switchRounds = flag.Int("switch-rounds", 4, "how often each of 5 applications sleeps and wakes under traffic")

func TestSwitchesUnderTrafficFailNoRequest(t *testing.T) {
	timeout := testTimeout + time.Duration(*switchRounds)*switchTimeout
	s := newSceneWithin(t, timeout)
	result, err := s.Switch(s.ctx, s.namespace, s.observe(), cluster.RoundOptions{
		Applications: switchedApplications, Rounds: *switchRounds, Clients: 1, PerSecond: 200 / switchedApplications, Timeout: timeout,
	})
	t.Logf("%d switches each way, %d requests, %d failed", result.Rounds, result.Requests, result.Failed)
	if result.Failed > 0 {
		t.Errorf("%d of %d requests failed:\n%s", result.Failed, result.Requests, strings.Join(result.Failures, "\n"))
	}
	s.check(err)
}
