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

package elastiservice

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// The controller keeps the ElastiServices of all tenants.
func TestOfAnElastiServiceWhatTheControllerUsesIsKept(t *testing.T) {
	large := strings.Repeat("x", 64<<10)
	given := &v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart", UID: "1", ResourceVersion: "5", Generation: 3,
			Labels: map[string]string{"team": large},
			Annotations: map[string]string{
				v1alpha1.AnnotationAcceptVolumeDeletion: "true",
				v1alpha1.GroupName + "/note":            large,
			},
			OwnerReferences: []metav1.OwnerReference{{Name: large}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:` + large + `":{}}`)}},
			Finalizers:      []string{v1alpha1.Finalizer, "example.com/other"},
		},
		Spec: v1alpha1.ElastiServiceSpec{Service: "cart", Proxy: &v1alpha1.ProxySpec{
			Policy: v1alpha1.ProxyAlways, ConvergenceSeconds: ptr.To[int32](5),
			AllowedClients: []string{large}, Passive: &v1alpha1.PassiveSpec{Paths: []string{large}},
		}},
	}
	before := given.DeepCopy()
	result, err := keepElastiService(given)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	if len(encoded) > 4<<10 {
		t.Errorf("%d bytes are kept, want fewer", len(encoded))
	}
	kept := result.(*v1alpha1.ElastiService)
	if kept.Annotations[v1alpha1.AnnotationAcceptVolumeDeletion] != "true" || len(kept.Finalizers) != 2 || kept.Generation != 3 ||
		kept.Spec.Proxy.Policy != v1alpha1.ProxyAlways || *kept.Spec.Proxy.ConvergenceSeconds != 5 {
		t.Errorf("kept %+v", kept)
	}
	if given.Spec.Proxy.Passive == nil || len(given.Labels) != len(before.Labels) {
		t.Errorf("the given object is changed to %+v", given)
	}
}
