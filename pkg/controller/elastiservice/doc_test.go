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
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// section returns the lines of a section of the documentation of the package.
func section(t *testing.T, title string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(file.Doc.Text(), "# "+title+"\n")
	if !found {
		t.Fatalf("doc.go has no section %s", title)
	}
	text, _, _ := strings.Cut(rest, "\n# ")
	return text
}

func TestPhasesAreInTheDocumentedOrder(t *testing.T) {
	t.Parallel()
	var documented, run []string
	for _, match := range regexp.MustCompile(`(?m)^ *[0-9]+\. ([^:]+):`).FindAllStringSubmatch(section(t, "Phases"), -1) {
		documented = append(documented, match[1])
	}
	for _, phase := range (&Controller{}).phases() {
		run = append(run, phase.name)
	}
	if !slices.Equal(run, documented) {
		t.Errorf("the phases are %q, doc.go says %q", run, documented)
	}
}

func TestEveryFileIsOnTheMap(t *testing.T) {
	t.Parallel()
	mapped := regexp.MustCompile(`\w+\.go`).FindAllString(section(t, "Files"), -1)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(name string) bool { return name == "doc.go" || strings.HasSuffix(name, "_test.go") })
	slices.Sort(mapped)
	if !slices.Equal(mapped, files) {
		t.Errorf("the map has %q, the directory %q", mapped, files)
	}
}

// The fields of state depend on each other: only its methods write them.
func TestOnlyTheMethodsOfStateWriteItsFields(t *testing.T) {
	t.Parallel()
	fields := map[string]bool{}
	for i := range reflect.TypeFor[state]().NumField() {
		fields[reflect.TypeFor[state]().Field(i).Name] = true
	}
	// field returns the field of a state that an expression selects.
	field := func(expression ast.Expr) string {
		selector, ok := expression.(*ast.SelectorExpr)
		if !ok || !fields[selector.Sel.Name] {
			return ""
		}
		switch on := selector.X.(type) {
		case *ast.Ident:
			if on.Name != "state" && on.Name != "s" {
				return ""
			}
		case *ast.SelectorExpr:
			if on.Sel.Name != "state" {
				return ""
			}
		}
		return selector.Sel.Name
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	written := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, source, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			assignment, ok := node.(*ast.AssignStmt)
			if !ok {
				return true
			}
			for _, left := range assignment.Lhs {
				switch of := field(left); {
				case of == "":
				case name == "state.go":
					written++
				default:
					t.Errorf("%s writes the field %s of state", set.Position(left.Pos()), of)
				}
			}
			return true
		})
	}
	if written == 0 {
		t.Error("no method writes a field: the test does not find them")
	}
}
