//go:build autoscalers

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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// argoKinds are the kinds that the controller of Argo Rollouts needs.
var argoKinds = []string{"rollouts", "experiments", "analysisruns", "analysistemplates", "clusteranalysistemplates"}

// TestArgoRolloutSleepsAndWakes puts Rollouts of a running controller of Argo Rollouts to
// sleep, and wakes each of them with a request. With blueGreen that controller also sets
// the selector of the Service to the pods of one ReplicaSet.
func TestArgoRolloutSleepsAndWakes(t *testing.T) {
	s := newScene(t)
	s.startArgoRollouts()
	for _, test := range []struct {
		name, kind string
		strategy   map[string]any
	}{
		{"canary", "Rollout", map[string]any{"canary": map[string]any{}}},
		{"blue-green", "rollouts", map[string]any{"blueGreen": map[string]any{"activeService": "blue-green"}}},
	} {
		s.step(test.name, func(s *scene) {
			app := s.NewApplication(s.namespace, cluster.ApplicationOptions{
				Name: test.name,
				// The pods serve until every kube-proxy has removed them.
				Linger: 2 * time.Second,
				Spec: func(spec *v1alpha1.ElastiServiceSpec) {
					spec.ScaleTargetRef = v1alpha1.ScaleTargetRef{APIVersion: "argoproj.io/v1alpha1", Kind: test.kind, Name: test.name}
				},
			})
			s.check(app.CreateService(s.ctx))
			s.check(app.CreateRollout(s.ctx, test.strategy))
			s.check(app.CreateElastiService(s.ctx))
			s.check(app.AwaitAsleep(s.ctx))
			s.check(app.AwaitResolverSlice(s.ctx, true))
			s.check(app.AwaitReachable(s.ctx))
			s.checkRolloutReplicas(app, 0)

			s.wakeRollout(app, "/first")

			// The controller scales it to zero.
			s.check(app.RequestSleep(s.ctx))
			s.check(app.AwaitResolverSlice(s.ctx, true))
			s.check(app.AwaitAsleep(s.ctx))
			s.checkRolloutReplicas(app, 0)
			s.wakeRollout(app, "/second")

			// A user scales it.
			s.check(app.ScaleRollout(s.ctx, 0))
			s.check(app.AwaitAsleep(s.ctx))
			s.wakeRollout(app, "/third")
		})
	}
}

// wakeRollout sends a request to a Rollout that sleeps, and waits until its
// traffic goes to its pod.
func (s *scene) wakeRollout(app *cluster.Application, path string) {
	s.Helper()
	s.checkPeer(s.get(app, path), true)
	s.checkRolloutReplicas(app, 1)
	s.check(app.AwaitMode(s.ctx, v1alpha1.ModeServe))
	s.check(app.AwaitResolverSlice(s.ctx, false))
	_, err := app.AwaitPods(s.ctx, "one pod is ready", func(pods []*corev1.Pod) bool { return len(pods) == 1 && cluster.PodIsReady(pods[0]) })
	s.check(err)
	s.awaitDirect(app)
}

// checkRolloutReplicas expects spec.replicas of the Rollout.
func (s *scene) checkRolloutReplicas(app *cluster.Application, want int64) {
	s.Helper()
	replicas, err := app.RolloutReplicas(s.ctx)
	s.check(err)
	if replicas != want {
		s.Fatalf("spec.replicas of Rollout %s is %d, want %d", app.Name, replicas, want)
	}
}

// startArgoRollouts installs the kinds of Argo Rollouts and runs its controller
// for the namespace of the scene, until the test ends.
func (s *scene) startArgoRollouts() {
	s.Helper()
	definitions, err := environment.RolloutDefinitions(s.ctx)
	s.check(err)
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), cleanUpTimeout)
		defer cancel()
		for _, kind := range argoKinds {
			err := s.Dynamic.Resource(definitionsResource).Delete(ctx, kind+".argoproj.io", metav1.DeleteOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				s.Error(err)
			}
		}
	})
	// Applied by the client, they would be too large for an annotation.
	_, err = s.runAdminKubectl(s.ctx, "apply", "--server-side", "--kustomize", definitions)
	s.check(err)
	var established []string
	for _, kind := range argoKinds {
		established = append(established, "customresourcedefinition/"+kind+".argoproj.io")
	}
	s.check(environment.AwaitEstablished(s.ctx, s.runAdminKubectl, established...))

	controller, err := s.StartTool("argo-rollouts", s.TempDir(), []string{"POD_NAMESPACE=" + s.namespace},
		"--namespaced", "--namespace="+s.namespace, "--leader-elect=false", "--metricsPort=0", "--healthzPort=0")
	s.check(err)
	s.Cleanup(func() {
		if err := controller.Stop(); err != nil {
			s.Error(err)
		}
		if s.Failed() {
			s.Log(controller.Tail())
		}
	})
}
