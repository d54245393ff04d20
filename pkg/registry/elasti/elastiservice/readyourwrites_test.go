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
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Objects are read from the watch cache, which receives a write only after the
// writer has received the response. Clients must not see that.
func TestClientsReadTheirOwnWrites(t *testing.T) {
	s := startServer(t, nil)
	client := s.client.ElastiV1alpha1().ElastiServices(namespace)
	const writers, rounds = 8, 20
	var group sync.WaitGroup
	for writer := range writers {
		group.Go(func() {
			name := fmt.Sprint("app-", writer)
			for round := range rounds {
				expect := func(write string, object *v1alpha1.ElastiService, err error) {
					if err != nil {
						t.Errorf("%s: %v", write, err)
						return
					}
					read, err := client.Get(t.Context(), name, metav1.GetOptions{})
					if err != nil || read.ResourceVersion != object.ResourceVersion || read.UID != object.UID {
						t.Errorf("after %s of version %s, got version %s (error: %v)", write, object.ResourceVersion, read.ResourceVersion, err)
					}
				}
				object, err := client.Create(t.Context(), newElastiService(name, name), metav1.CreateOptions{})
				expect("create", object, err)
				label := fmt.Appendf(nil, `{"metadata":{"labels":{"round":"%d"}}}`, round)
				object, err = client.Patch(t.Context(), name, types.MergePatchType, label, metav1.PatchOptions{})
				expect("patch", object, err)
				condition := []byte(`{"status":{"conditions":[{"type":"Checked","status":"True","reason":"Test","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`)
				object, err = client.Patch(t.Context(), name, types.MergePatchType, condition, metav1.PatchOptions{}, "status")
				expect("patch of the status", object, err)
				object, err = s.statuses.UpdateStatus(t.Context(), keyOf(object), object.UID, func(e *v1alpha1.ElastiService) error {
					e.Status.Replicas = 3
					return nil
				})
				expect("the server's own write of the status", object, err)

				if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
					t.Errorf("delete: %v", err)
				}
				// The finalizer keeps it.
				object, err = client.Get(t.Context(), name, metav1.GetOptions{})
				if err != nil || object.DeletionTimestamp == nil {
					t.Errorf("after delete, got %v (error: %v), want that it is being deleted", object.DeletionTimestamp, err)
				}
				if _, err := client.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
					t.Errorf("removing the finalizer: %v", err)
				}
				if _, err := client.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					t.Errorf("after the deletion, reading returns %v, want not found", err)
				}
			}
		})
	}
	group.Wait()
}
