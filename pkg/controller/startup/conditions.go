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

package startup

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// progressDeadlineExceeded is the reason of the condition Progressing of a target
// whose last rollout took too long. It stays when the target is scaled, so that it
// says nothing about a start.
const progressDeadlineExceeded = "ProgressDeadlineExceeded"

// OfConditions returns why the pods of a target are not created, as its conditions
// report it, or nil. The conditions are those of Deployments, ReplicaSets,
// ReplicationControllers and Rollouts; other kinds may have them too.
func OfConditions(target *unstructured.Unstructured) *Problem {
	field, _, _ := unstructured.NestedFieldNoCopy(target.Object, "status", "conditions")
	conditions, _ := field.([]any)
	var found *Problem
	for _, item := range conditions {
		condition, _ := item.(map[string]any)
		text := func(key string) string {
			value, _ := condition[key].(string)
			return value
		}
		switch kind, status := text("type"), text("status"); {
		case (kind == "ReplicaFailure" || kind == "InvalidSpec") && status == "True":
			return newProblem(v1alpha1.ReasonPodsNotCreated, "%s", text("message"))
		case kind == "Progressing" && status == "False" && text("reason") != progressDeadlineExceeded:
			found = newProblem(v1alpha1.ReasonPodsNotCreated, "%s", text("message"))
		}
	}
	return found
}
