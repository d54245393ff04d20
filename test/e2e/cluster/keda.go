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
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// kedaModule is the Go module of KEDA.
const kedaModule = "github.com/kedacore/keda/v2"

var scaledObjects = schema.GroupVersionResource{Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"}

// InstallKEDADefinitions creates KEDA's CustomResourceDefinitions, of the version
// that hack/tools builds, and waits until they are served. The returned function
// deletes them, with everything that was created of them.
func (c *Cluster) InstallKEDADefinitions(ctx context.Context) (remove func(context.Context) error, err error) {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", kedaModule)
	download.Dir = filepath.Join(c.Repository, "hack", "tools", "keda")
	output, err := download.Output()
	if err != nil {
		return nil, fmt.Errorf("downloading the module %s: %w", kedaModule, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(output, &module); err != nil {
		return nil, fmt.Errorf("reading where the module %s is: %w", kedaModule, err)
	}
	definitions := "--filename=" + filepath.Join(module.Dir, "config", "crd", "bases")
	// They are too long for the annotation of a client-side apply.
	if _, err := c.RunKubectl(ctx, c.Kubeconfig, "", "apply", "--server-side", "--force-conflicts", definitions); err != nil {
		return nil, err
	}
	remove = func(ctx context.Context) error {
		_, err := c.RunKubectl(ctx, c.Kubeconfig, "", "delete", "--ignore-not-found", definitions)
		return err
	}
	run := func(ctx context.Context, arguments ...string) (string, error) {
		return c.RunKubectl(ctx, c.Kubeconfig, "", arguments...)
	}
	return remove, environment.AwaitEstablished(ctx, run, definitions)
}

// ScaledObjects reaches the ScaledObjects of a namespace.
func (c *Cluster) ScaledObjects(namespace string) dynamic.ResourceInterface {
	return c.Dynamic.Resource(scaledObjects).Namespace(namespace)
}

// ReleaseScaledObjects takes away the finalizers of all ScaledObjects of a
// namespace, which KEDA would, if it ran.
func (c *Cluster) ReleaseScaledObjects(ctx context.Context, namespace string) error {
	client := c.ScaledObjects(namespace)
	found, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing ScaledObjects: %w", err)
	}
	for i := range found.Items {
		_, err := client.Patch(ctx, found.Items[i].GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("releasing ScaledObject %s: %w", found.Items[i].GetName(), err)
		}
	}
	return nil
}

// CreateScaledObject has KEDA scale the Deployment between a number of replicas
// and 5, by how many pods are labeled app=worker. Without any, KEDA wants the
// least number.
func (a *Application) CreateScaledObject(ctx context.Context, least int64) error {
	_, err := a.cluster.ScaledObjects(a.Namespace).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": scaledObjects.GroupVersion().String(),
		"kind":       "ScaledObject",
		"metadata":   map[string]any{"name": a.Name, "annotations": map[string]any{"example.com/team": "shop"}},
		"spec": map[string]any{
			"scaleTargetRef":  map[string]any{"name": a.Name},
			"pollingInterval": int64(1),
			"minReplicaCount": least,
			// KEDA scales to zero at the first poll at which no trigger is active.
			"cooldownPeriod":  int64(0),
			"maxReplicaCount": int64(5),
			"triggers": []any{map[string]any{
				"type":     "kubernetes-workload",
				"metadata": map[string]any{"podSelector": "app=worker", "value": "1"},
			}},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating ScaledObject %s: %w", a.Name, err)
	}
	return nil
}
