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
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/truefoundry/elasti-apiserver/pkg/storage/cluster"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/guard"
)

func newIdentity(t *testing.T) *cluster.Identity {
	t.Helper()
	backend, err := cluster.NewBackend(t.Context(), asServer())
	if err != nil {
		t.Fatal(err)
	}
	identity, err := backend.NewIdentity(schema.GroupResource{Resource: "pods"}, "Pod")
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

// The identity is stored among the objects, so that whatever deletes these deletes it, and
// is none of them.
func TestIdentityIsStoredAmongTheObjects(t *testing.T) {
	store := newStack(t, setup{cached: true})
	one, two := newIdentity(t), newIdentity(t)
	if empty, err := one.IsEmpty(t.Context()); err != nil || !empty {
		t.Errorf("a new store is empty: %t (%v)", empty, err)
	}
	before := create(t, store, "ns", "before")
	if empty, err := one.IsEmpty(t.Context()); err != nil || empty {
		t.Errorf("a store with an object is empty: %t (%v)", empty, err)
	}
	watching, err := store.Watch(t.Context(), podPrefix, storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: before.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	if identity, err := one.Identity(t.Context()); err != nil || identity != "" {
		t.Fatalf("a new store has the identity %q (%v)", identity, err)
	}
	if err := one.ReplaceIdentity(t.Context(), "first", "second"); !errors.Is(err, guard.ErrChanged) {
		t.Errorf("replacing what is not there returned %v", err)
	}
	if err := one.ReplaceIdentity(t.Context(), "", "first"); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"", "second"} {
		if err := two.ReplaceIdentity(t.Context(), from, "third"); !errors.Is(err, guard.ErrChanged) {
			t.Errorf("replacing %q returned %v", from, err)
		}
	}
	if err := two.ReplaceIdentity(t.Context(), "first", "second"); err != nil {
		t.Fatal(err)
	}
	if identity, err := one.Identity(t.Context()); err != nil || identity != "second" {
		t.Errorf("the identity is %q (%v), want that of the last write", identity, err)
	}
	after := create(t, store, "ns", "after")
	if event := next(t, watching); event.Type != watch.Added || podOf(event).Name != after.Name {
		t.Errorf("the event after the identity was written is %v", event)
	}
	for _, listed := range []*stack{store, newReplica(t, setup{cached: true})} {
		if pods := list(t, listed, storage.ListOptions{}); len(pods.Items) != 2 {
			t.Errorf("listed: %v", pods.Items)
		}
	}
	stored := dynamicClient(t, host.Admin).Resource(storedPods)
	await(t, "writes are denied", func() bool {
		_, err := stored.Patch(t.Context(), "identity", types.MergePatchType, []byte(`{"identity":"third"}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err)
	})
}
