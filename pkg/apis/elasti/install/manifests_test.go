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

package install_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/install"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/validation"
)

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return scheme
}

// Manifests written for KubeElasti, and the examples of this project, are accepted as they
// are, and what their authors wrote is not changed: GitOps tools see no diff.
func TestManifests(t *testing.T) {
	var manifests []string
	for _, pattern := range []string{
		"testdata/kubeelasti/*.yaml", "../../../../artifacts/example/elastiservice-*.yaml", "../../../../artifacts/example/application/elastiservice.yaml",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no manifests in %s: %v", pattern, err)
		}
		manifests = append(manifests, found...)
	}
	decoder := serializer.NewCodecFactory(newScheme(), serializer.EnableStrict).UniversalDecoder(elasti.SchemeGroupVersion)
	for _, manifest := range manifests {
		t.Run(filepath.Base(manifest), func(t *testing.T) {
			content, err := os.ReadFile(manifest)
			if err != nil {
				t.Fatal(err)
			}
			obj, err := runtime.Decode(decoder, content)
			if err != nil {
				t.Fatal(err)
			}
			elastiService := obj.(*elasti.ElastiService)
			if elastiService.Namespace == "" {
				elastiService.Namespace = "default"
			}
			if errs := validation.ValidateElastiService(elastiService); len(errs) > 0 {
				t.Errorf("got %v, want it accepted", errs)
			}
			if elastiService.Spec.MinTargetReplicas == nil || *elastiService.Spec.MinTargetReplicas < 1 {
				t.Errorf("got %v, want minTargetReplicas to be at least 1", elastiService.Spec.MinTargetReplicas)
			}
			assertKept(t, content, elastiService)
		})
	}
}

// yamlBlock matches a fenced block of YAML, indented or not.
var yamlBlock = regexp.MustCompile("(?s)\n *```yaml\n(.*?)\n *```")

// TestDocumentedManifests takes each ElastiService, and each part of its spec, out of
// the documentation: a reader copies them.
func TestDocumentedManifests(t *testing.T) {
	pages, err := filepath.Glob("../../../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	decoder := serializer.NewCodecFactory(newScheme(), serializer.EnableStrict).UniversalDecoder(elasti.SchemeGroupVersion)
	tested := 0
	for _, page := range append(pages, "../../../../README.md") {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range yamlBlock.FindAllSubmatch(content, -1) {
			manifest := documentedManifest(block[1])
			if manifest == nil {
				continue
			}
			tested++
			obj, err := runtime.Decode(decoder, manifest)
			if err != nil {
				t.Errorf("%s has what cannot be decoded: %v\n%s", filepath.Base(page), err, block[1])
				continue
			}
			if errs := validation.ValidateElastiService(obj.(*elasti.ElastiService)); len(errs) > 0 {
				t.Errorf("%s has what is not accepted: %v\n%s", filepath.Base(page), errs, block[1])
			}
		}
	}
	if tested == 0 {
		t.Error("no page has an ElastiService")
	}
}

// documentedManifest returns a whole ElastiService for a block that is one or a part
// of one, and nil for any other.
func documentedManifest(block []byte) []byte {
	var content map[string]any
	if yaml.Unmarshal(block, &content) != nil || len(content) == 0 || content["kind"] != nil && content["kind"] != "ElastiService" {
		return nil
	}
	spec, _ := content["spec"].(map[string]any)
	if spec == nil {
		spec = content
	}
	fields := reflect.TypeFor[v1alpha1.ElastiServiceSpec]()
	for key := range spec {
		if _, ok := fields.FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, key) }); !ok {
			return nil
		}
	}
	for key, value := range map[string]any{
		"service":        "shop",
		"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "shop"},
	} {
		if spec[key] == nil {
			spec[key] = value
		}
	}
	manifest, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "ElastiService",
		"metadata": map[string]any{"name": "shop", "namespace": "shop"}, "spec": spec,
	})
	if err != nil {
		return nil
	}
	return manifest
}

// assertKept checks that everything in the manifest is in the object too.
func assertKept(t *testing.T, manifest []byte, elastiService *elasti.ElastiService) {
	t.Helper()
	external := &v1alpha1.ElastiService{}
	if err := newScheme().Convert(elastiService, external, nil); err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(external)
	if err != nil {
		t.Fatal(err)
	}
	var written, stored map[string]any
	if err := yaml.Unmarshal(manifest, &written); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(encoded, &stored); err != nil {
		t.Fatal(err)
	}
	assertContains(t, "spec", stored["spec"], written["spec"])
}

func assertContains(t *testing.T, path string, stored, written any) {
	t.Helper()
	switch written := written.(type) {
	case map[string]any:
		members, _ := stored.(map[string]any)
		for key, value := range written {
			assertContains(t, path+"."+key, members[key], value)
		}
	case []any:
		elements, _ := stored.([]any)
		if len(elements) != len(written) {
			t.Errorf("%s: got %v, want %v", path, stored, written)
			return
		}
		for i := range written {
			assertContains(t, path, elements[i], written[i])
		}
	default:
		if !apiequality.Semantic.DeepEqual(stored, written) {
			t.Errorf("%s: got %v, want %v", path, stored, written)
		}
	}
}
