//go:build more

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
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// TestProxyPortIsClosedToOthersWhileTheTargetIsAwake connects to a resolver directly after
// the grace period, and then puts the target to sleep again.
func TestProxyPortIsClosedToOthersWhileTheTargetIsAwake(t *testing.T) {
	s := newScene(t)
	s.withArgument(resolverDeployment, "--serve-mode-grace=1s")
	app := s.asleep(cluster.ApplicationOptions{})
	s.get(app, "/")
	s.check(app.AwaitMode(s.ctx, v1alpha1.ModeServe))
	for _, resolver := range s.resolversOf(app) {
		s.awaitReset(resolver, portHealth)
	}
	s.check(app.Sleep(s.ctx))
	for _, resolver := range s.resolversOf(app) {
		response, err := cluster.Get(s.ctx, resolver.url(portHealth, "/"))
		s.check(err)
		s.checkResponse(app, response, "/")
	}
}
