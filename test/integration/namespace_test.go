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
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// discoveryTimeout is longer than it takes until kube-controller-manager has discovered
// the API, which it does every 30 seconds, or has retried.
const discoveryTimeout = 2 * time.Minute

func TestNamespaceWithElastiServicesIsDeleted(t *testing.T) {
	namespace := newDisposableNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	deleteNamespace(t, namespace)
	waitForNamespaceDeleted(t, namespace)
}

func TestClusterWorksWhileTheServerIsDown(t *testing.T) {
	namespace := newDisposableNamespace(t)
	createApplication(t, namespace, 1)
	pod := runPod(t, namespace, "app")
	createElastiService(t, namespace, newElastiService("app"))
	kubectl := newKubectl(t, namespace)

	stopServer(t)
	if _, err := kubectl.Run(t.Context(), "", "get", "pods"); err != nil {
		t.Errorf("pods cannot be read while the server is down: %v", err)
	}
	eventually(t, "the APIService says why it is not available", func(ctx context.Context) string {
		reason, err := kubectl.Run(ctx, "", "get", "apiservice", environment.APIServiceName,
			`--output=jsonpath={.status.conditions[?(@.type=="Available")].status} {.status.conditions[?(@.type=="Available")].reason}`)
		if err != nil {
			return err.Error()
		}
		if reason != "False MissingEndpoints" {
			return fmt.Sprintf("it says %q", reason)
		}
		return ""
	})
	deleteNamespace(t, namespace)
	removePod(t, namespace, pod)
	eventuallyWithin(t, discoveryTimeout, "the namespace waits for the server", func(ctx context.Context) string {
		object, err := shared.Kubernetes.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("the namespace with an ElastiService is deleted while no server could delete that: %v", err)
		}
		for _, condition := range object.Status.Conditions {
			if condition.Type == corev1.NamespaceDeletionDiscoveryFailure && condition.Status == corev1.ConditionTrue {
				return ""
			}
		}
		return fmt.Sprintf("its conditions are %+v", object.Status.Conditions)
	})

	startAgain(t)
	waitForNamespaceDeleted(t, namespace)
}

func TestGarbageCollectionFollowsOwnersBothWays(t *testing.T) {
	namespace := newNamespace(t)
	configMaps := shared.Kubernetes.CoreV1().ConfigMaps(namespace)
	owner, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating the owner: %v", err)
	}
	object := newElastiService("app")
	object.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}
	middle := createElastiService(t, namespace, object)
	dependent := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "dependent",
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "ElastiService", Name: middle.Name, UID: middle.UID,
			BlockOwnerDeletion: ptr.To(true),
		}},
	}}
	if _, err := configMaps.Create(t.Context(), dependent, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the dependent: %v", err)
	}

	if err := configMaps.Delete(t.Context(), owner.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting the owner: %v", err)
	}
	eventuallyWithin(t, discoveryTimeout, "the ElastiService follows its owner", func(ctx context.Context) string {
		if _, err := elastiServices(namespace).Get(ctx, middle.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("reading it returns %v", err)
		}
		return ""
	})
	eventuallyWithin(t, discoveryTimeout, "the dependent follows the ElastiService", func(ctx context.Context) string {
		if _, err := configMaps.Get(ctx, dependent.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("reading it returns %v", err)
		}
		return ""
	})
}

// An object whose owner cannot be read for a while is not collected.
func TestDependentsSurviveARestartOfTheServer(t *testing.T) {
	namespace := newNamespace(t)
	configMaps := shared.Kubernetes.CoreV1().ConfigMaps(namespace)
	owner := createElastiService(t, namespace, newElastiService("app"))
	dependent := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:            "dependent",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "ElastiService", Name: owner.Name, UID: owner.UID}},
	}}
	if _, err := configMaps.Create(t.Context(), dependent, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the dependent: %v", err)
	}
	// The dependent is created while the owner cannot be read: the garbage collector
	// retries to read it.
	orphan := dependent.DeepCopy()
	orphan.Name = "created-meanwhile"
	killServer(t)
	if _, err := configMaps.Create(t.Context(), orphan, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating a dependent while the server is down: %v", err)
	}
	startAgain(t)
	// The garbage collector processes objects in order: once an object without owner that
	// was created last is collected, it has processed all others.
	ownerless := dependent.DeepCopy()
	ownerless.Name = "without-owner"
	ownerless.OwnerReferences[0].UID = "00000000-0000-0000-0000-000000000000"
	if _, err := configMaps.Create(t.Context(), ownerless, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating a dependent without an owner: %v", err)
	}
	eventuallyWithin(t, discoveryTimeout, "the dependent without an owner is collected", func(ctx context.Context) string {
		if _, err := configMaps.Get(ctx, ownerless.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("reading it returns %v", err)
		}
		return ""
	})
	for _, name := range []string{dependent.Name, orphan.Name} {
		if _, err := configMaps.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("the dependent %s did not survive: %v", name, err)
		}
	}
}

func deleteNamespace(t *testing.T, namespace string) {
	t.Helper()
	if err := shared.Kubernetes.CoreV1().Namespaces().Delete(t.Context(), namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting the namespace: %v", err)
	}
}

func waitForNamespaceDeleted(t *testing.T, namespace string) {
	t.Helper()
	eventuallyWithin(t, discoveryTimeout, "the namespace is deleted", func(ctx context.Context) string {
		object, err := shared.Kubernetes.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return ""
		case err != nil:
			return err.Error()
		default:
			return fmt.Sprintf("its conditions are %+v", object.Status.Conditions)
		}
	})
}
