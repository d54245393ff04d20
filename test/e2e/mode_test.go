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
	"net/http"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

func TestElastiServiceCreatedBeforeItsServiceAndTargetHealsByItself(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{})
	s.check(app.CreateElastiService(s.ctx))
	for _, missing := range []string{v1alpha1.ConditionServiceFound, v1alpha1.ConditionTargetFound} {
		condition, err := app.AwaitCondition(s.ctx, missing, metav1.ConditionFalse)
		s.check(err)
		if condition.Reason == "" || condition.Message == "" {
			t.Errorf("condition %s has no reason or message: %+v", missing, condition)
		}
	}
	s.check(app.CreateService(s.ctx))
	_, err := app.AwaitCondition(s.ctx, v1alpha1.ConditionServiceFound, metav1.ConditionTrue)
	s.check(err)
	s.check(app.CreateDeployment(s.ctx))
	_, err = app.AwaitCondition(s.ctx, v1alpha1.ConditionTargetFound, metav1.ConditionTrue)
	s.check(err)
	s.check(app.AwaitMode(s.ctx, v1alpha1.ModeProxy))
	s.get(app, "/")
	s.checkReplicas(app, 1)
}

func TestTargetAwakeWhenTheElastiServiceIsCreatedStaysInModeServe(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{Replicas: 1})
	s.check(app.CreateDeployment(s.ctx))
	s.check(app.CreateService(s.ctx))
	s.awaitPods(app, 1)
	s.awaitDirect(app)
	observer := s.observe()
	created := time.Now()
	s.check(app.CreateElastiService(s.ctx))
	s.check(app.AwaitMode(s.ctx, v1alpha1.ModeServe))
	for _, moment := range observer.Since(created) {
		if moment.Change == cluster.ResolversAdded {
			t.Errorf("resolvers came in between the clients and a ready pod")
		}
	}
	s.checkReplicas(app, 1)
}

func TestModeServeBeginsOnlyWithAReadyEndpoint(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{Arguments: []string{"-start-delay=3s"}})
	observer := s.observe()
	start := time.Now()
	s.get(app, "/")
	removed, err := observer.Await(s.ctx, start, cluster.ResolversRemoved, app.Name, "")
	s.check(err)
	ready, err := observer.Await(s.ctx, start, cluster.EndpointReady, app.Name, "")
	s.check(err)
	if removed.At.Before(ready.At) {
		t.Errorf("the resolver slice was removed %s before the Service had a ready endpoint", ready.At.Sub(removed.At))
	}
}

func TestKeptConnectionIsForwardedThenClosedAndTheClientMovesToThePod(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})
	transport := &http.Transport{MaxConnsPerHost: 1}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	get := func() *cluster.Response {
		got, err := cluster.GetWith(s.ctx, client, app.URL("/kept"))
		s.check(err)
		s.checkResponse(app, got, "/kept")
		return got
	}
	s.checkPeer(get(), true)
	s.check(app.AwaitMode(s.ctx, v1alpha1.ModeServe))
	// A resolver may forward some more requests, but has to close the connection:
	// otherwise the client would never reach the pod. A new connection may lead to a
	// resolver again until kube-proxy is up to date.
	resolvers, err := s.ResolverAddresses(s.ctx)
	s.check(err)
	var last *cluster.Response
	err = wait.PollUntilContextTimeout(s.ctx, pollInterval, propagationTimeout, true, func(context.Context) (bool, error) {
		last = get()
		return !slices.Contains(resolvers, last.PeerAddress()), nil
	})
	if err != nil {
		t.Fatalf("the client did not move to the pod: %v; its last request came from %q", err, last.PeerAddress())
	}
}

// TestFlappingReadinessLosesNoRequestOfAResolver makes the only pod unready and ready again
// while requests are sent through resolvers.
func TestFlappingReadinessLosesNoRequestOfAResolver(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		spec.Proxy = &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways}
	}})
	s.get(app, "/")
	pod := s.awaitPods(app, 1)[0]
	observer := s.observe()

	traffic := &cluster.Traffic{Application: app, Path: "/", PerSecond: 20, Limit: 2000, Timeout: time.Minute}
	stop := s.background(traffic.Run)
	for range 3 {
		start := time.Now()
		s.setReady(pod.Status.PodIP, false)
		_, err := observer.Await(s.ctx, start, cluster.EndpointLost, app.Name, "")
		s.check(err)
		start = time.Now()
		s.setReady(pod.Status.PodIP, true)
		_, err = observer.Await(s.ctx, start, cluster.EndpointReady, app.Name, "")
		s.check(err)
	}
	stop()
	s.checkTraffic(traffic)
}

func TestChangedServiceMovesEverythingAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})
	other := s.NewApplication(s.namespace, cluster.ApplicationOptions{Name: "other"})
	s.check(other.CreateService(s.ctx))
	s.check(other.CreateDeployment(s.ctx))

	patch := []byte(`{"spec":{"service":"other","scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"other"}}}`)
	_, err := s.Elasti.ElastiV1alpha1().ElastiServices(s.namespace).Patch(s.ctx, app.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	s.check(err)
	s.check(app.AwaitResolverSlice(s.ctx, false))
	s.check(other.AwaitResolverSlice(s.ctx, true))
	s.awaitPrivateServices(1)
	s.get(other, "/")
	s.checkReplicas(other, 1)
	// Nothing would wake the previous target any more.
	s.checkReplicas(app, 1)
	s.awaitPods(app, 1)
}

// setReady sets the result of the readiness probe of the application in a pod.
func (s *scene) setReady(address string, ready bool) {
	s.Helper()
	value := "false"
	if ready {
		value = "true"
	}
	request, err := http.NewRequestWithContext(s.ctx, http.MethodPut, "http://"+address+":8080/ready?value="+value, nil)
	s.check(err)
	response, err := http.DefaultClient.Do(request)
	s.check(err)
	s.check(response.Body.Close())
	if response.StatusCode != http.StatusOK || response.Header.Get("Application-Pod") == "" {
		s.Fatalf("setting readiness: %s, headers %v", response.Status, response.Header)
	}
}
