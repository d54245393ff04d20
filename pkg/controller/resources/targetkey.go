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
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// TargetKey is the identity of a target: ElastiServices with the same key decide
// together whether it sleeps. The version of the kind is no part of it.
type TargetKey struct {
	Namespace, Group, Resource, Name string
}

// TargetKeyOf returns the identity of the target of an ElastiService.
func TargetKeyOf(elastiService *v1alpha1.ElastiService) TargetKey {
	ref := &elastiService.Spec.ScaleTargetRef
	group := ref.APIVersion
	if parsed, err := schema.ParseGroupVersion(ref.APIVersion); err == nil {
		group = parsed.Group
	}
	resource := ref.Kind
	if strings.ToLower(resource) != resource {
		// The kind may be spelled as its resource, which has no capital letters.
		plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: ref.Kind})
		resource = plural.Resource
	}
	return TargetKey{Namespace: elastiService.Namespace, Group: group, Resource: resource, Name: ref.Name}
}

// String returns the key for logs and indexes.
func (k TargetKey) String() string {
	return strings.Join([]string{k.Namespace, k.Group, k.Resource, k.Name}, "/")
}
