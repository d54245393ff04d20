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

// Package resolver is the data plane: it receives the traffic of services whose
// targets sleep, holds it, has the target woken, and forwards it as soon as a
// pod can serve.
//
// The way of a request through the packages: route learns from the API server
// which port belongs to which service; listen accepts the connection; this package
// detects the protocol and passes the connection to http1, http2 or stream; hold makes
// it wait for a pod, while wake requests one from the API server and probe checks whether
// the pod can serve; endpoint picks the pod; dial connects to it. What is in use is
// reported by activity.
//
// It knows neither flags nor credentials, which are in app. Begin with Resolver, and
// with serve.go for a connection.
package resolver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	elastiinformers "github.com/truefoundry/elasti-apiserver/pkg/generated/informers/externalversions"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	resolveractivity "github.com/truefoundry/elasti-apiserver/pkg/resolver/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/adminserver"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/dial"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/fallback"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hostroute"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/http1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/http2"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/listen"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/liveness"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/metrics"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/route"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/stream"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/tracing"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/wake"
)

// sliceController is the name by which the EndpointSlice controller of Kubernetes marks the
// EndpointSlices that it makes of the selector of a Service. It takes back what others write
// to these, a second later.
const sliceController = "endpointslice-controller.k8s.io"

// privateSlices selects the EndpointSlices of private Services. Those that a user makes for
// one do not count: their endpoints may be anywhere, and network policies let resolvers in.
const privateSlices = v1alpha1.LabelRole + "=" + v1alpha1.RolePrivate + "," + discoveryv1.LabelManagedBy + "=" + sliceController

// maxProbes bounds how many probes of pods run at a time.
const maxProbes = 1024

// Options are what a Resolver is made of.
type Options struct {
	// Name is the name of the resolver's pod.
	Name string
	// Elasti reaches the ElastiServices: to watch them, and to wake.
	Elasti versioned.Interface
	// Kubernetes reaches the EndpointSlices.
	Kubernetes kubernetes.Interface
	// BindAddress is where proxy ports are opened. Empty: all addresses.
	BindAddress string
	// SharedPort is the port of the services that have no proxy port of their
	// own. 0: none.
	SharedPort int32
	// SharedHostHeader is the header field that has the host name on SharedPort,
	// where it is set; otherwise Host has.
	SharedHostHeader string
	// ClusterDomain is the domain of Service names.
	ClusterDomain string
	// HealthListener is where /healthz, /readyz and portcheck.Path are served. Run
	// closes it.
	HealthListener net.Listener
	// Registerer is where metrics are registered.
	Registerer prometheus.Registerer
	// MetricsListener is where Metrics is served, over TLS with MetricsTLS. Run closes
	// it. Nil: nowhere.
	MetricsListener net.Listener
	MetricsTLS      *tls.Config
	// Metrics serves what comes to MetricsListener.
	Metrics http.Handler
	// TracerProvider makes the spans of requests. Optional.
	TracerProvider trace.TracerProvider
	// Logger is the base of all log lines.
	Logger klog.Logger
	// AccessLog records each request and connection. Optional.
	AccessLog *accesslog.Writer
	// PassiveUserAgents are those of scrapers and health checkers, as
	// passive.WellKnownUserAgents has them.
	PassiveUserAgents []string
	// Limits, Timeouts and Drain bound what clients take, how long they are waited for,
	// and how they are moved away.
	Limits   Limits
	Timeouts Timeouts
	Drain    Drain
}

// Resolver is one resolver.
type Resolver struct {
	options     Options
	budget      *memory.Budget
	tasks       *task.Runner
	dialer      *dial.Dialer
	http1       *http1.Server
	http2       *http2.Server
	streams     *stream.Server
	probeSlots  chan struct{}
	connections *connections
	liveness    *liveness.Watch
	listeners   *listen.Set
	hosts       *hostroute.Table
	metrics     *metrics.Metrics
	reporter    *resolveractivity.Reporter
	tracer      *tracing.Recorder
	draining    atomic.Bool
	// wakeCalls are the wake calls under way, and wakesBeside decides when others are made
	// beside them.
	wakeCalls   sync.WaitGroup
	wakesBeside *wake.Beside
}

// New returns a Resolver.
func New(options Options) (*Resolver, error) {
	r := &Resolver{
		options:     options,
		budget:      memory.NewBudget(memory.Limits{Process: options.Limits.HeldBytes, PerService: options.Limits.HeldBytesPerService}),
		probeSlots:  make(chan struct{}, maxProbes),
		wakesBeside: wake.NewBeside(),
		tracer:      tracing.New(options.TracerProvider),
		hosts:       hostroute.New(hostroute.Options{ClusterDomain: options.ClusterDomain, HostHeader: options.SharedHostHeader}),
		reporter:    resolveractivity.New(resolveractivity.Options{Client: reports{options.Elasti}, Resolver: options.Name}),
	}
	r.tasks = task.New(r.panicked)
	r.liveness = liveness.New(liveness.Options{Tasks: r.tasks})
	r.listeners = listen.New(listen.Options{BindAddress: options.BindAddress, Logger: options.Logger, Faulted: r.faulted})
	r.dialer = dial.New(dial.Options{Faulted: r.faulted, Connected: r.liveness.Add})
	r.connections = newConnections(r.connectionLimits(), r.budget.Open(nil))
	r.connections.displaced = func(client netip.Addr, why metrics.RejectionReason) { r.rejected(nil, client, why) }
	r.streams = stream.New(stream.Options{Greeting: options.Timeouts.Greeting, Tasks: r.tasks})
	policy := &fallback.Policy{PassiveUserAgents: options.PassiveUserAgents}
	r.http1 = http1.New(http1.Options{
		Fallback:       policy,
		IdleTimeout:    options.Timeouts.Idle,
		HeaderTimeout:  options.Timeouts.Header,
		BodyTimeout:    options.Timeouts.Body,
		MaxHeaderBytes: options.Limits.HeaderBytes,
		Tasks:          r.tasks,
	})
	r.http2 = http2.New(http2.Options{
		Fallback:       policy,
		IdleTimeout:    options.Timeouts.Idle,
		MaxHeaderBytes: options.Limits.HeaderBytes,
		MoveDelay:      options.Drain.HTTP2MoveDelay,
		Tasks:          r.tasks,
	})
	var err error
	if r.metrics, err = metrics.New(options.Registerer, process{r}); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return r, nil
}

// Run serves until ctx ends, and then until what it holds and carries has ended
// too, for leaveTimeout, Drain.Delay and Drain.Timeout at most.
func (r *Resolver) Run(ctx context.Context) error {
	// What serves traffic outlives ctx: draining needs all of it.
	serving, stop := context.WithCancelCause(klog.NewContext(context.WithoutCancel(ctx), r.options.Logger))
	var running sync.WaitGroup
	defer r.wakeCalls.Wait()
	defer running.Wait()
	defer stop(nil)

	kube, elasti := r.informers()
	if err := r.openShared(serving); err != nil {
		return fmt.Errorf("the shared port: %w", err)
	}
	owners := newPortOwners(serving, r)
	table, err := route.New(route.Options{
		ElastiServices: elasti.Elasti().V1alpha1().ElastiServices(),
		EndpointSlices: kube.Discovery().V1().EndpointSlices(),
		Listeners:      owners,
		SharedPort:     r.options.SharedPort,
		Linger:         r.options.Drain.PortLinger,
		Conflicts:      r.metrics.PortConflicts,
		Logger:         r.options.Logger,
		NewService:     r.newService,
	})
	if err != nil {
		return err
	}
	defer kube.Shutdown()
	defer elasti.Shutdown()
	// Before the informers are waited for, what they run on must have ended.
	defer stop(nil)
	kube.StartWithContext(serving)
	elasti.StartWithContext(serving)

	failed := func(err error) {
		if err != nil {
			stop(err)
		}
	}
	// Until everything that is open has ended: it must not be put to sleep.
	running.Go(func() { r.reporter.Run(serving) })
	running.Go(func() { r.http1.Run(serving) })
	running.Go(func() { r.liveness.Run(serving) })
	if r.options.AccessLog != nil {
		running.Go(func() { r.options.AccessLog.Run(serving) })
	}
	running.Go(func() { failed(table.Run(serving)) })
	for _, server := range r.adminServers(healthMux(func() error { return r.readiness(table) }, owners.state)) {
		running.Go(func() { failed(server.Run(serving)) })
	}

	select {
	case <-serving.Done():
		r.listeners.Shutdown()
		r.connections.closeAll()
		return context.Cause(serving)
	case <-ctx.Done():
	}
	r.drain(serving)
	return nil
}

// informers returns those of the slices of private Services and of ElastiServices.
func (r *Resolver) informers() (kubeinformers.SharedInformerFactory, elastiinformers.SharedInformerFactory) {
	kube := kubeinformers.NewSharedInformerFactoryWithOptions(r.options.Kubernetes, 0,
		kubeinformers.WithTransform(route.DropUnused),
		kubeinformers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = privateSlices }))
	elasti := elastiinformers.NewSharedInformerFactoryWithOptions(r.options.Elasti, 0,
		elastiinformers.WithTransform(route.DropUnused))
	return kube, elasti
}

// adminServers returns what serves the health port, and metrics if they are on.
func (r *Resolver) adminServers(health http.Handler) []*adminserver.Server {
	servers := []*adminserver.Server{adminserver.New(r.options.HealthListener, nil, health, r.options.Logger)}
	if r.options.MetricsListener != nil {
		servers = append(servers, adminserver.New(r.options.MetricsListener, r.options.MetricsTLS, r.options.Metrics, r.options.Logger))
	}
	return servers
}

// drain lets go of the traffic: first readiness fails and clients are requested to
// reconnect; when that has spread, no more is accepted; then what is there is finished.
func (r *Resolver) drain(ctx context.Context) {
	logger := r.options.Logger
	logger.Info("Draining", "connections", r.connections.count(), "delay", r.options.Drain.Delay)
	r.draining.Store(true)
	r.http1.Drain()
	r.http2.Drain()
	deadline := time.Now().Add(leaveTimeout)
	r.awaitLeft(ctx)
	r.awaitQuiet(ctx, deadline)
	r.listeners.Shutdown()
	r.connections.closeSilent()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.options.Drain.Timeout)
	defer cancel()
	if left := r.connections.finish(ctx); left > 0 {
		logger.Info("Closed connections that had not ended in time", "connections", left, "timeout", r.options.Drain.Timeout)
	}
}

func (r *Resolver) readiness(table *route.Table) error {
	switch {
	case r.draining.Load():
		return errors.New("draining")
	case !table.Ready():
		return errors.New("waiting for the ElastiServices and their EndpointSlices")
	}
	return nil
}
