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

// Command models-schema prints the OpenAPI v2 definitions of the API types as
// one JSON document, from which the apply configurations learn how fields merge.
//
// It knows nothing of the server. Begin with printDefinitions.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/truefoundry/elasti-apiserver/pkg/generated/openapi"
)

func main() {
	if err := printDefinitions(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func printDefinitions() error {
	definitions := spec.Definitions{}
	reference := func(name string) spec.Ref { return spec.MustCreateRef("#/definitions/" + name) }
	for name, definition := range openapi.GetOpenAPIDefinitions(reference) {
		definitions[name] = definition.Schema
		// A type whose v3 schema differs carries its v2 schema as an extension.
		if v2, ok := definition.Schema.Extensions[common.ExtensionV2Schema].(spec.Schema); ok {
			definitions[name] = v2
		}
	}
	document := spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Swagger:     "2.0",
		Info:        &spec.Info{InfoProps: spec.InfoProps{Title: "elasti-apiserver", Version: "unversioned"}},
		Definitions: definitions,
	}}
	if err := json.NewEncoder(os.Stdout).Encode(document); err != nil {
		return fmt.Errorf("encoding the OpenAPI definitions: %w", err)
	}
	return nil
}
