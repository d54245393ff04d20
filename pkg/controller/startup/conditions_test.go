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
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestConditionsOfATargetSayWhyItHasNoPods(t *testing.T) {
	condition := func(kind, status, reason string) map[string]any {
		return map[string]any{"type": kind, "status": status, "reason": reason, "message": kind + " in its words"}
	}
	rejected := condition("ReplicaFailure", "True", "FailedCreate")
	for name, test := range map[string]struct {
		conditions any
		want       string
	}{
		"quota, webhook, admission":      {[]any{condition("Available", "False", "MinimumReplicasUnavailable"), rejected}, "ReplicaFailure in its words"},
		"no ReplicaSet":                  {[]any{condition("Progressing", "False", "ReplicaSetCreateError")}, "Progressing in its words"},
		"both":                           {[]any{condition("Progressing", "False", "ReplicaSetCreateError"), rejected}, "ReplicaFailure in its words"},
		"a Rollout with an invalid spec": {[]any{condition("InvalidSpec", "True", "InvalidSpec")}, "InvalidSpec in its words"},
		"no failure any more":            {[]any{condition("ReplicaFailure", "False", "")}, ""},
		"the last rollout took too long": {[]any{condition("Progressing", "False", "ProgressDeadlineExceeded")}, ""},
		"progress":                       {[]any{condition("Progressing", "True", "ReplicaSetUpdated"), condition("Available", "False", "x")}, ""},
		"no conditions":                  {nil, ""},
		"conditions of another shape":    {[]any{"ReplicaFailure", map[string]any{"type": 1, "status": true}}, ""},
		"no list":                        {map[string]any{"ReplicaFailure": "True"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := OfConditions(&unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": test.conditions}}})
			var want *Problem
			if test.want != "" {
				want = &Problem{Reason: v1alpha1.ReasonPodsNotCreated, Message: test.want}
			}
			if !equal(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}
