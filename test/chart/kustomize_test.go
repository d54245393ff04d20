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

package chart

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// sources are ways to say the same: values of the chart, and a kustomization.
var sources = []struct{ name, values, kustomization string }{
	{"cluster storage", "", `
resources: [deploy]
`},
	{"embedded storage", "storage: {type: embedded}", `
resources: [deploy]
components: [deploy/components/embedded-storage]
`},
	{"etcd", "storage: {type: etcd}", `
resources: [deploy]
components: [deploy/components/external-etcd]
`},
	{"access log and network policies", "{elastiResolver: {proxy: {accessLog: true}}, networkPolicy: {enabled: true}}", `
resources: [deploy]
components:
  - deploy/components/access-log
  - deploy/components/network-policy
`},
	{"OpenShift", "openshift: {enabled: true}", `
resources: [deploy]
components:
  - deploy/components/openshift
`},
	{"network of the node", "elastiController: {hostNetwork: {enabled: true}}", `
resources: [deploy]
components:
  - deploy/components/host-network
`},
	// As the component says, the storage is below it.
	{"network of the node with embedded storage", "{storage: {type: embedded}, elastiController: {hostNetwork: {enabled: true}}}", `
resources: [deploy]
components:
  - deploy/components/host-network
  - deploy/components/embedded-storage
`},
	{"ServiceMonitors", "global: {enableMonitoring: true}", `
resources: [deploy]
components:
  - deploy/components/service-monitors
`},
	// They take the place of ServiceMonitors.
	{"PodMonitors", "{global: {enableMonitoring: true, metricsToken: {existingSecret: elasti-metrics-token}}, elastiController: {podMonitor: {enabled: true}}, elastiResolver: {podMonitor: {enabled: true}}}", `
resources: [deploy]
components:
  - deploy/components/pod-monitors
`},
	// As docs/install.md says.
	{"some namespaces", "allowedNamespaces: [shop, blog]", `
resources: [deploy]
components:
  - deploy/components/namespaces
patches:
  - target: {kind: Deployment, name: elasti-apiserver}
    patch: |
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: "--namespaces=shop,blog"}
`},
}

// difference is one between the chart and the kustomizations that is meant.
type difference struct {
	why string
	// remove takes it out of both, and reports whether it was there.
	remove func(chart, kustomization []object) (reducedChart, reducedKustomization []object, found bool)
}

var differences = []difference{
	{"labels by which Helm knows its objects", inEach(func(o object) bool {
		before := len(o.labels())
		for _, label := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
			delete(o.labels(), label)
		}
		return len(o.labels()) < before
	})},
	{"kustomize has no hooks that check the installation", without(true, func(o object) bool {
		return o.annotations()["helm.sh/hook"] != nil
	})},
	{"Helm keeps the CustomResourceDefinitions and what protects them", inEach(func(o object) bool {
		annotations := o.annotations()
		kinds := []any{"CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
		if annotations["helm.sh/resource-policy"] != "keep" || !slices.Contains(kinds, o["kind"]) {
			return false
		}
		delete(annotations, "helm.sh/resource-policy")
		if len(annotations) == 0 {
			delete(o["metadata"].(map[string]any), "annotations")
		}
		return true
	})},
	{"the chart names the tag of the images", inEach(func(o object) bool {
		container, _ := at(o, "spec", "template", "spec", "containers", "0").(map[string]any)
		image, tag, found := strings.Cut(fmt.Sprint(container["image"]), ":")
		if !found || tag != "latest" {
			return false
		}
		container["image"] = image
		return true
	})},
	{"a component of kustomize does not label what it adds", func(chart, kustomization []object) ([]object, []object, bool) {
		found := false
		for _, each := range chart {
			if other := find(kustomization, each.id()); other != nil && other.labels() == nil {
				delete(each.labels(), "app.kubernetes.io/part-of")
				delete(each["metadata"].(map[string]any), "labels")
				found = true
			}
		}
		return chart, kustomization, found
	}},
	{"with Helm, the namespace is that of the release", without(false, func(o object) bool {
		return o.id() == "Namespace/"+releaseNamespace
	})},
	{"with kustomize, an administrator binds the role in each namespace", without(true, func(o object) bool {
		return o["kind"] == "RoleBinding" && at(o, "metadata", "name") == "elasti-apiserver-targets"
	})},
}

// inEach returns a remove that changes each object of the chart.
func inEach(change func(object) bool) func(chart, kustomization []object) ([]object, []object, bool) {
	return func(chart, kustomization []object) ([]object, []object, bool) {
		found := false
		for _, each := range chart {
			found = change(each) || found
		}
		return chart, kustomization, found
	}
}

// without returns a remove that leaves out objects of the chart, or of the kustomization.
func without(ofChart bool, drop func(object) bool) func(chart, kustomization []object) ([]object, []object, bool) {
	return func(chart, kustomization []object) ([]object, []object, bool) {
		if ofChart {
			left := slices.DeleteFunc(slices.Clone(chart), drop)
			return left, kustomization, len(left) < len(chart)
		}
		left := slices.DeleteFunc(slices.Clone(kustomization), drop)
		return chart, left, len(left) < len(kustomization)
	}
}

func TestChartAndKustomizationsSayTheSame(t *testing.T) {
	found := make([]bool, len(differences))
	for _, source := range sources {
		t.Run(source.name, func(t *testing.T) {
			chart, kustomization := renderChart(t, source.values), kustomize(t, source.kustomization)
			for i, each := range differences {
				var has bool
				chart, kustomization, has = each.remove(chart, kustomization)
				found[i] = found[i] || has
			}
			compare(t, byID(t, chart), byID(t, kustomization))
		})
	}
	for i, each := range differences {
		if !found[i] {
			t.Errorf("no object differs by this any more: %s", each.why)
		}
	}
}

func byID(t *testing.T, objects []object) map[string]object {
	t.Helper()
	byID := map[string]object{}
	for _, each := range objects {
		if byID[each.id()] != nil {
			t.Errorf("%s is there twice", each.id())
		}
		byID[each.id()] = each
	}
	return byID
}

func compare(t *testing.T, chart, kustomization map[string]object) {
	t.Helper()
	for _, id := range slices.Sorted(maps.Keys(chart)) {
		if kustomization[id] == nil {
			t.Errorf("%s is in the chart alone", id)
			continue
		}
		for _, difference := range differencesOf("", map[string]any(chart[id]), map[string]any(kustomization[id])) {
			t.Errorf("%s: %s", id, difference)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(kustomization)) {
		if chart[id] == nil {
			t.Errorf("%s is in the kustomization alone", id)
		}
	}
	if len(chart) == 0 {
		t.Error("there are no objects")
	}
}

// differencesOf returns the paths at which two values differ, and how.
func differencesOf(path string, chart, kustomization any) []string {
	one, isMap := chart.(map[string]any)
	other, isOtherMap := kustomization.(map[string]any)
	if !isMap || !isOtherMap {
		if reflect.DeepEqual(chart, kustomization) {
			return nil
		}
		return []string{fmt.Sprintf("%s is\n  %s in the chart,\n  %s in the kustomization", path, show(chart), show(kustomization))}
	}
	keys := map[string]bool{}
	for key := range one {
		keys[key] = true
	}
	for key := range other {
		keys[key] = true
	}
	var found []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		found = append(found, differencesOf(path+"."+key, one[key], other[key])...)
	}
	return found
}

// A comparison that finds nothing proves nothing, unless it would.
func TestComparisonFindsDifferences(t *testing.T) {
	one := map[string]any{"same": "x", "list": []any{"a"}, "map": map[string]any{"left": "1"}}
	other := map[string]any{"same": "x", "list": []any{"b"}, "map": map[string]any{"right": "1"}}
	if found := differencesOf("", one, other); len(found) != 3 {
		t.Errorf("got %q, want those of list, map.left and map.right", found)
	}
	if found := differencesOf("", one, one); len(found) != 0 {
		t.Errorf("got %q for equal values", found)
	}
}
