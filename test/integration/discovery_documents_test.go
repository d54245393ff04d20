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
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
)

const groupPath = "/apis/elasti.truefoundry.com"

// getRaw reads a path of the cluster, as JSON.
func getRaw(ctx context.Context, accept, path string, into any) error {
	content, err := shared.Kubernetes.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", accept).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}

func TestEveryReferenceOfTheOpenAPIDocumentsResolves(t *testing.T) {
	for _, test := range []struct{ name, path, schemas string }{
		{"v2", "/openapi/v2", "/definitions/"},
		{"v3", "/openapi/v3" + groupPath + "/v1alpha1", "/components/schemas/"},
		{"v3 of the group", "/openapi/v3" + groupPath, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var document map[string]any
			eventuallyWithin(t, discoveryTimeout, "the document is there", func(ctx context.Context) string {
				document = nil
				if err := getRaw(ctx, "application/json", test.path, &document); err != nil {
					return err.Error()
				}
				paths, _ := document["paths"].(map[string]any)
				for path := range paths {
					if strings.HasPrefix(path, groupPath) {
						return ""
					}
				}
				return fmt.Sprintf("none of its %d paths is of elasti.truefoundry.com", len(paths))
			})
			references := map[string]bool{}
			collectReferences(document, references)
			for reference := range references {
				if resolve(document, reference) == nil {
					t.Errorf("%s leads nowhere", reference)
				}
			}
			if test.schemas == "" {
				return
			}
			if len(references) == 0 {
				t.Error("the document has no references at all")
			}
			if !slices.ContainsFunc(slices.Collect(maps.Keys(references)), func(reference string) bool {
				return strings.HasPrefix(reference, "#"+test.schemas) && strings.HasSuffix(reference, "v1alpha1.WakeRequest")
			}) {
				t.Errorf("nothing refers to WakeRequest: %v", slices.Sorted(maps.Keys(references)))
			}
		})
	}
}

func collectReferences(value any, into map[string]bool) {
	switch value := value.(type) {
	case map[string]any:
		if reference, ok := value["$ref"].(string); ok {
			into[reference] = true
		}
		for _, child := range value {
			collectReferences(child, into)
		}
	case []any:
		for _, child := range value {
			collectReferences(child, into)
		}
	}
}

// resolve follows a JSON pointer in the fragment of a reference.
func resolve(document any, reference string) any {
	pointer, err := url.PathUnescape(strings.TrimPrefix(reference, "#/"))
	if err != nil || !strings.HasPrefix(reference, "#/") {
		return nil
	}
	current := document
	for part := range strings.SplitSeq(pointer, "/") {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		switch value := current.(type) {
		case map[string]any:
			current = value[part]
		case []any:
			index, err := strconv.Atoi(part)
			if err != nil || index >= len(value) {
				return nil
			}
			current = value[index]
		default:
			return nil
		}
	}
	return current
}

// The aggregated discovery document of the cluster has the kinds of the API.
func TestAggregatedDiscoveryHasElastiResources(t *testing.T) {
	const accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	var resource *apidiscoveryv2.APIResourceDiscovery
	eventuallyWithin(t, discoveryTimeout, "the group is current", func(ctx context.Context) string {
		var groups apidiscoveryv2.APIGroupDiscoveryList
		if err := getRaw(ctx, accept, "/apis", &groups); err != nil {
			return err.Error()
		}
		for _, group := range groups.Items {
			if group.Name != "elasti.truefoundry.com" {
				continue
			}
			version := group.Versions[0]
			if version.Freshness != apidiscoveryv2.DiscoveryFreshnessCurrent || len(version.Resources) != 1 {
				return fmt.Sprintf("it is %+v", version)
			}
			resource = &version.Resources[0]
			return ""
		}
		return "it is missing"
	})
	if resource.Resource != "elastiservices" || resource.SingularResource != "elastiservice" || resource.ResponseKind.Kind != "ElastiService" ||
		resource.Scope != apidiscoveryv2.ScopeNamespace || !slices.Contains(resource.Categories, "elasti") {
		t.Errorf("the resource is %+v", resource)
	}
	if verbs := slices.Sorted(slices.Values(resource.Verbs)); !slices.Equal(verbs, []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}) {
		t.Errorf("its verbs are %v", verbs)
	}
	found := map[string][]string{}
	for _, subresource := range resource.Subresources {
		found[subresource.Subresource+" "+subresource.ResponseKind.Kind] = slices.Sorted(slices.Values(subresource.Verbs))
	}
	want := map[string][]string{
		"scale Scale":             {"get", "patch", "update"},
		"status ElastiService":    {"get", "patch", "update"},
		"wake WakeRequest":        {"create"},
		"activity ActivityReport": {"create"},
	}
	if !maps.EqualFunc(found, want, slices.Equal) {
		t.Errorf("its subresources are %v, want %v", found, want)
	}
}

// Every path of the API that can be read works with kubectl get --raw.
func TestEveryPathCanBeReadRaw(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	kubectl := newKubectl(t, namespace)
	inNamespace := groupPath + "/v1alpha1/namespaces/" + namespace + "/elastiservices"
	for path, kind := range map[string]string{
		groupPath:                              "APIGroup",
		groupPath + "/v1alpha1":                "APIResourceList",
		groupPath + "/v1alpha1/elastiservices": "ElastiServiceList",
		inNamespace:                            "ElastiServiceList",
		inNamespace + "?limit=1":               "ElastiServiceList",
		inNamespace + "/app":                   "ElastiService",
		inNamespace + "/app/status":            "ElastiService",
		inNamespace + "/app/scale":             "Scale",
	} {
		response, err := kubectl.Run(t.Context(), "", "get", "--raw", path)
		if err != nil {
			t.Error(err)
			continue
		}
		var object struct {
			Kind string `json:"kind"`
		}
		if err := json.Unmarshal([]byte(response), &object); err != nil || object.Kind != kind {
			t.Errorf("%s returns a %q (error: %v), want a %s", path, object.Kind, err, kind)
		}
	}
}
