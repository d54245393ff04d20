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

package storage

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/rest"
)

// customResourceDefinitions says where those of the host cluster are.
var customResourceDefinitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// editByHand changes a stored object as an administrator can.
func editByHand(t *testing.T, name, patch string) {
	t.Helper()
	_, err := dynamicClient(t, asServer()).Resource(storedPods).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// An object that was edited by hand is reported by name, is never read in part, and does
// not affect other objects.
func TestObjectsEditedByHandAreReported(t *testing.T) {
	store := newStack(t, setup{cached: true})
	create(t, store, "ns", "edited")
	create(t, store, "ns", "intact")
	stored, err := dynamicClient(t, asServer()).Resource(storedPods).Get(t.Context(), "n.ns.edited", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	data, _, err := unstructured.NestedString(stored.Object, "data")
	if err != nil {
		t.Fatal(err)
	}
	for what, patch := range map[string]string{
		"data":   fmt.Sprintf(`{"data":%q}`, strings.Replace(data, "edited", "others", 1)),
		"half":   `{"data":"{"}`,
		"none":   `{"data":null}`,
		"key":    `{"key":"ns/intact"}`,
		"digest": `{"digest":"sha256:0"}`,
	} {
		t.Run(what, func(t *testing.T) {
			editByHand(t, "n.ns.edited", patch)
			defer editByHand(t, "n.ns.edited", fmt.Sprintf(`{"key":"ns/edited","data":%q,"digest":%q}`, data, stored.Object["digest"]))
			err := store.Get(t.Context(), podPrefix+"ns/edited", storage.GetOptions{}, &example.Pod{})
			if !apierrors.IsStoreReadError(err) || !strings.Contains(err.Error(), "storedpods/n.ns.edited") {
				t.Errorf("reading it: %v", err)
			}
			// A replica that starts now reads all other objects.
			replica := newReplica(t, setup{cached: true})
			if pods := list(t, replica, storage.ListOptions{}); len(pods.Items) != 1 || pods.Items[0].Name != "intact" {
				t.Errorf("listed: %v", pods.Items)
			}
		})
	}
	if err := store.Get(t.Context(), podPrefix+"ns/edited", storage.GetOptions{}, &example.Pod{}); err != nil {
		t.Errorf("reading it after its repair: %v", err)
	}
}

// The readers of a watch keep the last intact version, and receive later changes.
func TestWatchesOutliveObjectsEditedByHand(t *testing.T) {
	store := newStack(t, setup{cached: true})
	edited := create(t, store, "ns", "edited")
	watching, err := store.Watch(t.Context(), podPrefix, storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: edited.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	editByHand(t, "n.ns.edited", `{"data":"{"}`)
	create(t, store, "ns", "other")
	if event := next(t, watching); event.Type != watch.Added || podOf(event).Name != "other" {
		t.Errorf("the event after the edit is %v", event)
	}
	if err := dynamicClient(t, asServer()).Resource(storedPods).Delete(t.Context(), "n.ns.edited", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if event := next(t, watching); event.Type != watch.Deleted || podOf(event).Name != "edited" {
		t.Errorf("the event of its deletion is %v", event)
	}
}

// A missing CustomResourceDefinition is an error other than not found.
func TestMissingResourcesAreNoMissingObjects(t *testing.T) {
	lost := newReplica(t, setup{wrap: func(config *rest.Config) { config.Host += "/nowhere" }})
	err := lost.Get(t.Context(), podPrefix+"ns/name", storage.GetOptions{}, &example.Pod{})
	if err == nil || storage.IsNotFound(err) || apierrors.IsNotFound(err) {
		t.Errorf("reading an object: %v", err)
	}
	if err := lost.GetList(t.Context(), podPrefix, storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{}); err == nil || apierrors.IsNotFound(err) {
		t.Errorf("listing objects: %v", err)
	}
}

func TestTooLargeObjectsAreRejected(t *testing.T) {
	store := newStack(t, setup{})
	pod := newPod("ns", "large")
	pod.Annotations = map[string]string{"content": strings.Repeat("x", 1<<20)}
	err := store.Create(t.Context(), podPrefix+"ns/large", pod, &example.Pod{}, 0)
	if !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("creating it: %v", err)
	}
}

// Names of objects that are too long for a stored object are stored too.
func TestLongNamesAreStored(t *testing.T) {
	store := newStack(t, setup{cached: true})
	namespace, name := strings.Repeat("n", 63), strings.Repeat("a", 253)
	create(t, store, namespace, name)
	create(t, store, namespace, name[:252]+"b")
	if pods := list(t, store, storage.ListOptions{}); len(pods.Items) != 2 || pods.Items[0].Name != name {
		t.Errorf("listed: %v", pods.Items)
	}
	if err := store.Delete(t.Context(), podPrefix+namespace+"/"+name, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// Only the server writes the stored objects: no other client can, not even an
// administrator. The CustomResourceDefinitions cannot be deleted by accident.
func TestPoliciesKeepOthersFromWriting(t *testing.T) {
	store := newStack(t, setup{})
	create(t, store, "ns", "kept")
	stored := dynamicClient(t, host.Admin).Resource(storedPods)
	await(t, "writes are denied", func() bool {
		_, err := stored.Patch(t.Context(), "n.ns.kept", types.MergePatchType, []byte(`{"data":"{}"}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err)
	})
	if err := stored.Delete(t.Context(), "n.ns.kept", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("deleting it by hand: %v", err)
	}
	if _, err := stored.Patch(t.Context(), "n.ns.kept", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("a write that keeps the content: %v", err)
	}
	definitions := dynamicClient(t, host.Admin).Resource(customResourceDefinitions)
	await(t, "the deletion of a CustomResourceDefinition is denied", func() bool {
		err := definitions.Delete(t.Context(), "storedpods."+storedPods.Group, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err)
	})
	if err := store.Delete(t.Context(), podPrefix+"ns/kept", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Errorf("deleting it as the server: %v", err)
	}
}
