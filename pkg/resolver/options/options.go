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

// Package options has the flags of elasti-resolver: their defaults, help and checks.
//
// It does not know what is done with them: package app does. Begin with Options.
package options

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/pflag"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/passive"
)

// Options are the values of the flags.
type Options struct {
	Name              string
	Kubeconfig        string
	BindAddress       string
	HealthAddress     string
	AccessLog         bool
	PassiveUserAgents []string

	SharedPort SharedPort
	Metrics    Metrics
	Tracing    Tracing
	Limits     Limits
	Timeouts   Timeouts
	Drain      Drain
}

// SharedPort has the flags of the port that services without a proxy port of their
// own share.
type SharedPort struct {
	Port          int32
	HostHeader    string
	ClusterDomain string
}

// Metrics has the flags of the metrics endpoint.
type Metrics struct {
	Address         string
	CertificateFile string
	KeyFile         string
}

// Tracing has the flags of traces.
type Tracing struct {
	Endpoint               string
	SamplingRatePerMillion int32
}

// New returns Options with the defaults.
func New() *Options {
	return &Options{
		HealthAddress:     ":8080",
		PassiveUserAgents: passive.WellKnownUserAgents(),
		SharedPort:        SharedPort{ClusterDomain: "cluster.local"},
		Metrics:           Metrics{Address: ":8081"},
		Limits:            defaultLimits(),
		Timeouts:          defaultTimeouts(),
		Drain:             defaultDrain(),
	}
}

// AddFlags adds the flags to a set.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Name, "name", o.Name, "Name of the resolver's pod, under which it reports activity. Defaults to the host name.")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "File with the address and credentials of the cluster. Empty: those of the pod.")
	flags.StringVar(&o.BindAddress, "bind-address", o.BindAddress, "IP address that proxy ports are opened on. Empty: all addresses of both families.")
	flags.StringVar(&o.HealthAddress, "health-address", o.HealthAddress, "Address that /healthz and /readyz are served on, and /proxyports for elasti-apiserver, in plain HTTP.")
	flags.BoolVar(&o.AccessLog, "access-log", o.AccessLog, "Write a line of JSON to standard output for each request and connection.")
	flags.StringSliceVar(&o.PassiveUserAgents, "passive-user-agents", o.PassiveUserAgents, "Prefixes of the User-Agent values of scrapers and health checkers, separated by commas; with * in front, substrings. GET, HEAD and OPTIONS requests and gRPC health checks with such a value neither wake a target nor count as use of it, unless spec.proxy.passive of an ElastiService is set otherwise.")
	o.SharedPort.addFlags(flags)
	o.Metrics.addFlags(flags)
	o.Tracing.addFlags(flags)
	o.Limits.addFlags(flags)
	o.Timeouts.addFlags(flags)
	o.Drain.addFlags(flags)
}

func (s *SharedPort) addFlags(flags *pflag.FlagSet) {
	flags.Int32Var(&s.Port, "shared-http-port", s.Port, "Port for services that have no proxy port of their own, with host-based routing. 0: none.")
	flags.StringVar(&s.HostHeader, "shared-http-host-header", s.HostHeader, "Header that has the host name on --shared-http-port when a request has it, for proxies that change Host.")
	flags.StringVar(&s.ClusterDomain, "cluster-domain", s.ClusterDomain, "Domain of the names of Services.")
}

func (m *Metrics) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&m.Address, "metrics-address", m.Address, "Address that /metrics is served on, in HTTPS, to clients with a bearer token of the cluster that is allowed to get /metrics. Empty: not served.")
	flags.StringVar(&m.CertificateFile, "metrics-tls-cert-file", m.CertificateFile, "File with the certificate of --metrics-address, in PEM. It may be replaced at any time. Empty: a self-signed one is generated.")
	flags.StringVar(&m.KeyFile, "metrics-tls-private-key-file", m.KeyFile, "File with the private key of --metrics-tls-cert-file, in PEM.")
}

func (t *Tracing) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&t.Endpoint, "tracing-endpoint", t.Endpoint, "host:port of a collector that spans are sent to, in OTLP over gRPC without TLS. Empty: no traces.")
	flags.Int32Var(&t.SamplingRatePerMillion, "tracing-sampling-rate-per-million", t.SamplingRatePerMillion, "Number of requests in a million that are sampled. Requests whose traceparent is sampled always are.")
}

// Validate returns an error for each invalid value.
func (o *Options) Validate() error {
	var errs []error
	if o.BindAddress != "" && net.ParseIP(o.BindAddress) == nil {
		errs = append(errs, fmt.Errorf("--bind-address: %q is not an IP address", o.BindAddress))
	}
	if o.SharedPort.Port < 0 || o.SharedPort.Port > 65535 {
		errs = append(errs, fmt.Errorf("--shared-http-port: %d is not a port", o.SharedPort.Port))
	}
	if (o.Metrics.CertificateFile == "") != (o.Metrics.KeyFile == "") {
		errs = append(errs, errors.New("--metrics-tls-cert-file and --metrics-tls-private-key-file are needed both, or neither"))
	}
	if rate := o.Tracing.SamplingRatePerMillion; rate < 0 || rate > 1_000_000 {
		errs = append(errs, fmt.Errorf("--tracing-sampling-rate-per-million: %d is not from 0 to 1000000", rate))
	}
	errs = append(errs, o.Limits.validate()...)
	errs = append(errs, o.Timeouts.validate()...)
	errs = append(errs, o.Drain.validate()...)
	return errors.Join(errs...)
}
