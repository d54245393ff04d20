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
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// awake creates an application with one ready pod, to which traffic goes directly.
func (s *scene) awake(options cluster.ApplicationOptions) *cluster.Application {
	s.Helper()
	options.Replicas = max(options.Replicas, 1)
	app := s.NewApplication(s.namespace, options)
	s.check(app.Create(s.ctx))
	s.awaitPods(app, int(options.Replicas))
	s.check(app.AwaitMode(s.ctx, v1alpha1.ModeServe))
	s.check(app.AwaitResolverSlice(s.ctx, false))
	return app
}

// checkTraffic expects that every request of a Traffic that has ended got the status 200.
func (s *scene) checkTraffic(traffic *cluster.Traffic) {
	s.Helper()
	total, failed, failures := traffic.Result()
	s.Logf("%d requests to %s, %d failed", total, traffic.Application.URL(traffic.Path), failed)
	if failed > 0 || total == 0 {
		s.Errorf("%d of %d requests failed: %v", failed, total, failures)
	}
}

// scaleSystem scales a Deployment of the product and waits for the scale. The returned
// function, or the end of the test, restores the previous one.
func (s *scene) scaleSystem(name string, replicas int32) (restore func()) {
	s.Helper()
	deployment, err := s.Host.AppsV1().Deployments(cluster.SystemNamespace).Get(s.ctx, name, metav1.GetOptions{})
	s.check(err)
	before := *deployment.Spec.Replicas
	restored := false
	restore = func() {
		s.Helper()
		if restored {
			return
		}
		restored = true
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), testTimeout)
		defer cancel()
		if err := s.setSystemReplicas(ctx, name, before); err != nil {
			s.Fatal(err)
		}
	}
	s.Cleanup(restore)
	s.check(s.setSystemReplicas(s.ctx, name, replicas))
	return restore
}

func (s *scene) setSystemReplicas(ctx context.Context, name string, replicas int32) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	deployments := s.Host.AppsV1().Deployments(cluster.SystemNamespace)
	if _, err := deployments.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "scale"); err != nil {
		return fmt.Errorf("scaling %s to %d: %w", name, replicas, err)
	}
	_, err := s.AwaitDeployment(ctx, cluster.SystemNamespace, name, fmt.Sprintf("%d replicas are available", replicas), func(deployment *appsv1.Deployment) bool {
		return deployment.Status.ObservedGeneration >= deployment.Generation &&
			deployment.Status.Replicas == replicas && deployment.Status.AvailableReplicas == replicas
	})
	if err != nil || name != apiserverDeployment || replicas == 0 {
		return err
	}
	return s.waitForAPI(ctx)
}

// restart replaces every pod of Deployments of the product at the same time, as
// kubectl rollout restart does, and waits until only new ones are there and ready.
func (s *scene) restart(names ...string) {
	s.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
	for _, name := range names {
		_, err := s.Host.AppsV1().Deployments(cluster.SystemNamespace).Patch(s.ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		s.check(err)
	}
	for _, name := range names {
		s.check(s.AwaitRollout(s.ctx, name))
	}
}

// awaitAPI waits until the cluster's API server reaches the product's.
func (s *scene) awaitAPI() {
	s.Helper()
	s.check(s.waitForAPI(s.ctx))
}

func (s *scene) waitForAPI(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, pollInterval, testTimeout, true, func(ctx context.Context) (bool, error) {
		_, last = s.Elasti.ElastiV1alpha1().ElastiServices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{Limit: 1})
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("the product's API is not served: %w: %w", err, last)
	}
	return nil
}
