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

// Package options has the flags of elasti-resolver.
package options

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"
)

// Options are the values of the flags.
type Options struct {
	Name                          string
	Kubeconfig                    string
	BindAddress                   string
	SharedPort                    int32
	SharedHostHeader              string
	ClusterDomain                 string
	HealthAddress                 string
	MetricsAddress                string
	MetricsCertificateFile        string
	MetricsKeyFile                string
	AccessLog                     bool
	PassiveUserAgents             []string
	MaxHeldBytes                  int64
	MaxHeaderBytes                int
	HeaderTimeout                 time.Duration
	BodyTimeout                   time.Duration
	IdleTimeout                   time.Duration
	SniffTimeout                  time.Duration
	HTTP2MoveDelay                time.Duration
	PortLinger                    time.Duration
	TracingEndpoint               string
	TracingSamplingRatePerMillion int32
	ShutdownDelay                 time.Duration
	ShutdownTimeout               time.Duration
}

// New returns the defaults.
func New() *Options {
	return &Options{
		ClusterDomain:  "cluster.local",
		HealthAddress:  ":8080",
		MetricsAddress: ":8081",
		// The kubelet, and the health checks of the load balancers of the large
		// clouds: they never stop, and nobody waits for their answers.
		PassiveUserAgents: []string{"kube-probe/", "GoogleHC/", "ELB-HealthChecker/", "Edge Health Probe"},
		MaxHeldBytes:      256 << 20,
		MaxHeaderBytes:    64 << 10,
		HeaderTimeout:     10 * time.Second,
		// Long enough for a phone that lost its network for a while.
		BodyTimeout: 5 * time.Minute,
		// Longer than the load balancers in front keep theirs (the longest in
		// wide use is 600 s), so that it is never us who closes one just as it
		// is used again.
		IdleTimeout:     620 * time.Second,
		SniffTimeout:    100 * time.Millisecond,
		HTTP2MoveDelay:  time.Second,
		PortLinger:      30 * time.Second,
		ShutdownDelay:   3 * time.Second,
		ShutdownTimeout: 60 * time.Second,
	}
}

// AddFlags adds the flags to a set.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Name, "name", o.Name, "Name of the resolver's pod, under which it reports activity. Defaults to the host name.")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "File with the address and credentials of the cluster. Empty: those of the pod.")
	flags.StringVar(&o.BindAddress, "bind-address", o.BindAddress, "IP address that proxy ports are opened on. Empty: all addresses of both families.")
	flags.Int32Var(&o.SharedPort, "shared-http-port", o.SharedPort, "Port for services that have no proxy port of their own, told apart by host name. 0: none.")
	flags.StringVar(&o.SharedHostHeader, "shared-http-host-header", o.SharedHostHeader, "Header field that has the host name on --shared-http-port where it is set, for proxies that change Host.")
	flags.StringVar(&o.ClusterDomain, "cluster-domain", o.ClusterDomain, "Domain of the names of Services.")
	flags.StringVar(&o.HealthAddress, "health-address", o.HealthAddress, "Address that /healthz and /readyz are served on, in plain HTTP.")
	flags.StringVar(&o.MetricsAddress, "metrics-address", o.MetricsAddress, "Address that /metrics is served on, in HTTPS, to those who have a token of the cluster and may get /metrics. Empty: not served.")
	flags.StringVar(&o.MetricsCertificateFile, "metrics-tls-cert-file", o.MetricsCertificateFile, "File with the certificate of --metrics-address, in PEM. It may be replaced at any time. Empty: one is made that nobody has signed.")
	flags.StringVar(&o.MetricsKeyFile, "metrics-tls-private-key-file", o.MetricsKeyFile, "File with the private key of --metrics-tls-cert-file, in PEM.")
	flags.BoolVar(&o.AccessLog, "access-log", o.AccessLog, "Write a line of JSON to standard output for each request and connection.")
	flags.StringSliceVar(&o.PassiveUserAgents, "passive-user-agents", o.PassiveUserAgents, "Beginnings of User-Agent values, separated by commas. While a target sleeps their requests get 503 and do not wake it.")
	flags.Int64Var(&o.MaxHeldBytes, "max-held-bytes", o.MaxHeldBytes, "Bytes of memory that held requests and connections of all services may take; more get 503 or are reset.")
	flags.IntVar(&o.MaxHeaderBytes, "max-header-bytes", o.MaxHeaderBytes, "Size up to which the head of an HTTP message is accepted; larger ones get 431.")
	flags.DurationVar(&o.HeaderTimeout, "header-timeout", o.HeaderTimeout, "Time a client may take to send the head of an HTTP request once it began.")
	flags.DurationVar(&o.BodyTimeout, "body-timeout", o.BodyTimeout, "Time a client may send nothing in the middle of the body of an HTTP/1.x request before it gets 408. 0: no limit.")
	flags.DurationVar(&o.IdleTimeout, "idle-timeout", o.IdleTimeout, "Time an HTTP connection may be without a request. Keep it longer than that of whatever is in front.")
	flags.DurationVar(&o.SniffTimeout, "sniff-timeout", o.SniffTimeout, "Time a client may say nothing before it counts as one that lets the server speak first. Only for Service ports whose appProtocol does not tell.")
	flags.DurationVar(&o.HTTP2MoveDelay, "http2-move-delay", o.HTTP2MoveDelay, "Time after which clients that still reach an awake target through the resolver in HTTP/2 are told to reconnect.")
	flags.DurationVar(&o.PortLinger, "port-linger", o.PortLinger, "Time a proxy port that is not wanted any more goes on accepting connections and sending them to the pods that were last known.")
	flags.StringVar(&o.TracingEndpoint, "tracing-endpoint", o.TracingEndpoint, "host:port of a collector that spans are sent to, in OTLP over gRPC without TLS. Empty: none are made.")
	flags.Int32Var(&o.TracingSamplingRatePerMillion, "tracing-sampling-rate-per-million", o.TracingSamplingRatePerMillion, "Requests of a million that are traced although they do not ask for it; those whose traceparent says so always are.")
	flags.DurationVar(&o.ShutdownDelay, "shutdown-delay", o.ShutdownDelay, "After SIGTERM and after no EndpointSlice lists this resolver any more, connections are accepted until none has come for this long: everyone then knows that they should go elsewhere. The resolver waits for both for 30s at most, or this long if it is longer.")
	flags.DurationVar(&o.ShutdownTimeout, "shutdown-timeout", o.ShutdownTimeout, "Time held requests and open connections have to finish after that. The grace period of the pod must be longer than all of these together.")
}

// Validate returns every value that makes no sense.
func (o *Options) Validate() error {
	var errs []error
	if o.BindAddress != "" && net.ParseIP(o.BindAddress) == nil {
		errs = append(errs, fmt.Errorf("--bind-address: %q is not an IP address", o.BindAddress))
	}
	if o.MaxHeldBytes < 1<<20 {
		errs = append(errs, fmt.Errorf("--max-held-bytes: %d is less than %d", o.MaxHeldBytes, 1<<20))
	}
	if o.MaxHeaderBytes < 4<<10 {
		errs = append(errs, fmt.Errorf("--max-header-bytes: %d is less than %d", o.MaxHeaderBytes, 4<<10))
	}
	if o.SharedPort < 0 || o.SharedPort > 65535 {
		errs = append(errs, fmt.Errorf("--shared-http-port: %d is not a port", o.SharedPort))
	}
	if (o.MetricsCertificateFile == "") != (o.MetricsKeyFile == "") {
		errs = append(errs, errors.New("--metrics-tls-cert-file and --metrics-tls-private-key-file are needed both, or neither"))
	}
	if o.TracingSamplingRatePerMillion < 0 || o.TracingSamplingRatePerMillion > 1_000_000 {
		errs = append(errs, fmt.Errorf("--tracing-sampling-rate-per-million: %d is not from 0 to 1000000", o.TracingSamplingRatePerMillion))
	}
	for _, positive := range []struct {
		flag  string
		value time.Duration
	}{
		{"--header-timeout", o.HeaderTimeout},
		{"--idle-timeout", o.IdleTimeout},
		{"--sniff-timeout", o.SniffTimeout},
		{"--shutdown-timeout", o.ShutdownTimeout},
	} {
		if positive.value <= 0 {
			errs = append(errs, fmt.Errorf("%s: %s is not positive", positive.flag, positive.value))
		}
	}
	if o.ShutdownDelay < 0 {
		errs = append(errs, fmt.Errorf("--shutdown-delay: %s is negative", o.ShutdownDelay))
	}
	if o.BodyTimeout < 0 {
		errs = append(errs, fmt.Errorf("--body-timeout: %s is negative", o.BodyTimeout))
	}
	if o.PortLinger < 0 {
		errs = append(errs, fmt.Errorf("--port-linger: %s is negative", o.PortLinger))
	}
	if o.HTTP2MoveDelay < 0 {
		errs = append(errs, fmt.Errorf("--http2-move-delay: %s is negative", o.HTTP2MoveDelay))
	}
	return errors.Join(errs...)
}
