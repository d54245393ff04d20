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

// Package chart tests the Helm chart: that it says the same as the kustomizations, what
// its values change, and what its roles grant. It is a module of its own, so that the
// product does not depend on Helm.
//
// It knows nothing of a cluster: manifests are rendered and compared. Begin with
// render_test.go.
package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	loader3 "helm.sh/helm/v3/pkg/chart/loader"
	chartutil3 "helm.sh/helm/v3/pkg/chartutil"
	engine3 "helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v4/pkg/chart/common"
	chartutil4 "helm.sh/helm/v4/pkg/chart/common/util"
	loader4 "helm.sh/helm/v4/pkg/chart/v2/loader"
	engine4 "helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// From this directory, where tests run.
const (
	chartDirectory  = "../../charts/elasti"
	deployDirectory = "../../artifacts/deploy"
)

// The release that is rendered, in the namespace that the kustomizations have.
const (
	releaseName      = "elasti"
	releaseNamespace = "elasti-system"
)

// object is one of Kubernetes, as JSON has it.
type object map[string]any

// id returns the kind, the namespace, if there is one, and the name of an object.
func (o object) id() string {
	metadata, _ := o["metadata"].(map[string]any)
	parts := []string{fmt.Sprint(o["kind"]), fmt.Sprint(metadata["name"])}
	if namespace, found := metadata["namespace"]; found {
		parts = slices.Insert(parts, 1, fmt.Sprint(namespace))
	}
	return strings.Join(parts, "/")
}

// annotations returns the annotations of an object, which are nil when there are none.
func (o object) annotations() map[string]any { return o.metadata("annotations") }

// labels returns the labels of an object.
func (o object) labels() map[string]any { return o.metadata("labels") }

func (o object) metadata(field string) map[string]any {
	metadata, _ := o["metadata"].(map[string]any)
	entries, _ := metadata[field].(map[string]any)
	return entries
}

// helmVersions render the files of the chart with values.
var helmVersions = map[string]func(values map[string]any) (map[string]string, error){
	"Helm 3": renderWithHelm3,
	"Helm 4": renderWithHelm4,
}

func renderWithHelm3(values map[string]any) (map[string]string, error) {
	chart, err := loader3.LoadDir(chartDirectory)
	if err != nil {
		return nil, fmt.Errorf("loading the chart: %w", err)
	}
	release := chartutil3.ReleaseOptions{Name: releaseName, Namespace: releaseNamespace, Revision: 1, IsInstall: true}
	input, err := chartutil3.ToRenderValues(chart, values, release, chartutil3.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine3.Render(chart, input)
}

func renderWithHelm4(values map[string]any) (map[string]string, error) {
	chart, err := loader4.LoadDir(chartDirectory)
	if err != nil {
		return nil, fmt.Errorf("loading the chart: %w", err)
	}
	release := common.ReleaseOptions{Name: releaseName, Namespace: releaseNamespace, Revision: 1, IsInstall: true}
	input, err := chartutil4.ToRenderValues(chart, values, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine4.Render(chart, input)
}

// parseValues returns values that are written as YAML.
func parseValues(t *testing.T, text string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatalf("the values %q: %v", text, err)
	}
	return values
}

// rendered are the files of the chart by the values that they are rendered with.
var rendered = map[string]map[string]string{}

// renderChart returns the objects of the chart with values that are written as YAML. The
// caller may change them.
func renderChart(t *testing.T, values string) []object {
	t.Helper()
	if rendered[values] == nil {
		files, err := renderWithHelm4(parseValues(t, values))
		if err != nil {
			t.Fatalf("rendering with %q: %v", values, err)
		}
		rendered[values] = files
	}
	return objectsOf(t, rendered[values])
}

// objectsOf returns the objects of rendered files.
func objectsOf(t *testing.T, files map[string]string) []object {
	t.Helper()
	var objects []object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if filepath.Ext(name) != ".yaml" {
			continue
		}
		objects = append(objects, parse(t, name, files[name])...)
	}
	return objects
}

// parse returns the objects of a stream of documents.
func parse(t *testing.T, name, stream string) []object {
	t.Helper()
	var objects []object
	for document := range strings.SplitSeq("\n"+stream, "\n---") {
		var read object
		// Strict: a key that is there twice is an error.
		if err := yaml.UnmarshalStrict([]byte(document), &read); err != nil {
			t.Fatalf("%s: %v in\n%s", name, err, document)
		}
		if len(read) > 0 {
			objects = append(objects, read)
		}
	}
	return objects
}

// kustomize returns the objects of a kustomization, whose paths are relative to
// artifacts/deploy.
func kustomize(t *testing.T, kustomization string) []object {
	t.Helper()
	deploy, err := filepath.Abs(deployDirectory)
	if err != nil {
		t.Fatal(err)
	}
	// Kustomize takes relative paths only.
	directory, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(directory, deploy)
	if err != nil {
		t.Fatal(err)
	}
	content := strings.NewReplacer("[deploy]", "["+relative+"]", "deploy/", relative+"/").Replace(kustomization)
	if err := os.WriteFile(filepath.Join(directory, "kustomization.yaml"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), directory)
	if err != nil {
		t.Fatalf("rendering the kustomization\n%s\n%v", content, err)
	}
	text, err := resources.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, "the kustomization", string(text))
}

// find returns the object of an id, or nil.
func find(objects []object, id string) object {
	for _, each := range objects {
		if each.id() == id {
			return each
		}
	}
	return nil
}

// at returns what an object has at a path of keys and indices, or nil.
func at(o object, path ...string) any {
	var value any = map[string]any(o)
	for _, key := range path {
		switch container := value.(type) {
		case map[string]any:
			value = container[key]
		case []any:
			var index int
			if _, err := fmt.Sscan(key, &index); err != nil || index >= len(container) {
				return nil
			}
			value = container[index]
		default:
			return nil
		}
	}
	return value
}

// show returns a value as JSON in one line.
func show(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}
