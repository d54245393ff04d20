//go:build cycles || autoscalers

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
	"context"
	"os/exec"
	"path/filepath"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// trafficCooldown is short, and long enough for reports to arrive in time on a busy
// machine.
const trafficCooldown = 8 * time.Second

func sleepsByTraffic(spec *v1alpha1.ElastiServiceSpec) {
	spec.CooldownPeriod = ptr.To(int32(trafficCooldown / time.Second))
	spec.Triggers = []v1alpha1.ScaleTrigger{{Type: "traffic"}}
	spec.Proxy = &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways}
}

// awaitReplicas waits until spec.replicas of the Deployment of an application has a
// value.
func (s *scene) awaitReplicas(app *cluster.Application, want int32) {
	s.Helper()
	_, err := s.AwaitDeployment(s.ctx, app.Namespace, app.Name, "spec.replicas has the desired value", func(deployment *appsv1.Deployment) bool {
		return *deployment.Spec.Replicas == want
	})
	s.check(err)
}

// checkStaysAwake expects a target not to be scaled to zero while something runs.
func (s *scene) checkStaysAwake(app *cluster.Application, observer *cluster.Observer, while func()) {
	s.Helper()
	started := time.Now()
	while()
	for _, moment := range observer.Since(started) {
		if moment.Name == app.Name && moment.Change == cluster.Scaled && moment.Detail == "0" {
			s.Fatalf("the target was put to sleep while it was used: %v", observer.Since(started))
		}
	}
}

// runCycle takes a sleeping application through a full cycle: a request wakes it,
// traffic keeps it awake while a function runs, it sleeps without traffic, and a
// request wakes it again. No request may fail.
func (s *scene) runCycle(app *cluster.Application, traffic *cluster.Traffic, while func()) {
	s.Helper()
	observer := s.observe()
	s.get(app, "/")
	stop := s.background(traffic.Run)
	s.checkStaysAwake(app, observer, while)
	stop()
	s.checkTraffic(traffic)
	s.awaitReplicas(app, 0)
	s.check(app.AwaitAsleep(s.ctx))
	s.awaitEvent(app, "Slept")
	s.get(app, "/again")
	s.checkReplicas(app, 1)
}

// after calls a function at the end of the test, whether it passed or not.
func (s *scene) after(do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), cleanUpTimeout)
	defer cancel()
	if err := do(ctx); err != nil {
		s.Error(err)
	}
}

// tool returns the path of a program that hack/tools builds or fetches.
func (s *scene) tool(name string) string {
	s.Helper()
	path, err := exec.LookPath(filepath.Join(s.Repository, "_output", "tools", "bin", name))
	if err != nil {
		s.Fatalf("there is no %s: run hack/tools/build.sh, or hack/tools/debian.sh prometheus: %v", name, err)
	}
	return path
}
