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

package elastiservice_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestSecondElastiServiceForAServiceIsRejected(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	if _, err := services.Create(t.Context(), newElastiService("first", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := services.Create(t.Context(), newElastiService("second", "cart"), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `spec.service`) || !strings.Contains(err.Error(), `"first"`) {
		t.Errorf("create: got %v, want it to name the field and the first ElastiService", err)
	}

	// The same Service name in another namespace is another Service.
	other := newElastiService("first", "cart")
	other.Namespace = "other"
	if _, err := s.client.ElastiV1alpha1().ElastiServices("other").Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Errorf("create in another namespace: %v", err)
	}

	if _, err := services.Create(t.Context(), newElastiService("second", "checkout"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	move := []byte(`{"spec":{"service":"cart"}}`)
	if _, err := services.Patch(t.Context(), "second", types.MergePatchType, move, metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("patch: got %v, want it rejected", err)
	}
	apply := []byte(`{"apiVersion":"elasti.truefoundry.com/v1alpha1","kind":"ElastiService","metadata":{"name":"third"},"spec":{"service":"cart","scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"third"}}}`)
	if _, err := services.Patch(t.Context(), "third", types.ApplyPatchType, apply, metav1.PatchOptions{FieldManager: "test"}); !apierrors.IsInvalid(err) {
		t.Errorf("server-side apply of a new object: got %v, want it rejected", err)
	}

	// A Service that the first one releases can be named at once.
	if _, err := services.Patch(t.Context(), "first", types.MergePatchType, []byte(`{"spec":{"service":"orders"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Patch(t.Context(), "second", types.MergePatchType, move, metav1.PatchOptions{}); err != nil {
		t.Errorf("patch after the Service was released: %v", err)
	}
}

func TestDeletedElastiServiceReleasesItsService(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	for i := range 20 {
		name := fmt.Sprintf("generation-%d", i)
		if _, err := services.Create(t.Context(), newElastiService(name, "cart"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := services.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := services.Create(t.Context(), newElastiService("too-early", "cart"), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "is being deleted") {
			t.Fatalf("while the finalizer is there: got %v, want it rejected", err)
		}
		if _, err := services.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// Of many writes that name one Service at the same time, exactly one is accepted,
// whether it creates or changes an ElastiService.
func TestOneOfManyConcurrentWritesGetsTheService(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	const writers = 10
	for i := range writers {
		name := fmt.Sprintf("changed-%d", i)
		if _, err := services.Create(t.Context(), newElastiService(name, name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 10 {
		service := fmt.Sprintf("contested-%d", round)
		var accepted atomic.Int32
		var group sync.WaitGroup
		count := func(err error) {
			switch {
			case err == nil:
				accepted.Add(1)
			case !apierrors.IsInvalid(err):
				t.Errorf("unexpected error: %v", err)
			}
		}
		for i := range writers {
			group.Go(func() {
				_, err := services.Create(t.Context(), newElastiService(fmt.Sprintf("created-%d-%d", round, i), service), metav1.CreateOptions{})
				count(err)
			})
			group.Go(func() {
				patch := fmt.Appendf(nil, `{"spec":{"service":%q}}`, service)
				_, err := services.Patch(t.Context(), fmt.Sprintf("changed-%d", i), types.MergePatchType, patch, metav1.PatchOptions{})
				count(err)
			})
		}
		group.Wait()
		if got := accepted.Load(); got != 1 {
			t.Errorf("round %d: %d ElastiServices got the Service, want 1", round, got)
		}
	}
}

func TestDryRunDoesNotTakeTheService(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	if _, err := services.Create(t.Context(), newElastiService("first", "cart"), dryRun); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Create(t.Context(), newElastiService("second", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Create(t.Context(), newElastiService("first", "cart"), dryRun); !apierrors.IsInvalid(err) {
		t.Errorf("a dry run: got %v, want what a real one gets", err)
	}
}
