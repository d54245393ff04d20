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
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const modelPrefix = "com.github.truefoundry.elasti-apiserver."

// One reference that leads nowhere breaks clients for the whole cluster, and
// `kubectl explain` is empty where a description is missing.
func TestOpenAPIDocuments(t *testing.T) {
	s := startServer(t, nil)
	for path, definitions := range map[string][]string{
		"/openapi/v2": {"definitions"},
		"/openapi/v3/apis/elasti.truefoundry.com/v1alpha1": {"components", "schemas"},
	} {
		t.Run(path, func(t *testing.T) {
			document := getJSON(t, s.config.Host+path)
			assertReferencesResolve(t, document, document)
			models := lookup(document, definitions...)
			described := 0
			for name, model := range models {
				if strings.HasPrefix(name, modelPrefix) {
					described++
					assertDescribed(t, name, model.(map[string]any))
				}
			}
			if described == 0 {
				t.Errorf("the document has no model that starts with %s", modelPrefix)
			}
		})
	}
}

// What is missing in the document is unknown to `kubectl explain`, and dropped with a warning
// from what users apply.
func TestOpenAPIHasEachField(t *testing.T) {
	s := startServer(t, nil)
	document := getJSON(t, s.config.Host+"/openapi/v3/apis/elasti.truefoundry.com/v1alpha1")
	seen := map[reflect.Type]bool{}
	for _, kind := range []reflect.Type{reflect.TypeFor[v1alpha1.ElastiService](), reflect.TypeFor[v1alpha1.WakeRequest](), reflect.TypeFor[v1alpha1.ActivityReport]()} {
		assertHasFields(t, document, kind, seen)
	}
	if len(seen) < 10 {
		t.Errorf("found only the types %v", seen)
	}
}

// assertHasFields fails for each JSON field of a type of the API, and of those that it is made
// of, that the OpenAPI document does not have.
func assertHasFields(t *testing.T, document map[string]any, kind reflect.Type, seen map[reflect.Type]bool) {
	t.Helper()
	for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice || kind.Kind() == reflect.Map {
		kind = kind.Elem()
	}
	if kind.Kind() != reflect.Struct || kind.PkgPath() != reflect.TypeFor[v1alpha1.ElastiService]().PkgPath() || seen[kind] {
		return
	}
	seen[kind] = true
	properties := lookup(document, "components", "schemas", modelPrefix+"pkg.apis.elasti.v1alpha1."+kind.Name(), "properties")
	for i := range kind.NumField() {
		field := kind.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if _, ok := properties[name]; !ok && name != "" && name != "-" {
			t.Errorf("%s.%s is missing", kind.Name(), name)
		}
		assertHasFields(t, document, field.Type, seen)
	}
}

func TestOpenAPIExplainsTriggers(t *testing.T) {
	s := startServer(t, nil)
	document := getJSON(t, s.config.Host+"/openapi/v3/apis/elasti.truefoundry.com/v1alpha1")
	trigger := lookup(document, "components", "schemas", modelPrefix+"pkg.apis.elasti.v1alpha1.ScaleTrigger", "properties", "metadata")
	description, _ := trigger["description"].(string)
	for _, key := range []string{"query", "threshold", "serverAddress", "uptimeFilter", "headers", "metricName", "selector", "proxy.policy Always", "milli-cores"} {
		if !strings.Contains(description, key) {
			t.Errorf("the description of triggers[].metadata does not mention %s: %q", key, description)
		}
	}
}

func getJSON(t *testing.T, url string) map[string]any {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s %v", url, response.Status, err)
	}
	var document map[string]any
	if err := json.Unmarshal(body, &document); err != nil {
		t.Fatal(err)
	}
	return document
}

func lookup(document map[string]any, path ...string) map[string]any {
	for _, element := range path {
		document, _ = document[element].(map[string]any)
	}
	return document
}

func assertReferencesResolve(t *testing.T, document map[string]any, node any) {
	t.Helper()
	switch node := node.(type) {
	case map[string]any:
		if reference, ok := node["$ref"].(string); ok {
			path, local := strings.CutPrefix(reference, "#/")
			if !local || lookup(document, strings.Split(path, "/")...) == nil {
				t.Errorf("%s leads nowhere", reference)
			}
		}
		for _, child := range node {
			assertReferencesResolve(t, document, child)
		}
	case []any:
		for _, child := range node {
			assertReferencesResolve(t, document, child)
		}
	}
}

func assertDescribed(t *testing.T, name string, model map[string]any) {
	t.Helper()
	if description, _ := model["description"].(string); description == "" {
		t.Errorf("%s has no description", name)
	}
	properties, _ := model["properties"].(map[string]any)
	for property, schema := range properties {
		if description, _ := schema.(map[string]any)["description"].(string); description == "" {
			t.Errorf("%s.%s has no description", name, property)
		}
	}
}
