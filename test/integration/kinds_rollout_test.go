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
	"testing"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// Rollouts are found under their kind and under its legacy spelling, with the
// definition that Argo Rollouts is released with.
func TestArgoRollouts(t *testing.T) {
	definition, err := environment.RolloutDefinition(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kubectl := newKubectl(t, "default")
	if _, err := kubectl.Run(t.Context(), "", "create", "--filename", definition); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := kubectl.Run(context.Background(), "", "delete", "--filename", definition); err != nil {
			t.Error(err)
		}
	})
	kind := workload("rollouts", "Rollout")
	kind.apiVersion = "argoproj.io/v1alpha1"
	// The controller of rollouts does not run here.
	kind.noPods = true
	for _, spelling := range []string{"Rollout", "rollouts"} {
		t.Run(spelling, func(t *testing.T) {
			namespace := newNamespace(t)
			kind.create(t, namespace)
			createService(t, namespace)
			object := kind.elastiService()
			object.Spec.ScaleTargetRef.Kind = spelling
			createElastiService(t, namespace, object)
			expectOneRound(t, namespace, kind)
		})
	}
}
