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
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// pollInterval is the interval of polling where a watch is not possible.
	pollInterval = 100 * time.Millisecond
	// propagationTimeout bounds the propagation delay of kube-proxy.
	propagationTimeout = 20 * time.Second
	// resetTimeout bounds the wait for a reset by a resolver, which may hold a connection
	// for 35 s because resolvers might get into the path again.
	resetTimeout = time.Minute
	// lingering is how long terminating pods of some applications still serve. It is longer
	// than a cold start.
	lingering = 15 * time.Second
)

// awaitDirect sends requests, all of which must succeed, until one reaches the pod without
// a resolver. That takes the propagation delay of kube-proxy.
func (s *scene) awaitDirect(app *cluster.Application) *cluster.Response {
	s.Helper()
	return s.awaitPeer(app, false)
}

// awaitFromResolver is awaitDirect for a request through a resolver.
func (s *scene) awaitFromResolver(app *cluster.Application) *cluster.Response {
	s.Helper()
	return s.awaitPeer(app, true)
}

func (s *scene) awaitPeer(app *cluster.Application, fromResolver bool) *cluster.Response {
	s.Helper()
	var last *cluster.Response
	err := wait.PollUntilContextTimeout(s.ctx, pollInterval, propagationTimeout, true, func(ctx context.Context) (bool, error) {
		resolvers, err := s.ResolverAddresses(ctx)
		if err != nil {
			return false, err
		}
		last = s.get(app, "/")
		return slices.Contains(resolvers, last.PeerAddress()) == fromResolver, nil
	})
	if err != nil {
		s.Fatalf("waiting for a request that comes from a resolver (%t): %v; the last one came from %q", fromResolver, err, last.PeerAddress())
	}
	return last
}

// awaitPods waits until the application has a number of ready pods and no other.
func (s *scene) awaitPods(app *cluster.Application, number int) []*corev1.Pod {
	s.Helper()
	pods, err := app.AwaitPods(s.ctx, fmt.Sprintf("%d pods are ready", number), func(pods []*corev1.Pod) bool {
		return len(pods) == number && !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return !cluster.PodIsReady(pod) })
	})
	s.check(err)
	return pods
}

// checkStaysAsleep expects that a sleeping target is not scaled up while a function runs.
func (s *scene) checkStaysAsleep(app *cluster.Application, observer *cluster.Observer, while func()) {
	s.Helper()
	started := time.Now()
	while()
	for _, moment := range observer.Since(started) {
		if moment.Name == app.Name && moment.Change == cluster.Scaled {
			s.Fatalf("the target was scaled while it was to sleep: %v", observer.Since(started))
		}
	}
	s.checkReplicas(app, 0)
}

// rest waits for a time, during which background functions run.
func (s *scene) rest(duration time.Duration) {
	s.Helper()
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
		s.Fatal(context.Cause(s.ctx))
	}
}

// awaitEvent waits for an Event with the reason on the ElastiService.
func (s *scene) awaitEvent(app *cluster.Application, reason string) {
	s.Helper()
	elastiService, err := s.Elasti.ElastiV1alpha1().ElastiServices(app.Namespace).Get(s.ctx, app.Name, metav1.GetOptions{})
	s.check(err)
	var reasons []string
	err = wait.PollUntilContextTimeout(s.ctx, pollInterval, propagationTimeout, true, func(ctx context.Context) (bool, error) {
		events, err := s.Host.EventsV1().Events(app.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		reasons = nil
		for _, event := range events.Items {
			if event.Regarding.Kind == "ElastiService" && event.Regarding.UID == elastiService.UID {
				reasons = append(reasons, event.Reason)
			}
		}
		return slices.Contains(reasons, reason), nil
	})
	if err != nil {
		s.Fatalf("waiting for an Event %s on ElastiService %s: %v; there are: %s", reason, app.Name, err, strings.Join(reasons, ", "))
	}
}
