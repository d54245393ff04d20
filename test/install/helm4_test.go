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
	"log/slog"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

type helm4 struct {
	configuration *action.Configuration
	chart         *chart.Chart
}

func newHelm4(c *cluster.Cluster, directory string) (helm, error) {
	kube.ManagedFieldsManager = fieldManager
	loaded, err := loader.LoadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("loading the chart: %w", err)
	}
	configuration := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	if err := configuration.Init(clientGetter(c), cluster.SystemNamespace, releaseDriver); err != nil {
		return nil, err
	}
	return &helm4{configuration: configuration, chart: loaded}, nil
}

func (h *helm4) install(ctx context.Context, values map[string]any) (*release, error) {
	return h.runInstall(ctx, action.NewInstall(h.configuration), values)
}

func (h *helm4) runInstall(ctx context.Context, install *action.Install, values map[string]any) (*release, error) {
	install.ReleaseName = releaseName
	install.Namespace = cluster.SystemNamespace
	install.CreateNamespace = true
	install.WaitStrategy = kube.HookOnlyStrategy
	install.Timeout = helmTimeout
	made, err := install.RunWithContext(ctx, h.chart, values)
	if err != nil {
		return nil, err
	}
	return releaseOfHelm4(made)
}

func (h *helm4) upgrade(ctx context.Context, values map[string]any) (*release, error) {
	upgrade := action.NewUpgrade(h.configuration)
	upgrade.Namespace = cluster.SystemNamespace
	upgrade.WaitStrategy = kube.HookOnlyStrategy
	upgrade.Timeout = helmTimeout
	made, err := upgrade.RunWithContext(ctx, releaseName, h.chart, values)
	if err != nil {
		return nil, err
	}
	return releaseOfHelm4(made)
}

func (h *helm4) rollback() error {
	rollback := action.NewRollback(h.configuration)
	rollback.WaitStrategy = kube.HookOnlyStrategy
	rollback.Timeout = helmTimeout
	return rollback.Run(releaseName)
}

func (h *helm4) uninstall() error {
	uninstall := action.NewUninstall(h.configuration)
	uninstall.DeletionPropagation = "background"
	uninstall.WaitStrategy = kube.HookOnlyStrategy
	uninstall.Timeout = helmTimeout
	_, err := uninstall.Run(releaseName)
	return err
}

// renderChart returns the objects of the chart but those of hooks, as `helm template
// --no-hooks` does.
func renderChart(ctx context.Context, c *cluster.Cluster, directory string, values map[string]any) (string, error) {
	made, err := newHelm4(c, directory)
	if err != nil {
		return "", err
	}
	version, err := c.Host.Discovery().ServerVersion()
	if err != nil {
		return "", err
	}
	h := made.(*helm4)
	install := action.NewInstall(h.configuration)
	install.DryRunStrategy = action.DryRunClient
	if install.KubeVersion, err = common.ParseKubeVersion(version.GitVersion); err != nil {
		return "", err
	}
	rendered, err := h.runInstall(ctx, install, values)
	if err != nil {
		return "", err
	}
	return rendered.manifest, nil
}

func releaseOfHelm4(made any) (*release, error) {
	found, ok := made.(*helmrelease.Release)
	if !ok {
		return nil, fmt.Errorf("Helm 4 returns a %T", made)
	}
	phases := map[string]string{}
	for _, hook := range found.Hooks {
		phases[hook.Kind] = hook.LastRun.Phase.String()
	}
	return &release{manifest: found.Manifest, phases: phases}, nil
}
