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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// maxObjects bounds how many objects are written until the server is killed.
const maxObjects = 2000

// TestAPIServerKilledAndRestartedLosesNothing kills all API servers during writes. The
// acknowledged objects exist afterwards, modes have not changed while they were down, and
// changes of the meantime are observed.
func TestAPIServerKilledAndRestartedLosesNothing(t *testing.T) {
	s := newScene(t)
	asleep := s.asleep(cluster.ApplicationOptions{Name: "asleep"})
	awake := s.awake(cluster.ApplicationOptions{Name: "awake"})
	falling := s.awake(cluster.ApplicationOptions{Name: "falling"})
	observer := s.observe()

	acknowledged := make(map[string]types.UID)
	enough := make(chan struct{})
	var unexpected error
	stopWriting := s.background(func(ctx context.Context) {
		unexpected = s.writeUntilItFails(ctx, acknowledged, enough)
	})
	select {
	case <-enough:
	case <-s.ctx.Done():
		t.Fatal("the API server did not take any objects")
	}
	killed := time.Now()
	servers := s.killAll(cluster.APIServerSelector)
	// The target is scaled while the servers are down.
	s.check(falling.Scale(s.ctx, 0))
	for i := range servers {
		s.awaitContainerRestart(cluster.APIServerSelector, &servers[i])
	}
	stopWriting()
	s.check(unexpected)

	t.Logf("%d objects were acknowledged before the servers were killed", len(acknowledged))
	s.checkObjects(acknowledged)
	s.check(falling.AwaitAsleep(s.ctx))
	s.get(asleep, "/after")
	for _, moment := range observer.Since(killed) {
		sliceChanged := moment.Change == cluster.ResolversAdded || moment.Change == cluster.ResolversRemoved
		if sliceChanged && moment.Name == awake.Name {
			t.Errorf("%s %s while nothing happened to it", moment.Change, moment.Name)
		}
	}
}

// TestTerminatedAPIServerEndsByItself replaces the pod of an API server, which has to end
// by itself within its grace period.
func TestTerminatedAPIServerEndsByItself(t *testing.T) {
	s := newScene(t)
	// A client with an open watch.
	s.observe()
	pods, err := s.SystemPods(s.ctx, cluster.APIServerSelector)
	s.check(err)
	pod := pods[0]
	s.check(s.Host.CoreV1().Pods(pod.Namespace).Delete(s.ctx, pod.Name, metav1.DeleteOptions{}))
	var exitCode *int32
	_, err = s.AwaitPods(s.ctx, pod.Namespace, cluster.APIServerSelector, "pod "+pod.Name+" is replaced", func(found []*corev1.Pod) bool {
		ready, deleted := 0, true
		for _, other := range found {
			if other.Name != pod.Name {
				if cluster.PodIsReady(other) {
					ready++
				}
				continue
			}
			deleted = false
			for _, container := range other.Status.ContainerStatuses {
				if ended := container.State.Terminated; ended != nil {
					exitCode = &ended.ExitCode
				}
			}
		}
		return ready == len(pods) && deleted
	})
	s.check(err)
	s.awaitAPI()
	if exitCode == nil || *exitCode != 0 {
		t.Errorf("the API server ended with exit code %s, want 0", exitCodeText(exitCode))
	}
}

func exitCodeText(code *int32) string {
	if code == nil {
		return "unknown"
	}
	return fmt.Sprint(*code)
}

// writeUntilItFails creates ElastiServices until the server does not respond any
// more, and records the acknowledged ones. It closes enough once there are some. A
// response that rejects an object is an error.
func (s *scene) writeUntilItFails(ctx context.Context, acknowledged map[string]types.UID, enough chan<- struct{}) error {
	const some = 50
	for i := range maxObjects {
		name := fmt.Sprintf("stored-%04d", i)
		created, err := s.Elasti.ElastiV1alpha1().ElastiServices(s.namespace).Create(ctx, &v1alpha1.ElastiService{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.ElastiServiceSpec{
				Service:        name,
				ScaleTargetRef: v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			},
		}, metav1.CreateOptions{})
		switch {
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err):
			return fmt.Errorf("creating %s: %w", name, err)
		case err != nil:
			return nil
		}
		acknowledged[name] = created.UID
		if len(acknowledged) == some {
			close(enough)
		}
	}
	return nil
}

// checkObjects expects every object to be there, with its UID.
func (s *scene) checkObjects(want map[string]types.UID) {
	s.Helper()
	list, err := s.Elasti.ElastiV1alpha1().ElastiServices(s.namespace).List(s.ctx, metav1.ListOptions{})
	s.check(err)
	found := make(map[string]types.UID)
	for _, item := range list.Items {
		found[item.Name] = item.UID
	}
	for name, uid := range want {
		if found[name] != uid {
			s.Errorf("ElastiService %s was acknowledged with UID %s; now it is %q", name, uid, found[name])
		}
	}
}

// kill ends a pod of the product with SIGKILL and returns it as it was.
func (s *scene) kill(selector string) *corev1.Pod {
	s.Helper()
	pods := s.runningPods(selector)
	s.check(cluster.KillContainer(&pods[0]))
	return &pods[0]
}

// killAll ends all pods of a component with SIGKILL and returns them as they were.
func (s *scene) killAll(selector string) []corev1.Pod {
	s.Helper()
	pods := s.runningPods(selector)
	for i := range pods {
		s.check(cluster.KillContainer(&pods[i]))
	}
	return pods
}

// runningPods returns the pods of a component of the product, at least one.
func (s *scene) runningPods(selector string) []corev1.Pod {
	s.Helper()
	pods, err := s.SystemPods(s.ctx, selector)
	s.check(err)
	if len(pods) == 0 {
		s.Fatalf("no pod with %s runs", selector)
	}
	return pods
}

// awaitContainerRestart waits until the container of a killed pod runs again and is ready.
func (s *scene) awaitContainerRestart(selector string, killed *corev1.Pod) {
	s.Helper()
	restarts := killed.Status.ContainerStatuses[0].RestartCount
	_, err := s.AwaitPods(s.ctx, cluster.SystemNamespace, selector, "pod "+killed.Name+" is ready again", func(pods []*corev1.Pod) bool {
		for _, pod := range pods {
			if pod.Name == killed.Name {
				return cluster.PodIsReady(pod) && len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].RestartCount > restarts
			}
		}
		return false
	})
	s.check(err)
	if selector == cluster.APIServerSelector {
		s.awaitAPI()
	}
}
