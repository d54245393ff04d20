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

package options

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/credentials"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// Bounds of --polling-interval: below, servers are queried more often than they
// collect; above, a target that is needed by its triggers sleeps for too long.
const (
	minPollingInterval = time.Second
	maxPollingInterval = time.Hour
)

// Sleep are the flags of what decides when targets sleep.
type Sleep struct {
	// PollingInterval is the time between two evaluations of the triggers of
	// an ElastiService.
	PollingInterval time.Duration
	// DryRun is true when decisions are recorded and not carried out.
	DryRun bool
	// PrometheusServerAddress is the URL of the Prometheus server that
	// triggers without a serverAddress query.
	PrometheusServerAddress string
	// PrometheusAuthorizationHeaderFile holds the value of the Authorization
	// header for that server.
	PrometheusAuthorizationHeaderFile string
}

func newSleep() Sleep { return Sleep{PollingInterval: sleep.DefaultPollingInterval} }

// AddFlags adds the flags of what decides when targets sleep.
func (o *Sleep) AddFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&o.PollingInterval, "polling-interval", o.PollingInterval,
		"The time between two evaluations of the triggers of an ElastiService.")
	flags.BoolVar(&o.DryRun, "dry-run", o.DryRun,
		"Record as Events which targets would be put to sleep or woken by triggers and enabled periods, and leave them as they are. Traffic wakes them all the same.")
	flags.StringVar(&o.PrometheusServerAddress, "prometheus-server-address", o.PrometheusServerAddress,
		"The URL of the Prometheus server that prometheus triggers without a serverAddress query.")
	flags.StringVar(&o.PrometheusAuthorizationHeaderFile, "prometheus-authorization-header-file", o.PrometheusAuthorizationHeaderFile,
		"The file with the value of the Authorization header for --prometheus-server-address, such as \"Bearer …\". No other server gets it.")
}

// Validate checks the flags.
func (o *Sleep) Validate() []error {
	var errs []error
	if o.PollingInterval < minPollingInterval || o.PollingInterval > maxPollingInterval {
		errs = append(errs, fmt.Errorf("--polling-interval is %s, but must be from %s to %s", o.PollingInterval, minPollingInterval, maxPollingInterval))
	}
	if address := o.PrometheusServerAddress; address != "" {
		// The address is not part of the message: it may hold a password.
		if parsed, err := url.Parse(address); err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
			errs = append(errs, errors.New("--prometheus-server-address must be a URL such as http://prometheus.monitoring:9090"))
		}
	} else if o.PrometheusAuthorizationHeaderFile != "" {
		errs = append(errs, errors.New("--prometheus-authorization-header-file is for --prometheus-server-address: give that too"))
	}
	return errs
}

// options returns the options of the scheduler.
func (o *Sleep) options(dependencies controllerDependencies, own versioned.Interface, host kubernetes.Interface) sleep.Options {
	metricsAPI := evaluators.MetricsAPIOptions{Host: host.Discovery().RESTClient(), Scales: dependencies.scaling}
	client := sleep.NewClient(own, dependencies.registry.StatusWriter)
	return sleep.Options{
		Evaluators: map[string]evaluators.Evaluator{
			triggers.TypePrometheus: evaluators.NewPrometheus(evaluators.PrometheusOptions{
				ServerAddress:           o.PrometheusServerAddress,
				AuthorizationHeaderFile: o.PrometheusAuthorizationHeaderFile,
				Keys:                    credentials.NewClusterReader(host),
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
		Metrics:         sleep.NewMetrics(legacyregistry.Registerer(), clock.RealClock{}),
	}
}
