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

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	releaseName = "elasti"
	// fieldManager is the one of the commands. As a library, Helm has the name of the program.
	fieldManager = "helm"
	// releaseDriver is where the commands store releases.
	releaseDriver = "secret"
)

// helm is a version of Helm as a library. Its methods do what the commands do without
// further flags, but that each of upgrade says all values.
type helm interface {
	install(ctx context.Context, values map[string]any) (*release, error)
	upgrade(ctx context.Context, values map[string]any) (*release, error)
	// rollback returns to the revision before.
	rollback() error
	uninstall() error
}

// release is what Helm has installed.
type release struct {
	// manifest of all objects but those of hooks.
	manifest string
	// phases of the hooks, by the kind of the object.
	phases map[string]string
}

// helmVersions make a helm of the chart in a directory, on a cluster.
var helmVersions = []struct {
	name string
	make func(c *cluster.Cluster, chart string) (helm, error)
}{
	{"Helm 3", newHelm3},
	{"Helm 4", newHelm4},
}

// clientGetter returns what both versions of Helm make their clients of.
func clientGetter(c *cluster.Cluster) genericclioptions.RESTClientGetter {
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig = ptr.To(c.Kubeconfig)
	flags.Namespace = ptr.To(cluster.SystemNamespace)
	flags.WrapConfigFn = func(config *rest.Config) *rest.Config {
		config.QPS = -1
		return config
	}
	return flags
}
