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

package environment

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Manifests is the folder that users deploy with `kubectl apply -k`.
func (e *Environment) Manifests() string {
	return filepath.Join(e.root, "artifacts", "deploy")
}

// Reinstall deploys the product again after its namespace was deleted and Server has ended.
// Server is started with its previous data.
func (e *Environment) Reinstall(ctx context.Context) error {
	if err := e.awaitNamespaceDeleted(ctx); err != nil {
		return err
	}
	if err := e.applyManifests(ctx, e.plane.tools.kubectl); err != nil {
		return err
	}
	// The token of a ServiceAccount that was deleted is not valid any more.
	identity, err := e.AsServiceAccount(ctx, SystemNamespace, ServerName)
	if err != nil {
		return err
	}
	if err := writeKubeconfig(e.Server.Kubeconfig, identity, ""); err != nil {
		return err
	}
	if err := e.Server.Start(ctx); err != nil {
		return err
	}
	e.Resolvers, err = runResolvers(ctx, e.Kubernetes, e.Node)
	return err
}

// awaitNamespaceDeleted waits until the namespace of the product is deleted. Its pods end
// at once.
func (e *Environment) awaitNamespaceDeleted(ctx context.Context) error {
	last := "it was not read yet"
	err := wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
		namespace, err := e.Kubernetes.CoreV1().Namespaces().Get(ctx, SystemNamespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		if err != nil {
			last = err.Error()
			return false, nil
		}
		last = fmt.Sprintf("its conditions are %+v", namespace.Status.Conditions)
		return false, e.removeTerminatingPods(ctx)
	})
	if err != nil {
		return fmt.Errorf("waiting until the namespace %s is deleted: %w: %s", SystemNamespace, err, last)
	}
	return nil
}

func (e *Environment) removeTerminatingPods(ctx context.Context) error {
	pods, err := e.Kubernetes.CoreV1().Pods(SystemNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the pods of %s: %w", SystemNamespace, err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; isTerminating(pod) {
			if err := e.Node.Remove(ctx, SystemNamespace, pod.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

func isTerminating(pod *corev1.Pod) bool { return !pod.DeletionTimestamp.IsZero() }
