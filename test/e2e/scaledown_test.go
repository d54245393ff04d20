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
	"strings"
	"testing"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// TestAScaleDownUnderTrafficFailsNoRequest scales down one target under traffic, which
// wakes it again. make test-cycles and the benchmark descent do so more often.
func TestAScaleDownUnderTrafficFailsNoRequest(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	result, err := s.ScaleDown(s.ctx, s.namespace, s.observe(), cluster.RoundOptions{Applications: 1, Rounds: 1, Clients: 5, PerSecond: 10, Timeout: testTimeout})
	t.Logf("%d scale-down, %d requests, %d failed", result.Rounds, result.Requests, result.Failed)
	if result.Failed > 0 {
		t.Errorf("%d of %d requests failed:\n%s", result.Failed, result.Requests, strings.Join(result.Failures, "\n"))
	}
	s.check(err)
}
