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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

var customResourceDefinitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// targetKind is a kind of targets.
type targetKind struct {
	apiVersion, kind, resource string
	// spec is that of an object with zero replicas.
	spec map[string]any
	// noPods is true when no controller makes pods for it.
	noPods bool
}

func (k targetKind) groupVersionResource(t *testing.T) schema.GroupVersionResource {
	t.Helper()
	groupVersion, err := schema.ParseGroupVersion(k.apiVersion)
	if err != nil {
		t.Fatal(err)
	}
	return groupVersion.WithResource(k.resource)
}

func (k targetKind) objects(t *testing.T, namespace string) dynamic.ResourceInterface {
	t.Helper()
	return dynamicClient(t).Resource(k.groupVersionResource(t)).Namespace(namespace)
}

// create creates the object "app" with zero replicas.
func (k targetKind) create(t *testing.T, namespace string) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": k.apiVersion,
		"kind":       k.kind,
		"metadata":   map[string]any{"name": "app"},
		"spec":       k.spec,
	}}
	eventually(t, "the "+k.kind+" is created", func(ctx context.Context) string {
		// A kind that was installed just now may not be served yet.
		if _, err := k.objects(t, namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err.Error()
		}
		return ""
	})
}

func (k targetKind) replicas(t *testing.T, namespace string) int64 {
	t.Helper()
	object, err := k.objects(t, namespace).Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the %s: %v", k.kind, err)
	}
	replicas, _, err := unstructured.NestedInt64(object.Object, "spec", "replicas")
	if err != nil {
		t.Fatalf("reading the replicas of the %s: %v", k.kind, err)
	}
	return replicas
}

func (k targetKind) scale(t *testing.T, namespace string, replicas int) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	if _, err := k.objects(t, namespace).Patch(t.Context(), "app", types.MergePatchType, patch, metav1.PatchOptions{}, "scale"); err != nil {
		t.Fatalf("scaling the %s: %v", k.kind, err)
	}
}

// run makes a pod of the object run, and creates the pod if no controller does.
func (k targetKind) run(t *testing.T, namespace string) (pod string) {
	t.Helper()
	if k.noPods {
		made := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "app-", Labels: appLabels},
			Spec: corev1.PodSpec{
				AutomountServiceAccountToken: ptr.To(false),
				Containers:                   []corev1.Container{{Name: "app", Image: "app", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}},
			},
		}
		if _, err := shared.Kubernetes.CoreV1().Pods(namespace).Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
			t.Fatalf("creating a pod: %v", err)
		}
	}
	return runPod(t, namespace, "app")
}

func (k targetKind) elastiService() *v1alpha1.ElastiService {
	object := newElastiService("app")
	object.Spec.ScaleTargetRef.APIVersion, object.Spec.ScaleTargetRef.Kind = k.apiVersion, k.kind
	return object
}

// podTemplate is that of application_test.go, for kinds with pods.
func podTemplate() map[string]any {
	return map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"app": "app"}},
		"spec": map[string]any{
			"automountServiceAccountToken": false,
			"containers": []any{map[string]any{
				"name": "app", "image": "app",
				"ports": []any{map[string]any{"name": "http", "containerPort": int64(8080)}},
			}},
		},
	}
}

func workload(resource, kind string) targetKind {
	return targetKind{apiVersion: "apps/v1", kind: kind, resource: resource, spec: map[string]any{
		"replicas": int64(0),
		"selector": map[string]any{"matchLabels": map[string]any{"app": "app"}},
		"template": podTemplate(),
	}}
}

// customKind has only a scale subresource.
func customKind(group string) targetKind {
	return targetKind{apiVersion: group + "/v1", kind: "Widget", resource: "widgets", spec: map[string]any{"replicas": int64(0)}, noPods: true}
}

// install installs the CustomResourceDefinition of a custom kind, which is
// removed after the test.
func (k targetKind) install(t *testing.T) {
	t.Helper()
	resource := k.groupVersionResource(t)
	name := resource.GroupResource().String()
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": name},
		"spec": map[string]any{
			"group": resource.Group,
			"scope": "Namespaced",
			"names": map[string]any{"kind": k.kind, "plural": k.resource},
			"versions": []any{map[string]any{
				"name": resource.Version, "served": true, "storage": true,
				"schema":       map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
				"subresources": map[string]any{"scale": map[string]any{"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
			}},
		},
	}}
	definitions := dynamicClient(t).Resource(customResourceDefinitions)
	eventually(t, "the CustomResourceDefinition "+name+" is created", func(ctx context.Context) string {
		// That of a previous test may still be terminating.
		if _, err := definitions.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	t.Cleanup(func() {
		if err := definitions.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("deleting the CustomResourceDefinition %s: %v", name, err)
		}
	})
}

func dynamicClient(t *testing.T) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(shared.Admin)
	if err != nil {
		t.Fatalf("making a client of all kinds: %v", err)
	}
	return client
}

// For each kind, the target is found, resolvers get into the path, it is woken, the
// resolvers leave the path and get into it again.
func TestKindsOfTargets(t *testing.T) {
	custom := customKind("kinds.example.com")
	custom.install(t)
	for _, kind := range []targetKind{workload("statefulsets", "StatefulSet"), workload("replicasets", "ReplicaSet"), custom} {
		t.Run(kind.kind, func(t *testing.T) {
			namespace := newNamespace(t)
			kind.create(t, namespace)
			createService(t, namespace)
			createElastiService(t, namespace, kind.elastiService())
			expectOneRound(t, namespace, kind)
		})
	}
}

// expectOneRound wakes a target of a kind and lets it sleep again.
func expectOneRound(t *testing.T, namespace string, kind targetKind) {
	t.Helper()
	waitForCondition(t, namespace, v1alpha1.ConditionTargetFound, metav1.ConditionTrue)
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue)
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	private := readElastiService(t, namespace).Status.PrivateService
	if _, err := shared.Kubernetes.CoreV1().Services(namespace).Get(t.Context(), private, metav1.GetOptions{}); err != nil {
		t.Errorf("reading the private Service %q: %v", private, err)
	}

	if _, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking: %v", err)
	}
	if replicas := kind.replicas(t, namespace); replicas != 1 {
		t.Errorf("the target has %d replicas after the wake, want 1", replicas)
	}
	pod := kind.run(t, namespace)
	setReady(t, namespace, pod, true)
	waitForMode(t, namespace, v1alpha1.ModeServe)
	waitForNoResolverSlices(t, namespace)
	waitForReplicas(t, namespace, 1)

	kind.scale(t, namespace, 0)
	removePod(t, namespace, pod)
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	waitForReplicas(t, namespace, 0)
}

// waitForReplicas waits until the status has the number of replicas.
func waitForReplicas(t *testing.T, namespace string, want int32) {
	t.Helper()
	eventually(t, fmt.Sprintf("the status has %d replicas", want), func(context.Context) string {
		if replicas := readElastiService(t, namespace).Status.Replicas; replicas != want {
			return fmt.Sprintf("it has %d", replicas)
		}
		return ""
	})
}

// An ElastiService whose kind does not exist reports that, and recovers once it exists.
func TestKindThatIsInstalledLater(t *testing.T) {
	kind := customKind("later.example.com")
	namespace := newNamespace(t)
	createService(t, namespace)
	createElastiService(t, namespace, kind.elastiService())
	waitForCondition(t, namespace, v1alpha1.ConditionTargetFound, metav1.ConditionFalse)
	waitForMode(t, namespace, v1alpha1.ModeProxy)

	kind.install(t)
	kind.create(t, namespace)
	expectOneRound(t, namespace, kind)
}
