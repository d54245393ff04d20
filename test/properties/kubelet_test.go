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

package properties

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// kubeletInterval is how soon the kubelet observes a pod.
const kubeletInterval = 300 * time.Millisecond

// runKubelet simulates scheduler and kubelet until the test ends: pods run, get ready a
// moment later, and end when they are deleted.
func runKubelet(t *testing.T, control *environment.Environment) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	running.Go(func() {
		starting := map[string]bool{}
		for ctx.Err() == nil {
			if err := syncPods(ctx, control, starting); err != nil && ctx.Err() == nil {
				t.Errorf("simulating the kubelet: %v", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(kubeletInterval):
			}
		}
	})
}

// syncPods takes each pod one step further. starting has the pods that become ready next.
func syncPods(ctx context.Context, control *environment.Environment, starting map[string]bool) error {
	pods, err := control.Kubernetes.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		if err := syncPod(ctx, control.Node, &pods.Items[i], starting); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func syncPod(ctx context.Context, node *environment.Node, pod *corev1.Pod, starting map[string]bool) error {
	switch {
	case pod.DeletionTimestamp != nil:
		delete(starting, string(pod.UID))
		return node.Remove(ctx, pod.Namespace, pod.Name)
	case pod.Spec.NodeName == "":
		starting[string(pod.UID)] = true
		_, err := node.Run(ctx, pod.Namespace, pod.Name)
		return err
	case starting[string(pod.UID)]:
		delete(starting, string(pod.UID))
		return node.SetReady(ctx, pod.Namespace, pod.Name, true)
	default:
		return nil
	}
}
