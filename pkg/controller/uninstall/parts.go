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

package uninstall

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Kinds of parts whose deletion means something of its own.
const (
	kindNamespace  = "Namespace"
	kindDeployment = "Deployment"
)

// fieldManager is the same as v1alpha1.FieldManager.
const fieldManager = "elasti-apiserver"

// part is an object that the product consists of.
type part struct {
	kind, name string
	get        func(ctx context.Context) (*metav1.ObjectMeta, error)
	// patch applies a JSON merge patch. It is nil for a part that needs no finalizer.
	patch func(ctx context.Context, patch []byte) error
}

// what returns what a part is called in messages.
func (p part) what() string { return p.kind + " " + p.name }

// partsOf returns the objects that show that the product is being deleted: what is
// deleted before the pod of the server, or takes that with it.
func partsOf(host kubernetes.Interface, namespace, name, serviceAccount string) []part {
	return []part{
		partOf(kindNamespace, namespace, host.CoreV1().Namespaces().Get, nil),
		partOf(kindDeployment, name, host.AppsV1().Deployments(namespace).Get, nil),
		partOf("ServiceAccount", serviceAccount, host.CoreV1().ServiceAccounts(namespace).Get, host.CoreV1().ServiceAccounts(namespace).Patch),
		partOf("ClusterRole", name, host.RbacV1().ClusterRoles().Get, host.RbacV1().ClusterRoles().Patch),
		partOf("ClusterRoleBinding", name, host.RbacV1().ClusterRoleBindings().Get, host.RbacV1().ClusterRoleBindings().Patch),
	}
}

type getFunc[T metav1.ObjectMetaAccessor] func(ctx context.Context, name string, options metav1.GetOptions) (T, error)

type patchFunc[T metav1.ObjectMetaAccessor] func(ctx context.Context, name string, patchType types.PatchType, patch []byte, options metav1.PatchOptions, subresources ...string) (T, error)

func partOf[T metav1.ObjectMetaAccessor](kind, name string, get getFunc[T], patch patchFunc[T]) part {
	made := part{kind: kind, name: name, get: func(ctx context.Context) (*metav1.ObjectMeta, error) {
		object, err := get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		meta := object.GetObjectMeta()
		return &metav1.ObjectMeta{
			UID:               meta.GetUID(),
			ResourceVersion:   meta.GetResourceVersion(),
			DeletionTimestamp: meta.GetDeletionTimestamp(),
			Finalizers:        meta.GetFinalizers(),
		}, nil
	}}
	if patch != nil {
		made.patch = func(ctx context.Context, content []byte) error {
			_, err := patch(ctx, name, types.MergePatchType, content, metav1.PatchOptions{FieldManager: fieldManager})
			return err
		}
	}
	return made
}

// setFinalizers writes the finalizers of a part, unless it was changed since it
// was read.
func setFinalizers(ctx context.Context, part part, meta *metav1.ObjectMeta, finalizers []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             meta.UID,
		"resourceVersion": meta.ResourceVersion,
		"finalizers":      finalizers,
	}})
	if err != nil {
		return err
	}
	if err := part.patch(ctx, patch); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing the finalizers of the %s: %w", part.what(), err)
	}
	return nil
}
