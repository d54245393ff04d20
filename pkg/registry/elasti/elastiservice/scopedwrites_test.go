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
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Whatever creates an ElastiService, an apply among them, is kept to the namespaces that the
// controller works on. What was there before can be changed and deleted.
func TestNoRequestCreatesElastiServicesOutsideOfTheScope(t *testing.T) {
	s := startServerIn(t, nil, "bank")
	services := s.client.ElastiV1alpha1().ElastiServices
	apply := []byte(`{"apiVersion":"elasti.truefoundry.com/v1alpha1","kind":"ElastiService","metadata":{"name":"applied"},"spec":{"service":"cart","scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"cart"}}}`)
	for name, want := range map[string]func(error) bool{
		"bank": func(err error) bool { return err == nil },
		"shop": apierrors.IsInvalid,
	} {
		if _, err := services(name).Patch(t.Context(), "applied", types.ApplyYAMLPatchType, apply, metav1.PatchOptions{FieldManager: "team"}); !want(err) {
			t.Errorf("applying in %s returns %v", name, err)
		}
		created := newElastiService("created", "created")
		created.Namespace = name
		if _, err := services(name).Create(t.Context(), created, metav1.CreateOptions{}); !want(err) {
			t.Errorf("creating in %s returns %v", name, err)
		}
	}
}
