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
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// TargetKey is the identity of a target: ElastiServices with the same key decide
// together whether it sleeps. The version of the kind is no part of it.
type TargetKey struct {
	Namespace, Group, Resource, Name string
}

// String returns the key for logs and indexes.
func (k TargetKey) String() string {
	return strings.Join([]string{k.Namespace, k.Group, k.Resource, k.Name}, "/")
}

// TargetKeys returns the identities of targets. ElastiServices name the kind of a
// target, or its resource. The resource of most kinds is their regular plural; Learn
// records those of the others. The zero value knows none of these. It is safe for
// concurrent use.
type TargetKeys struct {
	mu sync.Mutex
	// irregular has the resources of kinds with another one than their regular plural.
	// It grows with what the cluster serves, whatever ElastiServices name.
	irregular map[schema.GroupKind]string
	// changed are called when identities have changed.
	changed []func()
}

// OnChange has a function called whenever the identity of a target may be another one
// than before. It must not call Learn.
func (k *TargetKeys) OnChange(changed func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changed = append(k.changed, changed)
}

// Of returns the identity of the target of an ElastiService.
func (k *TargetKeys) Of(elastiService *v1alpha1.ElastiService) TargetKey {
	return k.OfRef(elastiService.Namespace, &elastiService.Spec.ScaleTargetRef)
}

// OfRef returns the identity of the target that a reference in a namespace names.
func (k *TargetKeys) OfRef(namespace string, ref *v1alpha1.ScaleTargetRef) TargetKey {
	named := groupKindOf(ref)
	k.mu.Lock()
	defer k.mu.Unlock()
	resource, ok := k.irregular[named]
	if !ok {
		resource = regularResource(ref.Kind)
	}
	return TargetKey{Namespace: namespace, Group: named.Group, Resource: resource, Name: ref.Name}
}

// Learn records the resource that discovery has returned for the kind that an
// ElastiService names.
func (k *TargetKeys) Learn(ref *v1alpha1.ScaleTargetRef, resource string) {
	for _, changed := range k.learn(groupKindOf(ref), resource) {
		changed()
	}
}

// learn returns what is to be called.
func (k *TargetKeys) learn(kind schema.GroupKind, resource string) []func() {
	k.mu.Lock()
	defer k.mu.Unlock()
	known, ok := k.irregular[kind]
	if !ok {
		known = regularResource(kind.Kind)
	}
	if known == resource {
		return nil
	}
	if k.irregular == nil {
		k.irregular = map[schema.GroupKind]string{}
	}
	k.irregular[kind] = resource
	return k.changed
}

// MayShareTarget reports whether two ElastiServices may have the same target: their
// kinds may be different names of the same resource.
func MayShareTarget(one, other *v1alpha1.ElastiService) bool {
	return one.Namespace == other.Namespace &&
		one.Spec.ScaleTargetRef.Name == other.Spec.ScaleTargetRef.Name &&
		groupKindOf(&one.Spec.ScaleTargetRef).Group == groupKindOf(&other.Spec.ScaleTargetRef).Group
}

// groupKindOf returns the group and the kind as a reference spells them.
func groupKindOf(ref *v1alpha1.ScaleTargetRef) schema.GroupKind {
	group := ref.APIVersion
	if parsed, err := schema.ParseGroupVersion(ref.APIVersion); err == nil {
		group = parsed.Group
	}
	return schema.GroupKind{Group: group, Kind: ref.Kind}
}

// regularResource returns the resource of a kind that has a regular plural. The kind
// may be spelled as its resource, which has no capital letters.
func regularResource(kind string) string {
	if strings.ToLower(kind) == kind {
		return kind
	}
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	return plural.Resource
}
