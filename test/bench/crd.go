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

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// schemaReference starts a reference to another schema of an OpenAPI document.
const schemaReference = "#/components/schemas/"

var (
	elastiResource = v1alpha1.SchemeGroupVersion.WithResource("elastiservices")
	twinResource   = schema.GroupVersionResource{Group: "twin.bench.elasti.truefoundry.com", Version: "v1alpha1", Resource: "elastiservices"}
	crdResource    = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// createTwin creates a CustomResourceDefinition with the schema that the
// product's API publishes and the defaults that it sets, in a group of its own,
// and waits until it is served.
func (b *bench) createTwin(ctx context.Context) error {
	var structural map[string]any
	var problem error
	err := wait.PollUntilContextTimeout(ctx, apiPollInterval, apiTimeout, true, func(ctx context.Context) (bool, error) {
		structural, problem = b.publishedSchema(ctx)
		return problem == nil, nil
	})
	if err != nil {
		return errors.Join(err, problem)
	}
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": crdResource.GroupVersion().String(),
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": twinResource.GroupResource().String()},
		"spec": map[string]any{
			"group": twinResource.Group,
			"scope": "Namespaced",
			"names": map[string]any{"plural": "elastiservices", "singular": "elastiservice", "kind": "ElastiService", "listKind": "ElastiServiceList"},
			"versions": []any{map[string]any{
				"name": twinResource.Version, "served": true, "storage": true,
				"schema":       map[string]any{"openAPIV3Schema": structural},
				"subresources": map[string]any{"status": map[string]any{}},
			}},
		},
	}}
	if _, err := b.Dynamic.Resource(crdResource).Create(ctx, definition, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating a CustomResourceDefinition with the schema of ElastiServices: %w", err)
	}
	return wait.PollUntilContextTimeout(ctx, apiPollInterval, apiTimeout, true, func(ctx context.Context) (bool, error) {
		_, err := b.Dynamic.Resource(twinResource).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil, nil
	})
}

// publishedSchema reads the schema of an ElastiService from the cluster's
// OpenAPI document and brings it into the form that a CustomResourceDefinition
// wants: without references.
func (b *bench) publishedSchema(ctx context.Context) (map[string]any, error) {
	path := "/openapi/v3/apis/" + v1alpha1.SchemeGroupVersion.String()
	content, err := b.Host.Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	var document struct {
		Components struct {
			Schemas map[string]map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(content, &document); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	for name, published := range document.Components.Schemas {
		if !strings.HasSuffix(name, ".v1alpha1.ElastiService") {
			continue
		}
		resolved := resolveSchema(published, document.Components.Schemas)
		// The metadata of a custom resource has a schema of its own.
		resolved["properties"].(map[string]any)["metadata"] = map[string]any{"type": "object"}
		return resolved, setDefaults(resolved)
	}
	return nil, errors.New("the product's OpenAPI document has no schema of ElastiService")
}

// setDefaults gives the schema of an ElastiService the defaults that the API
// sets in one that says nothing more than it has to.
func setDefaults(schema map[string]any) error {
	elastiService := &v1alpha1.ElastiService{}
	v1alpha1.SetObjectDefaults_ElastiService(elastiService)
	defaulted, err := runtime.DefaultUnstructuredConverter.ToUnstructured(elastiService)
	if err != nil {
		return fmt.Errorf("reading the defaults of an ElastiService: %w", err)
	}
	spec, _, err := unstructured.NestedMap(schema, "properties", "spec")
	if err != nil {
		return fmt.Errorf("reading the schema of an ElastiService: %w", err)
	}
	addDefaults(spec, defaulted["spec"].(map[string]any))
	return unstructured.SetNestedMap(schema, spec, "properties", "spec")
}

// addDefaults makes the values of an object the defaults of its fields, but for
// those of required fields, which are only there because they cannot be left out.
func addDefaults(schema, object map[string]any) {
	required, _, _ := unstructured.NestedStringSlice(schema, "required")
	for name, property := range schema["properties"].(map[string]any) {
		value, ok := object[name]
		if !ok || slices.Contains(required, name) {
			continue
		}
		property := property.(map[string]any)
		if nested, ok := value.(map[string]any); ok {
			addDefaults(property, nested)
			value = map[string]any{}
		}
		property["default"] = value
	}
}

// resolveSchema copies a schema with its references replaced by what they
// refer to. The schema must not refer to itself.
func resolveSchema(from map[string]any, all map[string]map[string]any) map[string]any {
	to := make(map[string]any)
	merge := func(reference map[string]any) {
		name, _ := reference["$ref"].(string)
		for key, value := range resolveSchema(all[strings.TrimPrefix(name, schemaReference)], all) {
			to[key] = value
		}
	}
	if _, ok := from["$ref"]; ok {
		merge(from)
	}
	if parts, ok := from["allOf"].([]any); ok {
		for _, part := range parts {
			merge(part.(map[string]any))
		}
	}
	for key, value := range from {
		switch key {
		case "$ref", "allOf", "default", "x-kubernetes-group-version-kind":
		case "properties":
			properties := make(map[string]any)
			for name, property := range value.(map[string]any) {
				properties[name] = resolveSchema(property.(map[string]any), all)
			}
			to[key] = properties
		case "items", "additionalProperties":
			if nested, ok := value.(map[string]any); ok {
				value = resolveSchema(nested, all)
			}
			to[key] = value
		default:
			to[key] = value
		}
	}
	if to["type"] == "object" && to["properties"] == nil && to["additionalProperties"] == nil {
		to["x-kubernetes-preserve-unknown-fields"] = true
	}
	return to
}
