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

package integration

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// createDependent creates a ConfigMap that belongs to an ElastiService.
func createDependent(t *testing.T, namespace string, owner *v1alpha1.ElastiService, finalizers ...string) {
	t.Helper()
	dependent := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:       "dependent",
		Finalizers: finalizers,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "ElastiService", Name: owner.Name, UID: owner.UID,
			BlockOwnerDeletion: ptr.To(true),
		}},
	}}
	if _, err := shared.Kubernetes.CoreV1().ConfigMaps(namespace).Create(t.Context(), dependent, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the dependent: %v", err)
	}
}

func waitForElastiServiceDeleted(t *testing.T, namespace string) {
	t.Helper()
	eventuallyWithin(t, discoveryTimeout, "the ElastiService is deleted", func(ctx context.Context) string {
		object, err := elastiServices(namespace).Get(ctx, "app", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Sprintf("reading it returns %v with the finalizers %v", err, object.Finalizers)
		}
		return ""
	})
}

func TestForegroundDeletionWaitsForDependents(t *testing.T) {
	namespace := newNamespace(t)
	owner := createElastiService(t, namespace, newElastiService("app"))
	createDependent(t, namespace, owner, "example.com/keep")
	if err := elastiServices(namespace).Delete(t.Context(), "app", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}); err != nil {
		t.Fatalf("deleting: %v", err)
	}
	configMaps := shared.Kubernetes.CoreV1().ConfigMaps(namespace)
	eventuallyWithin(t, discoveryTimeout, "the dependent is being deleted", func(ctx context.Context) string {
		dependent, err := configMaps.Get(ctx, "dependent", metav1.GetOptions{})
		if err != nil {
			t.Fatalf("reading the dependent, which has a finalizer: %v", err)
		}
		if dependent.DeletionTimestamp == nil {
			return "it is not"
		}
		return ""
	})
	object, err := elastiServices(namespace).Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil || object.DeletionTimestamp == nil {
		t.Fatalf("the owner of a dependent that is there still: %+v (error: %v), want it to be deleted later", object, err)
	}
	if _, err := configMaps.Patch(t.Context(), "dependent", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatalf("letting the dependent go: %v", err)
	}
	waitForElastiServiceDeleted(t, namespace)
}

func TestOrphaningDeletionLeavesDependents(t *testing.T) {
	namespace := newNamespace(t)
	owner := createElastiService(t, namespace, newElastiService("app"))
	createDependent(t, namespace, owner)
	if err := elastiServices(namespace).Delete(t.Context(), "app", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}); err != nil {
		t.Fatalf("deleting: %v", err)
	}
	waitForElastiServiceDeleted(t, namespace)
	dependent, err := shared.Kubernetes.CoreV1().ConfigMaps(namespace).Get(t.Context(), "dependent", metav1.GetOptions{})
	if err != nil || len(dependent.OwnerReferences) > 0 || dependent.DeletionTimestamp != nil {
		t.Errorf("the dependent is %+v (error: %v), want it there without owner", dependent, err)
	}
}
