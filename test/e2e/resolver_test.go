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
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	apiserverDeployment = "elasti-apiserver"
	resolverDeployment  = "elasti-resolver"
)

func TestSlicesFollowTheReadyResolvers(t *testing.T) {
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})
	before := s.awaitSliceFollowsResolvers(app, 2)

	resolvers, err := s.SystemPods(s.ctx, cluster.ResolverSelector)
	s.check(err)
	s.check(s.Host.CoreV1().Pods(cluster.SystemNamespace).Delete(s.ctx, resolvers[0].Name, metav1.DeleteOptions{}))
	_, err = s.AwaitEndpointSlices(s.ctx, s.namespace, app.Name, "the slice does not list the deleted resolver", func(found []*discoveryv1.EndpointSlice) bool {
		return !slices.Contains(readyResolvers(found), resolvers[0].Status.PodIP)
	})
	s.check(err)
	s.get(app, "/")
	after := s.awaitSliceFollowsResolvers(s.asleep(cluster.ApplicationOptions{Name: "other"}), 2)
	if slices.Equal(before, after) {
		t.Errorf("the slices list %v before and after a resolver was replaced", after)
	}
}

func TestResolverKilledRespondsAgain(t *testing.T) {
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})
	killed := s.kill(cluster.ResolverSelector)
	s.awaitContainerRestart(cluster.ResolverSelector, killed)
	s.awaitSliceFollowsResolvers(app, 2)
	s.get(app, "/")
}

func TestRollingRestartOfResolversFailsNoRequest(t *testing.T) {
	s := newScene(t)
	// Resolvers forward to the first application all the time, and hold requests for the
	// second one.
	always := s.asleep(cluster.ApplicationOptions{Name: "always", Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		spec.Proxy = &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways}
	}})
	slow := s.asleep(cluster.ApplicationOptions{Name: "slow", Arguments: []string{"-start-delay=10s"}})
	s.get(always, "/")

	traffic := &cluster.Traffic{Application: always, Path: "/", PerSecond: 50, Limit: 5000, Timeout: time.Minute}
	stopTraffic := s.background(traffic.Run)
	held := &cluster.Traffic{Application: slow, Path: "/", PerSecond: 10, Limit: 10, Timeout: time.Minute}
	stopHeld := s.background(held.Run)
	_, err := s.AwaitDeployment(s.ctx, s.namespace, slow.Name, "it is woken", func(deployment *appsv1.Deployment) bool {
		return *deployment.Spec.Replicas > 0
	})
	s.check(err)
	s.restart(resolverDeployment)
	stopTraffic()
	s.check(slow.AwaitMode(s.ctx, v1alpha1.ModeServe))
	stopHeld()
	s.checkTraffic(traffic)
	s.checkTraffic(held)
}

func TestSleepingTargetsAreWokenWhenNoResolverIsReady(t *testing.T) {
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})
	restore := s.scaleSystem(resolverDeployment, 0)
	_, err := s.AwaitDeployment(s.ctx, s.namespace, app.Name, "it is woken", func(deployment *appsv1.Deployment) bool {
		return *deployment.Spec.Replicas == 1
	})
	s.check(err)
	_, err = app.AwaitCondition(s.ctx, v1alpha1.ConditionResolverAvailable, metav1.ConditionFalse)
	s.check(err)
	s.check(app.AwaitMode(s.ctx, v1alpha1.ModeServe))
	s.get(app, "/")
	restore()
	_, err = app.AwaitCondition(s.ctx, v1alpha1.ConditionResolverAvailable, metav1.ConditionTrue)
	s.check(err)
}

func TestAwakeApplicationNeedsNothingOfTheProduct(t *testing.T) {
	s := newScene(t)
	app := s.awake(cluster.ApplicationOptions{})
	s.awaitDirect(app)
	restoreServer := s.scaleSystem(apiserverDeployment, 0)
	restoreResolvers := s.scaleSystem(resolverDeployment, 0)
	traffic := &cluster.Traffic{Application: app, Path: "/", PerSecond: 50, Limit: 100, Timeout: 10 * time.Second}
	traffic.Run(s.ctx)
	s.checkTraffic(traffic)
	restoreServer()
	restoreResolvers()
}

// awaitSliceFollowsResolvers waits until the resolver slice of an application
// lists exactly the ready resolvers, of which there are as many as wanted.
func (s *scene) awaitSliceFollowsResolvers(app *cluster.Application, number int) []string {
	s.Helper()
	ready, err := s.AwaitPods(s.ctx, cluster.SystemNamespace, cluster.ResolverSelector, "the resolvers are ready", func(pods []*corev1.Pod) bool {
		return len(readyAddresses(pods)) == number
	})
	s.check(err)
	want := readyAddresses(ready)
	_, err = s.AwaitEndpointSlices(s.ctx, app.Namespace, app.Name, "the slice lists the ready resolvers", func(found []*discoveryv1.EndpointSlice) bool {
		return slices.Equal(readyResolvers(found), want)
	})
	s.check(err)
	return want
}

func readyAddresses(pods []*corev1.Pod) []string {
	var addresses []string
	for _, pod := range pods {
		if cluster.PodIsReady(pod) && pod.DeletionTimestamp == nil {
			addresses = append(addresses, pod.Status.PodIP)
		}
	}
	slices.Sort(addresses)
	return addresses
}

// readyResolvers are the addresses of the endpoints of the resolver slices that are ready.
func readyResolvers(found []*discoveryv1.EndpointSlice) []string {
	var addresses []string
	for _, slice := range found {
		if !cluster.IsResolverSlice(slice) {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready {
				addresses = append(addresses, endpoint.Addresses...)
			}
		}
	}
	slices.Sort(addresses)
	return addresses
}
