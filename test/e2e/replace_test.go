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
	"time"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// replacementTime is longer than a part of the installation may be missing before that
// counts as an uninstallation.
const replacementTime = 20 * time.Second

// What an administrator does to replace a part of the installation is no uninstallation.
func TestReplacedPartsOfTheInstallationWakeNothing(t *testing.T) {
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})
	observer := s.observe()
	for _, part := range [][]string{
		{"clusterrole", apiserverDeployment},
		{"deployment", apiserverDeployment, "--namespace=" + cluster.SystemNamespace},
	} {
		s.checkStaysAsleep(app, observer, func() {
			manifest, err := s.RunKubectl(s.ctx, s.Kubeconfig, "", append([]string{"get", "--output=yaml"}, part...)...)
			s.check(err)
			_, err = s.RunKubectl(s.ctx, s.Kubeconfig, manifest, "replace", "--force", "--filename=-")
			s.check(err)
			s.check(s.AwaitRollout(s.ctx, apiserverDeployment))
			s.awaitAPI()
			// A leader has had the time for it by now.
			s.check(app.AwaitAsleep(s.ctx))
			s.rest(replacementTime)
		})
	}
	s.get(app, "/")
	s.checkReplicas(app, 1)
}
