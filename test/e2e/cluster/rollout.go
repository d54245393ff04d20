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

package cluster

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

var rollouts = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "rollouts"}

// CreateRollout creates an Argo Rollout instead of the Deployment. strategy is
// its spec.strategy.
func (a *Application) CreateRollout(ctx context.Context, strategy map[string]any) error {
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&a.deployment().Spec)
	if err != nil {
		return fmt.Errorf("encoding Rollout %s: %w", a.Name, err)
	}
	spec["strategy"] = strategy
	rollout := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": rollouts.GroupVersion().String(),
		"kind":       "Rollout",
		"metadata":   map[string]any{"name": a.Name},
		"spec":       spec,
	}}
	if _, err := a.rollouts().Create(ctx, rollout, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating Rollout %s: %w", a.Name, err)
	}
	return nil
}

// ScaleRollout sets the replicas of the Rollout, as a user or an autoscaler would.
func (a *Application) ScaleRollout(ctx context.Context, replicas int32) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	if _, err := a.rollouts().Patch(ctx, a.Name, "application/merge-patch+json", patch, metav1.PatchOptions{}, "scale"); err != nil {
		return fmt.Errorf("scaling Rollout %s to %d: %w", a.Name, replicas, err)
	}
	return nil
}

// RolloutReplicas reads spec.replicas of the Rollout.
func (a *Application) RolloutReplicas(ctx context.Context) (int64, error) {
	rollout, err := a.rollouts().Get(ctx, a.Name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("reading Rollout %s: %w", a.Name, err)
	}
	replicas, _, err := unstructured.NestedInt64(rollout.Object, "spec", "replicas")
	if err != nil {
		return 0, fmt.Errorf("reading the replicas of Rollout %s: %w", a.Name, err)
	}
	return replicas, nil
}

func (a *Application) rollouts() dynamic.ResourceInterface {
	return a.cluster.Dynamic.Resource(rollouts).Namespace(a.Namespace)
}
