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

package resources

import (
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestTargetKeysOfSpellings(t *testing.T) {
	of := func(keys *TargetKeys, apiVersion, kind string) TargetKey {
		elastiService := &v1alpha1.ElastiService{}
		elastiService.Namespace = "shop"
		elastiService.Spec.ScaleTargetRef = v1alpha1.ScaleTargetRef{APIVersion: apiVersion, Kind: kind, Name: "cart"}
		return keys.Of(elastiService)
	}
	keys, changes := &TargetKeys{}, 0
	keys.OnChange(func() { changes++ })
	deployment := of(keys, "apps/v1", "Deployment")
	for _, kind := range []string{"deployments", "Deployment"} {
		if got := of(keys, "apps/v1beta2", kind); got != deployment {
			t.Errorf("%s of another version is %s", kind, got)
		}
	}
	if got := of(keys, "apps/v1", "StatefulSet"); got == deployment {
		t.Error("another kind is the same target")
	}

	learn := func(kind, resource string) {
		keys.Learn(&v1alpha1.ScaleTargetRef{APIVersion: "example.com/v1", Kind: kind}, resource)
	}
	learn("Policy", "policies")
	learn("oxen", "oxen")
	if len(keys.irregular) > 0 || changes > 0 {
		t.Errorf("%v are recorded of regular kinds, and %d changes", keys.irregular, changes)
	}
	learn("Ox", "oxen")
	learn("Ox", "oxen")
	if changes != 1 {
		t.Errorf("%d changes, want one", changes)
	}
	oxen := of(keys, "example.com/v1", "oxen")
	if got := of(keys, "example.com/v1beta1", "Ox"); got != oxen {
		t.Errorf("the kind is %s, and its resource %s", got, oxen)
	}
	if got := of(keys, "example.org/v1", "Ox"); got.Resource != "oxs" {
		t.Errorf("the kind of another group is %s", got)
	}
	// The CustomResourceDefinition was made again with another plural.
	learn("Ox", "oxs")
	if got := of(keys, "example.com/v1", "Ox"); got == oxen || changes != 2 {
		t.Errorf("the kind is %s after %d changes", got, changes)
	}
}
