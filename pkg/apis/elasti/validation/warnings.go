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

package validation

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// Warnings returns what in a valid spec has another effect than it seems to have.
func Warnings(spec *elasti.ElastiServiceSpec) []string {
	path := field.NewPath("spec")
	var warnings []string
	for i := range spec.Triggers {
		trigger := &spec.Triggers[i]
		for _, key := range triggers.UnknownKeys(trigger.Type, trigger.Metadata) {
			warnings = append(warnings, fmt.Sprintf("%s: a %s trigger does not know this key, it has no effect: %s", path.Child("triggers").Index(i).Child("metadata", key), trigger.Type, keysOf(trigger.Type)))
		}
	}
	for i := range spec.Triggers {
		if spec.Triggers[i].Type == triggers.TypeTraffic && (spec.Proxy == nil || spec.Proxy.Policy != elasti.ProxyAlways) {
			warnings = append(warnings, fmt.Sprintf("%s: a traffic trigger sees nothing while the target is awake, so the target is not put to sleep; set %s to %s", path.Child("triggers").Index(i), path.Child("proxy", "policy"), elasti.ProxyAlways))
		}
	}
	for i := range spec.ProbeResponse {
		if rulePath := path.Child("probeResponse").Index(i); matchesEverything(&spec.ProbeResponse[i]) {
			warnings = append(warnings, fmt.Sprintf("%s: matches every request, so none wakes the target; give a path, method, header or query parameter", rulePath))
		}
	}
	return warnings
}

// keysOf returns which keys the metadata of a trigger may have.
func keysOf(triggerType string) string {
	keys := triggers.KnownKeys(triggerType)
	if len(keys) == 0 {
		return "it knows none"
	}
	return "it knows " + strings.Join(keys, ", ")
}

func matchesEverything(rule *elasti.ProbeResponseRule) bool {
	return rule.Method == "" && len(rule.Headers) == 0 && len(rule.QueryParams) == 0 &&
		(rule.Path == nil || rule.Path.Type == elasti.PathMatchPrefix && rule.Path.Value == "/")
}
