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

package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yannh/kubeconform/pkg/resource"
	"github.com/yannh/kubeconform/pkg/validator"
)

// toolsDirectory is the module with the version of Kubernetes that the tests run.
const toolsDirectory = "../../hack/tools"

// Types whose schema in OpenAPI says less than what they accept.
const (
	intOrString = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
	quantity    = "io.k8s.apimachinery.pkg.api.resource.Quantity"
)

// newConformity returns a kubeconform with schemas of the kinds that Kubernetes serves, made
// of its OpenAPI document: no network is needed. Fields that a kind does not have are errors.
func newConformity(t *testing.T) validator.Validator {
	t.Helper()
	directory := t.TempDir()
	writeSchemas(t, directory)
	conformity, err := validator.New([]string{directory + "/{{ .ResourceKind }}_{{ .Group }}_{{ .ResourceAPIVersion }}.json"}, validator.Opts{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	return conformity
}

// schemaFile returns the name of the file with the schema of a kind, as kubeconform looks it
// up. It takes the version for the group where there is none.
func schemaFile(group, version, kind string) string {
	if group == "" {
		group = version
	}
	return fmt.Sprintf("%s_%s_%s.json", strings.ToLower(kind), group, version)
}

// writeSchemas writes a file for each kind, and one with all definitions, to which the others refer.
func writeSchemas(t *testing.T, directory string) {
	t.Helper()
	definitions := openAPIDefinitions(t)
	for name, definition := range definitions {
		closeSchema(definition)
		switch name {
		case intOrString:
			definition["type"] = []any{"string", "integer"}
		case quantity:
			definition["type"] = []any{"string", "number"}
		}
	}
	const all = "definitions.json"
	write(t, filepath.Join(directory, all), map[string]any{"definitions": definitions})
	for name, definition := range definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		for _, each := range kinds {
			kind := each.(map[string]any)
			file := schemaFile(fmt.Sprint(kind["group"]), fmt.Sprint(kind["version"]), fmt.Sprint(kind["kind"]))
			write(t, filepath.Join(directory, file), map[string]any{"$ref": all + "#/definitions/" + name})
		}
	}
}

// openAPIDefinitions returns the definitions of the OpenAPI document in the source of Kubernetes.
func openAPIDefinitions(t *testing.T) map[string]map[string]any {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "k8s.io/kubernetes")
	download.Dir = toolsDirectory
	download.Stderr = os.Stderr
	output, err := download.Output()
	if err != nil {
		t.Fatalf("finding the source of Kubernetes: %v\n%s", err, output)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(output, &module); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(module.Dir, "api", "openapi-spec", "swagger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(content, &document); err != nil {
		t.Fatal(err)
	}
	return document.Definitions
}

// closeSchema has a schema, and those in it, reject fields that they do not list.
func closeSchema(schema map[string]any) {
	if properties, ok := schema["properties"].(map[string]any); ok {
		if schema["additionalProperties"] == nil {
			schema["additionalProperties"] = false
		}
		for _, property := range properties {
			closeSchema(property.(map[string]any))
		}
	}
	for _, inner := range []string{"items", "additionalProperties"} {
		if nested, ok := schema[inner].(map[string]any); ok {
			closeSchema(nested)
		}
	}
}

func write(t *testing.T, file string, content any) {
	t.Helper()
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// isOfOtherProduct reports whether a kind is not served by Kubernetes itself.
func isOfOtherProduct(o object) bool {
	group, _, _ := strings.Cut(fmt.Sprint(o["apiVersion"]), "/")
	return group == "cert-manager.io" || group == "monitoring.coreos.com"
}

// check returns what is wrong with an object, or nil.
func check(t *testing.T, conformity validator.Validator, o object) error {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	result := conformity.ValidateResource(resource.Resource{Path: o.id(), Bytes: text})
	if result.Err == nil && result.Status != validator.Valid {
		return fmt.Errorf("its status is %d", result.Status)
	}
	return result.Err
}

func TestObjectsConformToTheirSchemas(t *testing.T) {
	conformity := newConformity(t)
	conform := func(source string, objects []object) {
		for _, each := range objects {
			if isOfOtherProduct(each) {
				continue
			}
			if err := check(t, conformity, each); err != nil {
				t.Errorf("%s: %s: %v", source, each.id(), err)
			}
		}
	}
	for _, values := range combinations() {
		conform(values, renderChart(t, values))
	}
	for _, source := range sources {
		conform("the kustomization of "+source.name, kustomize(t, source.kustomization))
	}
}

// A validation that finds nothing proves nothing, unless it would.
func TestConformityFindsWhatIsWrong(t *testing.T) {
	conformity := newConformity(t)
	for change, damage := range map[string]func(deployment object){
		"a field that there is not": func(o object) { o["spec"].(map[string]any)["replica"] = 1 },
		"a value of another type":   func(o object) { o["spec"].(map[string]any)["replicas"] = "two" },
		"a field that is missing":   func(o object) { delete(o["spec"].(map[string]any), "selector") },
		"a kind that there is not":  func(o object) { o["kind"] = "Deploymnet" },
	} {
		deployment := find(renderChart(t, ""), "Deployment/elasti-system/elasti-apiserver")
		damage(deployment)
		if err := check(t, conformity, deployment); err == nil {
			t.Errorf("%s is not found", change)
		}
	}
}
