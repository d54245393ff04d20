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

package app

import (
	"cmp"
	"net"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/options"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/credentials"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/egress"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// newGuard returns what connects to the servers that triggers name.
func newGuard(o *options.Sleep, dependencies controllerDependencies, host kubernetes.Interface) *egress.Guard {
	// Validate has accepted the list.
	allowed, _ := o.AllowedServers()
	return egress.NewGuard(egress.Options{
		Allowed:    allowed,
		Forbidden:  hostAPIServers(dependencies.host),
		APIServers: egress.NewAPIServers(host.DiscoveryV1(), clock.RealClock{}),
		OwnPort:    dependencies.port,
	})
}

// hostAPIServers returns the servers of the host's API, as host:port.
func hostAPIServers(host *rest.Config) []string {
	var servers []string
	if address, _, err := rest.DefaultServerUrlFor(host); err == nil {
		servers = append(servers, net.JoinHostPort(address.Hostname(), cmp.Or(address.Port(), "443")))
	}
	// A kubeconfig may name another address than what pods use.
	if name, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"); name != "" && port != "" {
		servers = append(servers, net.JoinHostPort(name, port))
	}
	return servers
}

// sleepOptions returns the options of the scheduler.
func sleepOptions(o *options.Sleep, dependencies controllerDependencies, own versioned.Interface, host kubernetes.Interface) sleep.Options {
	// One for all types of triggers: their queries occupy the same workers.
	limiter := queries.NewLimiter(queries.Options{Capacity: sleep.DefaultWorkers})
	metricsAPI := evaluators.MetricsAPIOptions{Host: host.Discovery().RESTClient(), Scales: dependencies.scaling, Limiter: limiter}
	client := sleep.NewClient(own, dependencies.registry.StatusWriter)
	return sleep.Options{
		Evaluators: map[string]evaluators.Evaluator{
			triggers.TypePrometheus: evaluators.NewPrometheus(evaluators.PrometheusOptions{
				ServerAddress:           o.PrometheusServerAddress,
				AuthorizationHeaderFile: o.PrometheusAuthorizationHeaderFile,
				NamespaceLabel:          o.PrometheusNamespaceLabel,
				AuthorizedNamespaces:    o.PrometheusAuthorizationNamespaces,
				Servers:                 newGuard(o, dependencies, host),
				Keys:                    credentials.NewClusterReader(host),
				Limiter:                 limiter,
				UptimeWindow:            max(evaluators.DefaultUptimeWindow, 2*o.PollingInterval),
			}),
			triggers.TypeExternalMetric: evaluators.NewExternalMetric(metricsAPI),
			triggers.TypeCPU:            evaluators.NewCPU(metricsAPI),
		},
		Sleeper:         client,
		Waker:           client,
		Reporter:        client,
		Recorder:        dependencies.recorder,
		PollingInterval: o.PollingInterval,
		DryRun:          o.DryRun,
		Metrics:         dependencies.metrics.sleep,
	}
}
