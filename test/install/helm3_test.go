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
	"fmt"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/kube"
	helmrelease "helm.sh/helm/v3/pkg/release"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

type helm3 struct {
	configuration *action.Configuration
	chart         *chart.Chart
}

func newHelm3(c *cluster.Cluster, directory string) (helm, error) {
	kube.ManagedFieldsManager = fieldManager
	loaded, err := loader.LoadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("loading the chart: %w", err)
	}
	configuration := &action.Configuration{}
	discard := func(string, ...any) {}
	if err := configuration.Init(clientGetter(c), cluster.SystemNamespace, releaseDriver, discard); err != nil {
		return nil, err
	}
	return &helm3{configuration: configuration, chart: loaded}, nil
}

func (h *helm3) install(ctx context.Context, values map[string]any) (*release, error) {
	install := action.NewInstall(h.configuration)
	install.ReleaseName = releaseName
	install.Namespace = cluster.SystemNamespace
	install.CreateNamespace = true
	install.Timeout = helmTimeout
	made, err := install.RunWithContext(ctx, h.chart, values)
	if err != nil {
		return nil, err
	}
	return releaseOfHelm3(made), nil
}

func (h *helm3) upgrade(ctx context.Context, values map[string]any) (*release, error) {
	upgrade := action.NewUpgrade(h.configuration)
	upgrade.Namespace = cluster.SystemNamespace
	upgrade.Timeout = helmTimeout
	made, err := upgrade.RunWithContext(ctx, releaseName, h.chart, values)
	if err != nil {
		return nil, err
	}
	return releaseOfHelm3(made), nil
}

func (h *helm3) rollback() error {
	rollback := action.NewRollback(h.configuration)
	rollback.Timeout = helmTimeout
	return rollback.Run(releaseName)
}

func (h *helm3) uninstall() error {
	uninstall := action.NewUninstall(h.configuration)
	uninstall.DeletionPropagation = "background"
	uninstall.Timeout = helmTimeout
	_, err := uninstall.Run(releaseName)
	return err
}

func releaseOfHelm3(made *helmrelease.Release) *release {
	phases := map[string]string{}
	for _, hook := range made.Hooks {
		phases[hook.Kind] = hook.LastRun.Phase.String()
	}
	return &release{manifest: made.Manifest, phases: phases}
}
