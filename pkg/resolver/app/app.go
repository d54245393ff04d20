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

// Package app puts together the process of elasti-resolver from its flags: clients,
// listeners, metrics, traces and the resolver. It knows nothing of traffic, which is the
// resolver's. Begin with Run.
package app

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/tracing"
	tracingv1 "k8s.io/component-base/tracing/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/buildinfo"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/metricsauth"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/options"
)

// traceFlushTimeout bounds how long the end of the process waits for the
// collector of traces.
const traceFlushTimeout = 2 * time.Second

// Run runs a resolver with the values of its flags until ctx ends and it has drained.
func Run(ctx context.Context, o *options.Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the credentials of the cluster (--kubeconfig=%q): %w", o.Kubeconfig, err)
	}
	elastiClient, kubeClient, err := clients(config)
	if err != nil {
		return err
	}
	provider, err := tracerProvider(ctx, &o.Tracing)
	if err != nil {
		return err
	}
	if provider != nil {
		defer flush(ctx, provider)
	}
	registry := newRegistry()
	name, err := nameOf(o)
	if err != nil {
		return err
	}
	assembled := resolver.Options{
		Name:              name,
		Elasti:            elastiClient,
		Kubernetes:        kubeClient,
		BindAddress:       o.BindAddress,
		SharedPort:        o.SharedPort.Port,
		SharedHostHeader:  o.SharedPort.HostHeader,
		ClusterDomain:     o.SharedPort.ClusterDomain,
		PassiveUserAgents: o.PassiveUserAgents,
		Limits:            resolver.Limits(o.Limits),
		Timeouts:          resolver.Timeouts(o.Timeouts),
		Registerer:        registry,
		Metrics:           metricsHandler(registry, kubeClient),
		Logger:            klog.FromContext(ctx),
		Drain: resolver.Drain{
			HTTP2MoveDelay: o.Drain.HTTP2MoveDelay,
			ServeGrace:     o.Drain.ServeGrace,
			PortLinger:     o.Drain.PortLinger,
			Delay:          o.Drain.Delay,
			Timeout:        o.Drain.Timeout,
		},
	}
	if provider != nil {
		assembled.TracerProvider = provider
	}
	if o.AccessLog {
		assembled.AccessLog = accesslog.New(os.Stdout)
	}
	if err := listen(ctx, o, &assembled); err != nil {
		return err
	}
	r, err := resolver.New(assembled)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// newRegistry returns a registry with the metrics of the process.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildinfo.NewMetric("elasti_resolver_build_info"))
	return registry
}

// nameOf returns the name of the resolver, which is that of the host by default.
func nameOf(o *options.Options) (string, error) {
	if o.Name != "" {
		return o.Name, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("finding the host name (set --name instead): %w", err)
	}
	return name, nil
}

// listen opens the listeners for what the cluster itself requests.
func listen(ctx context.Context, o *options.Options, to *resolver.Options) (err error) {
	var config net.ListenConfig
	if to.HealthListener, err = config.Listen(ctx, "tcp", o.HealthAddress); err != nil {
		return fmt.Errorf("opening --health-address: %w", err)
	}
	if o.Metrics.Address == "" {
		return nil
	}
	if to.MetricsTLS, err = metricsauth.TLSConfig(o.Metrics.CertificateFile, o.Metrics.KeyFile); err != nil {
		return fmt.Errorf("preparing TLS for --metrics-address: %w", err)
	}
	if to.MetricsListener, err = config.Listen(ctx, "tcp", o.Metrics.Address); err != nil {
		return fmt.Errorf("opening --metrics-address: %w", err)
	}
	return nil
}

// metricsHandler serves /metrics to authorized clients.
func metricsHandler(registry *prometheus.Registry, client kubernetes.Interface) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return metricsauth.New(mux, metricsauth.Options{
		Tokens: client.AuthenticationV1().TokenReviews(),
		Access: client.AuthorizationV1().SubjectAccessReviews(),
	})
}

// clients returns the clients of a cluster, without a rate limit. Each service sends one
// wake request at a time, however much it holds, and must not wait for those of other
// services. The API server limits the rate by priority and fairness.
func clients(config *rest.Config) (versioned.Interface, kubernetes.Interface, error) {
	config = rest.AddUserAgent(config, "elasti-resolver")
	config.QPS = -1
	// The network inside a cluster is faster than compression.
	config.DisableCompression = true
	config.Wrap(newRetrying)
	elastiClient, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a client for ElastiServices: %w", err)
	}
	// Most watched objects are EndpointSlices.
	config.ContentType = "application/vnd.kubernetes.protobuf"
	kubeClient, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a client for Kubernetes: %w", err)
	}
	return elastiClient, kubeClient, nil
}

// tracerProvider returns the provider of tracers, or nil without an endpoint.
func tracerProvider(ctx context.Context, flags *options.Tracing) (tracing.TracerProvider, error) {
	if flags.Endpoint == "" {
		return nil, nil
	}
	provider, err := tracing.NewProvider(ctx, &tracingv1.TracingConfiguration{
		Endpoint:               ptr.To(flags.Endpoint),
		SamplingRatePerMillion: ptr.To(flags.SamplingRatePerMillion),
	}, nil, []resource.Option{resource.WithAttributes(attribute.String("service.name", "elasti-resolver"))})
	if err != nil {
		return nil, fmt.Errorf("connecting to the collector of traces (--tracing-endpoint=%q): %w", flags.Endpoint, err)
	}
	return provider, nil
}

// flush sends the remaining spans.
func flush(ctx context.Context, provider tracing.TracerProvider) {
	flushCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceFlushTimeout)
	defer cancel()
	if err := provider.Shutdown(flushCtx); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to send the remaining spans")
	}
}
