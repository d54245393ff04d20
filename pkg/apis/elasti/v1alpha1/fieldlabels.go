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
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
)

// addFieldLabelConversions names the fields that a field selector on
// elastiservices may use. Without it the API server rejects every field but
// metadata.name and metadata.namespace.
func addFieldLabelConversions(scheme *runtime.Scheme) error {
	return scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("ElastiService"),
		func(label, value string) (string, string, error) {
			switch label {
			case "metadata.name", "metadata.namespace",
				"spec.service", "spec.scaleTargetRef.name", "status.mode":
				return label, value, nil
			default:
				return "", "", fmt.Errorf("field label %q is not supported for ElastiService: use metadata.name, metadata.namespace, spec.service, spec.scaleTargetRef.name or status.mode", label)
			}
		})
}
