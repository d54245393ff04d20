//go:build cycles

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
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

func TestTrafficKeepsATargetAwakeAndQuietPutsItToSleep(t *testing.T) {
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{Spec: sleepsByTraffic})
	traffic := &cluster.Traffic{Application: app, Path: "/", PerSecond: 10, Limit: 3000, Timeout: time.Minute}
	s.runCycle(app, traffic, func() { s.rest(2 * trafficCooldown) })
}

// The traffic of a resolver that was killed must neither let a target sleep that is in
// use through other resolvers, nor keep it awake when it is not in use.
func TestResolverKilledDuringTheCooldownDoesNotPutABusyTargetToSleep(t *testing.T) {
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{Spec: sleepsByTraffic})
	observer := s.observe()
	s.get(app, "/")
	// Requests through the resolver that is killed may fail.
	traffic := &cluster.Traffic{Application: app, Path: "/", PerSecond: 20, Limit: 3000, Timeout: 30 * time.Second}
	stop := s.background(traffic.Run)
	s.awaitReports(app, 2)
	s.checkStaysAwake(app, observer, func() {
		s.kill(cluster.ResolverSelector)
		s.rest(2 * trafficCooldown)
	})
	stop()
	s.awaitReplicas(app, 0)
	s.check(app.AwaitAsleep(s.ctx))
	s.get(app, "/again")
}

// awaitReports waits until a number of resolvers have reported traffic.
func (s *scene) awaitReports(app *cluster.Application, number int) {
	s.Helper()
	_, err := s.AwaitElastiService(s.ctx, app.Namespace, app.Name, "resolvers report its traffic", func(elastiService *v1alpha1.ElastiService) bool {
		seen := slices.DeleteFunc(slices.Clone(elastiService.Status.Activity), func(reported v1alpha1.ResolverActivity) bool {
			return reported.LastRequestTime == nil
		})
		return len(seen) >= number
	})
	s.check(err)
}

func TestAnOpenConnectionKeepsATargetAwake(t *testing.T) {
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{Spec: sleepsByTraffic})
	observer := s.observe()
	ended := make(chan error, 1)
	s.background(func(ctx context.Context) {
		// At zero, the request always goes through a resolver.
		response, err := cluster.Get(ctx, app.URL("/slow?for="+(2*trafficCooldown).String()))
		if err == nil {
			err = response.FromApplication(app.Name)
		}
		ended <- err
	})
	s.awaitReplicas(app, 1)
	s.checkStaysAwake(app, observer, func() { s.check(<-ended) })
	s.awaitReplicas(app, 0)
}

// A Deployment has two Services, each with its ElastiService: the one that is not used
// does not put the other one to sleep, and both wake it.
func TestTargetOfTwoServicesSleepsWhenNeitherIsUsed(t *testing.T) {
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{Spec: sleepsByTraffic})
	other := s.NewApplication(s.namespace, cluster.ApplicationOptions{
		Name:    app.Name + "-grpc",
		Service: func(spec *corev1.ServiceSpec) { spec.Selector = map[string]string{"app": app.Name} },
		Spec: func(spec *v1alpha1.ElastiServiceSpec) {
			sleepsByTraffic(spec)
			spec.ScaleTargetRef.Name = app.Name
		},
	})
	s.check(other.CreateService(s.ctx))
	s.check(other.CreateElastiService(s.ctx))
	s.check(other.AwaitResolverSlice(s.ctx, true))
	s.check(other.AwaitReachable(s.ctx))

	observer := s.observe()
	ended := make(chan error, 1)
	s.background(func(ctx context.Context) {
		// At zero, the request goes through a resolver for certain.
		response, err := cluster.Get(ctx, other.URL("/slow?for="+(3*trafficCooldown).String()))
		if err == nil {
			err = response.FromApplication(app.Name)
		}
		ended <- err
	})
	s.awaitReplicas(app, 1)
	s.checkStaysAwake(app, observer, func() { s.check(<-ended) })
	s.awaitReplicas(app, 0)
	for _, sleeping := range []*cluster.Application{app, other} {
		_, err := sleeping.AwaitCondition(s.ctx, v1alpha1.ConditionSleeping, metav1.ConditionTrue)
		s.check(err)
		s.check(sleeping.AwaitResolverSlice(s.ctx, true))
	}
	s.check(app.AwaitAsleep(s.ctx))
	s.get(app, "/again")
}

func TestScaleDownsUnderTrafficFailNoRequest(t *testing.T) {
	s := newScene(t)
	result, err := s.ScaleDown(s.ctx, s.namespace, s.observe(), cluster.RoundOptions{Applications: 2, Rounds: 2, Clients: 5, PerSecond: 10, Timeout: testTimeout})
	t.Logf("%d scale-downs, %d requests, %d failed", result.Rounds, result.Requests, result.Failed)
	if result.Failed > 0 {
		t.Errorf("%d of %d requests failed:\n%s", result.Failed, result.Requests, strings.Join(result.Failures, "\n"))
	}
	s.check(err)
}
