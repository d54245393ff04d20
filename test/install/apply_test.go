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
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// applies are what is applied, and how.
var applies = []struct {
	name string
	// manifest renders it.
	manifest func(*installation) string
	flags    []string
}{
	{"chart, client-side", (*installation).chart, nil},
	{"chart, server-side", (*installation).chart, []string{"--server-side"}},
	{"kustomization, client-side", (*installation).kustomization, nil},
	{"kustomization, server-side", (*installation).kustomization, []string{"--server-side"}},
}

func TestApplyingAgainChangesNothing(t *testing.T) {
	for _, test := range applies {
		t.Run(test.name, func(t *testing.T) {
			i := newInstallation(t)
			manifest := test.manifest(i)
			apply := append([]string{"apply", "--filename=-"}, test.flags...)
			i.createSystemNamespace()
			i.check(i.kubectl(i.ctx, manifest, apply...))
			i.awaitServing()
			before := i.read(manifest)
			i.check(i.kubectl(i.ctx, manifest, apply...))
			i.checkUnchanged(manifest, before)
			i.checkNoDrift(manifest)
		})
	}
}

// rendered are values with which the chart has objects that it does not have by default.
var rendered = []string{
	"storage: {type: embedded}",
	"{storage: {type: etcd}, openshift: {enabled: true}}",
	"{elastiController: {hostNetwork: {enabled: true}, port: 10443, hostUsers: true}, elastiResolver: {autoscaling: {enabled: true}}}",
	"{allowedNamespaces: [default], tls: {type: existingSecret, existingSecret: {name: mine}}}",
	"{networkPolicy: {enabled: true, elastiControllerEgress: [{}], elastiResolverEgress: [{}]}, priorityClass: {create: false, name: system-cluster-critical}}",
}

// The API server of the cluster validates more than schemas say.
func TestClusterAcceptsWhatTheChartRenders(t *testing.T) {
	i := newInstallation(t)
	i.createSystemNamespace()
	for _, text := range rendered {
		values := map[string]any{}
		i.check(yaml.Unmarshal([]byte(text), &values))
		manifest, err := renderChart(i.ctx, i.Cluster, chartDirectory(i.Cluster), values)
		i.check(err)
		if err := i.kubectl(i.ctx, manifest, "apply", "--server-side", "--dry-run=server", "--filename=-"); err != nil {
			i.Errorf("%s: %v", text, err)
		}
	}
}

// chart renders the chart with the default values.
func (i *installation) chart() string {
	i.Helper()
	manifest, err := renderChart(i.ctx, i.Cluster, chartDirectory(i.Cluster), i.values(nil))
	i.check(err)
	return manifest
}

// kustomization renders artifacts/deploy with the images of this tree.
func (i *installation) kustomization() string {
	i.Helper()
	// Kustomize takes relative paths only.
	directory, err := filepath.EvalSymlinks(i.TempDir())
	i.check(err)
	deploy, err := filepath.Rel(directory, filepath.Join(i.Repository, "artifacts", "deploy"))
	i.check(err)
	text := fmt.Sprintf("resources: [%s]\nimages:\n", deploy)
	for _, name := range []string{apiServer, resolver} {
		repository, tag := i.image(name)
		text += fmt.Sprintf("  - {name: %s, newName: %s, newTag: %q}\n", name, repository, tag)
	}
	i.check(os.WriteFile(filepath.Join(directory, "kustomization.yaml"), []byte(text), 0o600))
	manifest, err := i.RunKubectl(i.ctx, i.Kubeconfig, "", "kustomize", directory)
	i.check(err)
	return manifest
}
