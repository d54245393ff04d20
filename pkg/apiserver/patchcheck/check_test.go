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

package patchcheck

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestCheckNamesTheFieldsWithWrongTypes(t *testing.T) {
	const merge, strategic, apply, operations = types.MergePatchType, types.StrategicMergePatchType, types.ApplyYAMLPatchType, types.JSONPatchType
	for _, test := range []struct {
		name      string
		patchType types.PatchType
		patch     string
		// want are the problems, in any order.
		want []string
	}{
		{"merge patch", merge, `{"spec":{"cooldownPeriod":"5"}}`, []string{`spec.cooldownPeriod: Invalid value: "5": must be an integer`}},
		{"strategic merge patch", strategic, `{"spec":{"cooldownPeriod":"5"}}`, []string{`spec.cooldownPeriod: Invalid value: "5": must be an integer`}},
		{"apply", apply, "spec:\n  cooldownPeriod: \"5\"\n", []string{`spec.cooldownPeriod: Invalid value: "5": must be an integer`}},
		{"JSON patch", operations, `[{"op":"replace","path":"/spec/cooldownPeriod","value":"5"}]`, []string{`spec.cooldownPeriod: Invalid value: "5": must be an integer`}},
		{"JSON patch into a list", operations, `[{"op":"add","path":"/spec/triggers/0/type","value":7}]`, []string{`spec.triggers[0].type: Invalid value: "7": must be a string`}},
		{"JSON patch of a label", operations, `[{"op":"add","path":"/metadata/labels/a~1b","value":true}]`, []string{`metadata.labels[a/b]: Invalid value: true: must be a string`}},
		{"JSON patch of a label with a tilde", operations, `[{"op":"add","path":"/metadata/labels/a~0b","value":true}]`, []string{`metadata.labels[a~b]: Invalid value: true: must be a string`}},
		{"kind", merge, `{"kind":7}`, []string{`kind: Invalid value: "7": must be a string`}},
		{"long number", merge, `{"spec":{"service":` + strings.Repeat("1", 100) + `}}`, []string{`spec.service: Invalid value: must be a string`}},
		{"two at once", merge, `{"spec":{"service":1,"minTargetReplicas":true}}`, []string{
			`spec.service: Invalid value: "1": must be a string`, `spec.minTargetReplicas: Invalid value: true: must be an integer`,
		}},
		{"fraction", merge, `{"spec":{"cooldownPeriod":1.5}}`, []string{`spec.cooldownPeriod: Invalid value: "1.5": must be an integer of 32 bits`}},
		{"too large", merge, `{"spec":{"cooldownPeriod":3000000000}}`, []string{`spec.cooldownPeriod: Invalid value: "3000000000": must be an integer of 32 bits`}},
		{"object for a string", merge, `{"spec":{"service":{"name":"cart"}}}`, []string{`spec.service: Invalid value: must be a string`}},
		{"string for an object", merge, `{"spec":{"scaleTargetRef":"cart"}}`, []string{`spec.scaleTargetRef: Invalid value: "cart": must be an object`}},
		{"object for a list", merge, `{"spec":{"triggers":{}}}`, []string{`spec.triggers: Invalid value: must be a list`}},
		{"element of a list", merge, `{"spec":{"triggers":[{"type":"cpu"},{"type":{}}]}}`, []string{`spec.triggers[1].type: Invalid value: must be a string`}},
		{"boolean", merge, `{"spec":{"proxy":{"waitingPage":"yes"}}}`, []string{`spec.proxy.waitingPage: Invalid value: "yes": must be true or false`}},
		{"time", merge, `{"status":{"sleptTime":"noon"}}`, []string{`status.sleptTime: Invalid value: "noon": parsing time`}},
		{"long value", merge, `{"spec":{"cooldownPeriod":"` + strings.Repeat("s", 100) + `"}}`, []string{`spec.cooldownPeriod: Invalid value: must be an integer`}},

		{"right types", merge, `{"metadata":{"labels":{"a":"b"}},"spec":{"cooldownPeriod":5,"triggers":[{"type":"cpu","metadata":{"threshold":1}}]}}`, nil},
		{"null", merge, `{"spec":{"cooldownPeriod":null,"proxy":null}}`, nil},
		{"metadata of a trigger", merge, `{"spec":{"triggers":[{"type":"cpu","metadata":{"threshold":{"a":[1,"b"]}}}]}}`, nil},
		{"unknown field", merge, `{"name":1,"spec":{"color":{"red":1}}}`, nil},
		{"directives", strategic, `{"spec":{"$retainKeys":["service"],"triggers":[{"$patch":"replace"}]},"status":{"$setElementOrder/conditions":[{"type":"Ready"}],"conditions":[{"$patch":"delete","type":"Ready"}]}}`, nil},
		{"directives in a map", strategic, `{"metadata":{"annotations":{"$retainKeys":["a"],"a":"b"}}}`, nil},
		{"unknown path", operations, `[{"op":"add","path":"/spec/color/0","value":1},{"op":"remove","path":"/spec/proxy"},{"op":"test","path":"/spec/service","value":1}]`, nil},
		{"end of a list", operations, `[{"op":"add","path":"/spec/triggers/-","value":{"type":"cpu"}}]`, nil},
		{"not JSON", merge, `{"spec":`, nil},
		{"not an object", merge, `[]`, nil},
		{"not a JSON patch", operations, `{}`, nil},
		{"other type", "application/json", `{"spec":{"cooldownPeriod":"5"}}`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			problems := Check(test.patchType, []byte(test.patch), reflect.TypeFor[v1alpha1.ElastiService]())
			if len(problems) != len(test.want) {
				t.Fatalf("got %v, want %q", problems, test.want)
			}
			all := problems.ToAggregate()
			for _, want := range test.want {
				if !strings.Contains(all.Error(), want) {
					t.Errorf("got %v, want %q", all, want)
				}
			}
		})
	}
}

func TestCheckListsABoundedNumberOfProblems(t *testing.T) {
	patch := `{"spec":{"triggers":[` + strings.TrimSuffix(strings.Repeat(`{"type":1},`, 100_000), ",") + `]}}`
	if problems := Check(types.MergePatchType, []byte(patch), reflect.TypeFor[v1alpha1.ElastiService]()); len(problems) != maxProblems {
		t.Errorf("got %d problems, want %d", len(problems), maxProblems)
	}
}

// Any bytes are checked without a panic.
func FuzzCheck(f *testing.F) {
	for _, seed := range []string{`{"spec":{"cooldownPeriod":"5"}}`, `[{"op":"add","path":"/spec/triggers/0/metadata/x","value":[]}]`, `[{"op":"add","path":"/0","value":1}]`, "spec: {service: 1}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(_ *testing.T, patch []byte) {
		for _, patchType := range []types.PatchType{types.MergePatchType, types.StrategicMergePatchType, types.ApplyYAMLPatchType, types.JSONPatchType} {
			Check(patchType, patch, reflect.TypeFor[v1alpha1.ElastiService]())
		}
	})
}
