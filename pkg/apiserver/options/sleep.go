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

	"github.com/prometheus/common/model"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/egress"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
)

// Bounds of --polling-interval: below, servers are queried more often than they
// collect; above, a target that is needed by its triggers sleeps for too long.
const (
	minPollingInterval = time.Second
	maxPollingInterval = time.Hour
)

// Sleep has the flags of the decisions when targets sleep.
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
	// PrometheusNamespaceLabel is the label that queries of that server are
	// restricted by to the namespace of the ElastiService.
	PrometheusNamespaceLabel string
	// PrometheusAuthorizationNamespaces are those whose triggers may query that
	// server.
	PrometheusAuthorizationNamespaces []string
	// TriggerAllowedServers are the servers that triggers may name. Nil means
	// that the flag is not given.
	TriggerAllowedServers []string
}

func newSleep() Sleep { return Sleep{PollingInterval: sleep.DefaultPollingInterval} }

// AddFlags adds the flags of the decisions when targets sleep.
func (o *Sleep) AddFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&o.PollingInterval, "polling-interval", o.PollingInterval,
		"The time between two evaluations of the triggers of an ElastiService.")
	flags.BoolVar(&o.DryRun, "dry-run", o.DryRun,
		"Record as Events which targets would be put to sleep or woken by triggers and enabled periods, and leave them as they are. Traffic wakes them all the same.")
	flags.StringVar(&o.PrometheusServerAddress, "prometheus-server-address", o.PrometheusServerAddress,
		"The URL of the Prometheus server that prometheus triggers without a serverAddress query.")
	flags.StringVar(&o.PrometheusAuthorizationHeaderFile, "prometheus-authorization-header-file", o.PrometheusAuthorizationHeaderFile,
		"The file with the value of the Authorization header for --prometheus-server-address, such as \"Bearer …\". No other server gets it, and only queries that --prometheus-namespace-label or --prometheus-authorization-namespaces allows are sent with it.")
	flags.StringVar(&o.PrometheusNamespaceLabel, "prometheus-namespace-label", o.PrometheusNamespaceLabel,
		"The label that holds the namespace in the series of --prometheus-server-address, such as namespace. Each selector of a trigger's query of that server then selects only the namespace of its ElastiService.")
	flags.StringSliceVar(&o.PrometheusAuthorizationNamespaces, "prometheus-authorization-namespaces", o.PrometheusAuthorizationNamespaces,
		"The namespaces whose triggers may query --prometheus-server-address; * means all. Defaults to all with --prometheus-namespace-label, or where neither a credential nor --trigger-allowed-servers protects that server, and to none otherwise.")
	flags.StringSliceVar(&o.TriggerAllowedServers, "trigger-allowed-servers", o.TriggerAllowedServers,
		"The servers besides --prometheus-server-address that triggers may query: host names as triggers write them, *.example.com, IP addresses or CIDRs, each with or without :port; * means any, an empty value none. Link-local addresses, the Kubernetes API and this server are never queried, loopback only when the list has an address or CIDR of it. Defaults to *.")
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
	if _, err := o.AllowedServers(); err != nil {
		errs = append(errs, fmt.Errorf("--trigger-allowed-servers: %w", err))
	}
	return append(errs, o.validateRestrictions()...)
}

// validateRestrictions checks the flags that restrict the queries of
// --prometheus-server-address.
func (o *Sleep) validateRestrictions() []error {
	var errs []error
	if label := o.PrometheusNamespaceLabel; label != "" && (!model.LegacyValidation.IsValidLabelName(label) || label == model.MetricNameLabel) {
		errs = append(errs, fmt.Errorf("--prometheus-namespace-label is %q, but must be the name of a label, such as namespace", label))
	}
	for _, namespace := range o.PrometheusAuthorizationNamespaces {
		if namespace != evaluators.AllNamespaces && len(validation.IsDNS1123Label(namespace)) > 0 {
			errs = append(errs, fmt.Errorf("--prometheus-authorization-namespaces has %q, which is not the name of a namespace", namespace))
		}
	}
	if o.PrometheusNamespaceLabel == "" && len(o.PrometheusAuthorizationNamespaces) == 0 {
		return errs
	}
	switch {
	case o.PrometheusServerAddress == "":
		errs = append(errs, errors.New("--prometheus-namespace-label and --prometheus-authorization-namespaces are for --prometheus-server-address: give that too"))
	case o.PrometheusAuthorizationHeaderFile == "" && o.TriggerAllowedServers == nil:
		errs = append(errs, errors.New("without --prometheus-authorization-header-file, a trigger that names the address of the server gets round --prometheus-namespace-label and --prometheus-authorization-namespaces: give --trigger-allowed-servers too, with the other servers that triggers may query, or empty"))
	}
	return errs
}

// AllowedServers returns the allow list of the servers that triggers may name. Nil means
// that there is none. It fails where Validate does.
func (o *Sleep) AllowedServers() (*egress.AllowList, error) {
	if o.TriggerAllowedServers == nil {
		return nil, nil
	}
	return egress.Parse(o.TriggerAllowedServers)
}
