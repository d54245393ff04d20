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

package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/diff"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

const (
	// storageGroup is the one of what the product stores in the cluster.
	storageGroup = "storage.elasti.truefoundry.com"
	// driftManager is the field manager of a tool that compares, such as Argo CD.
	driftManager = "drift"
)

// parse returns the objects of a manifest.
func (i *installation) parse(manifest string) []*unstructured.Unstructured {
	i.Helper()
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			break
		}
		i.check(err)
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
	if len(objects) == 0 {
		i.Fatal("the manifest has no objects")
	}
	return objects
}

// resourceOf returns the resource of an object's kind.
func (i *installation) resourceOf(object *unstructured.Unstructured) schema.GroupVersionResource {
	i.Helper()
	kind := object.GroupVersionKind()
	mapping, err := i.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	i.check(err)
	return mapping.Resource
}

// clientOf returns a client of an object's kind, in its namespace if it has one.
func (i *installation) clientOf(object *unstructured.Unstructured) dynamic.ResourceInterface {
	i.Helper()
	if namespace := object.GetNamespace(); namespace != "" {
		return i.Dynamic.Resource(i.resourceOf(object)).Namespace(namespace)
	}
	return i.Dynamic.Resource(i.resourceOf(object))
}

// read returns what the cluster has of the objects of a manifest, by their keys, without
// what controllers report: content that is the same was not written.
func (i *installation) read(manifest string) map[string]map[string]any {
	i.Helper()
	contents := map[string]map[string]any{}
	for _, object := range i.parse(manifest) {
		found, err := i.clientOf(object).Get(i.ctx, object.GetName(), metav1.GetOptions{})
		i.check(err)
		contents[i.keyOf(object)] = contentOf(found)
	}
	return contents
}

// contentOf returns an object without its status, and without what changes with that.
func contentOf(object *unstructured.Unstructured) map[string]any {
	object = object.DeepCopy()
	delete(object.Object, "status")
	object.SetResourceVersion("")
	object.SetManagedFields(slices.DeleteFunc(object.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Subresource == "status"
	}))
	return object.Object
}

// checkUnchanged expects that what the cluster has of a manifest is as it was read before.
func (i *installation) checkUnchanged(manifest string, before map[string]map[string]any) {
	i.Helper()
	after := i.read(manifest)
	for _, key := range slices.Sorted(maps.Keys(after)) {
		if !reflect.DeepEqual(before[key], after[key]) {
			i.Errorf("%s has changed:\n%s", key, diff.Diff(before[key], after[key]))
		}
	}
	if len(before) != len(after) {
		i.Errorf("there were %d objects, and are %d", len(before), len(after))
	}
}

// checkNoDrift expects that applying a manifest would change nothing, as tools determine
// it that keep a cluster as a repository says: by a server-side apply without effect.
func (i *installation) checkNoDrift(manifest string) {
	i.Helper()
	for _, object := range i.parse(manifest) {
		client := i.clientOf(object)
		live, err := client.Get(i.ctx, object.GetName(), metav1.GetOptions{})
		i.check(err)
		applied, err := client.Apply(i.ctx, object.GetName(), object, metav1.ApplyOptions{
			FieldManager: driftManager, Force: true, DryRun: []string{metav1.DryRunAll},
		})
		i.check(err)
		// Only the managers differ: the one that applies is a further one.
		live.SetManagedFields(nil)
		applied.SetManagedFields(nil)
		if before, after := contentOf(live), contentOf(applied); !reflect.DeepEqual(before, after) {
			i.Errorf("%s differs from what is applied:\n%s", i.keyOf(object), diff.Diff(before, after))
		}
	}
}

// keyOf returns the key of an object, as inventory has it.
func (i *installation) keyOf(object *unstructured.Unstructured) string {
	i.Helper()
	return key(i.resourceOf(object).GroupResource(), object.GetNamespace(), object.GetName())
}

func key(resource schema.GroupResource, namespace, name string) string {
	return resource.String() + "/" + namespace + "/" + name
}

// inventory returns the keys of all objects of the cluster, but of Events, and of what
// controllers make in the namespace of the applications.
func (i *installation) inventory(ctx context.Context) (map[string]bool, error) {
	lists, err := i.Host.Discovery().ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, resource := range list.APIResources {
			if !slices.Contains(resource.Verbs, "list") || resource.Name == "events" {
				continue
			}
			objects, err := i.metadata.Resource(version.WithResource(resource.Name)).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			for _, object := range objects.Items {
				if object.Namespace != i.namespace {
					found[key(schema.GroupResource{Group: version.Group, Resource: resource.Name}, object.Namespace, object.Name)] = true
				}
			}
		}
	}
	return found, nil
}

// isStored reports whether a key is that of what the product has stored, or of the
// APIService that the cluster makes by itself for their kinds.
func isStored(key string) bool {
	resource, name, _ := strings.Cut(key, "/")
	return strings.HasSuffix(resource, "."+storageGroup) ||
		resource == apiServices.GroupResource().String() && strings.HasSuffix(name, "."+storageGroup)
}

// awaitDeleted waits until no object of a manifest exists but those that are kept.
func (i *installation) awaitDeleted(manifest string, kept func(key string) bool) {
	i.Helper()
	for _, object := range i.parse(manifest) {
		if kept(i.keyOf(object)) {
			continue
		}
		client := i.clientOf(object)
		i.await(i.keyOf(object)+" is deleted", func(ctx context.Context) error {
			found, err := client.Get(ctx, object.GetName(), metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case err != nil:
				return err
			}
			return fmt.Errorf("it exists, with the finalizers %v", found.GetFinalizers())
		})
	}
}

// awaitNothingLeft waits until the cluster has only the objects that it had before, and
// those that are kept.
func (i *installation) awaitNothingLeft(kept func(key string) bool) {
	i.Helper()
	i.await("nothing of the product is left", func(ctx context.Context) error {
		found, err := i.inventory(ctx)
		if err != nil {
			return err
		}
		maps.DeleteFunc(found, func(key string, _ bool) bool { return i.before[key] || kept(key) })
		if len(found) > 0 {
			return errors.New("left are " + strings.Join(slices.Sorted(maps.Keys(found)), ", "))
		}
		return nil
	})
}

// keptOf returns the keys of the objects of a manifest that Helm keeps when it uninstalls.
func (i *installation) keptOf(manifest string) []string {
	i.Helper()
	var kept []string
	for _, object := range i.parse(manifest) {
		if object.GetAnnotations()["helm.sh/resource-policy"] == "keep" {
			kept = append(kept, i.keyOf(object))
		}
	}
	return kept
}

// checkExist expects that the cluster has objects, of which none is being deleted.
func (i *installation) checkExist(manifest string, keys []string) {
	i.Helper()
	for _, object := range i.parse(manifest) {
		if !slices.Contains(keys, i.keyOf(object)) {
			continue
		}
		found, err := i.clientOf(object).Get(i.ctx, object.GetName(), metav1.GetOptions{})
		if err != nil || found.GetDeletionTimestamp() != nil {
			i.Errorf("%s is not kept: %v", i.keyOf(object), err)
		}
	}
}
