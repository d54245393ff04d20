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
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// values are those of the chart with the images of this tree, and further ones.
func (i *installation) values(further map[string]any) map[string]any {
	i.Helper()
	image := func(name string) map[string]any {
		repository, tag := i.image(name)
		return map[string]any{"image": map[string]any{"repository": repository, "tag": tag}}
	}
	values := map[string]any{
		"elastiController": map[string]any{"manager": image(apiServer)},
		"elastiResolver":   map[string]any{"proxy": image(resolver)},
	}
	maps.Copy(values, further)
	return values
}

// newPods are values with which all pods of the product are replaced.
func newPods() map[string]any {
	return map[string]any{"global": map[string]any{"podAnnotations": map[string]any{"test": "another"}}}
}

func chartDirectory(c *cluster.Cluster) string {
	return filepath.Join(c.Repository, "charts", "elasti")
}

func TestHelmInstallsUpgradesAndUninstalls(t *testing.T) {
	for _, version := range helmVersions {
		t.Run(version.name, func(t *testing.T) {
			i := newInstallation(t)
			h, err := version.make(i.Cluster, chartDirectory(i.Cluster))
			i.check(err)
			i.installWith(h)
		})
	}
}

// installWith takes one release through all that is done with it, in this order.
func (i *installation) installWith(h helm) {
	var installed *release
	i.step("install", func(i *installation) { installed = i.install(h) })
	i.step("upgrade without a change", func(i *installation) {
		before := i.read(installed.manifest)
		_, err := h.upgrade(i.ctx, i.values(nil))
		i.check(err)
		i.checkUnchanged(installed.manifest, before)
	})
	i.step("no drift", func(i *installation) { i.checkNoDrift(installed.manifest) })
	i.step("upgrade under requests", func(i *installation) {
		i.createElastiServices()
		i.checkNoRequestFails(func() error {
			_, err := h.upgrade(i.ctx, i.values(newPods()))
			return err
		})
	})
	i.step("rollback under requests", func(i *installation) { i.checkNoRequestFails(h.rollback) })
	uids := i.uids()
	i.step("uninstall", func(i *installation) {
		kept := i.keptOf(installed.manifest)
		if len(kept) == 0 {
			i.Fatal("nothing of the release is kept")
		}
		i.uninstall(h, installed.manifest, func(key string) bool { return slices.Contains(kept, key) || isStored(key) })
		i.checkExist(installed.manifest, kept)
	})
	i.step("install again", func(i *installation) {
		i.install(h)
		if found := i.uids(); !reflect.DeepEqual(found, uids) {
			i.Errorf("the UIDs of the ElastiServices are %v, want %v", found, uids)
		}
		i.checkAtWork()
	})
	i.step("uninstall all", func(i *installation) {
		upgraded, err := h.upgrade(i.ctx, i.values(map[string]any{"crds": map[string]any{"keep": false}}))
		i.check(err)
		i.uninstall(h, upgraded.manifest, func(string) bool { return false })
	})
}

// install installs the chart with the default values. It ends with the check Job.
func (i *installation) install(h helm) *release {
	i.Helper()
	installed, err := h.install(i.ctx, i.values(nil))
	i.check(err)
	if phase := installed.phases["Job"]; phase != "Succeeded" {
		i.Errorf("the check Job has the phase %q", phase)
	}
	i.awaitServing()
	i.enforceRestricted()
	return installed
}

// uninstall uninstalls the release while applications sleep. Afterwards only what is kept
// is left.
func (i *installation) uninstall(h helm, manifest string, kept func(key string) bool) {
	i.Helper()
	i.sleepAll()
	i.check(h.uninstall())
	i.checkAwake()
	i.awaitDeleted(manifest, kept)
	// What the server made in its namespace for itself is deleted with that.
	i.deleteSystemNamespace()
	i.awaitNothingLeft(kept)
}
