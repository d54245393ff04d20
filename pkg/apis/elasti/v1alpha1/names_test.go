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

package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
)

// Users match on the values, and code names the constants: a value that was
// mistyped or changed does not agree with the name of its constant any more.
func TestConditionsAndReasonsAreNamedAfterTheirValues(t *testing.T) {
	for name, prefix := range map[string]string{"conditions.go": "Condition", "reasons.go": "Reason"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		ast.Inspect(file, func(node ast.Node) bool {
			spec, ok := node.(*ast.ValueSpec)
			if !ok || spec.Names[0].Name == "AutoscalerReasonPrefix" {
				return true
			}
			found++
			constant := spec.Names[0].Name
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			if constant != prefix+value {
				t.Errorf("%s: %s has the value %q", name, constant, value)
			}
			if !strings.HasPrefix(spec.Doc.Text(), constant) {
				t.Errorf("%s: %s has no comment that begins with its name", name, constant)
			}
			return true
		})
		if found == 0 {
			t.Errorf("%s has no constants", name)
		}
	}
}

// A condition that is missing in the list could be written by requests.
func TestConditionTypesAreAllConditions(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "conditions.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, conditionType := range ConditionTypes() {
		listed[conditionType] = true
	}
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if conditionType := strings.TrimPrefix(spec.Names[0].Name, "Condition"); !listed[conditionType] {
			t.Errorf("ConditionTypes does not return %s", conditionType)
		} else {
			delete(listed, conditionType)
		}
		return true
	})
	if len(listed) > 0 {
		t.Errorf("ConditionTypes returns %v, which are no constants", listed)
	}
}
