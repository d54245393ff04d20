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

// Package service has the state that a resolver keeps for one ElastiService: the
// configuration of its traffic, the queue of held requests, and its pods.
//
// It knows no protocol. Begin with Service.
package service

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	resolveractivity "github.com/truefoundry/elasti-apiserver/pkg/resolver/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/dial"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/passive"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/proberesponse"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// Config is the configuration of the traffic of a service. It must not be changed once
// it was passed to a Service.
type Config struct {
	// Mode is status.mode.
	Mode v1alpha1.Mode
	// Always is true when resolvers always stay in the path (proxy.policy).
	Always bool
	// FallingAsleep is true while the target is being put to sleep: resolvers are
	// about to be in the path.
	FallingAsleep bool
	// AllowedClients are those of proxy.
	AllowedClients *Clients
	// HoldTimeout is proxy.holdTimeoutSeconds.
	HoldTimeout time.Duration
	// Limits are those of proxy.
	Limits hold.Limits
	// Probes are the readiness probes of a pod that is not ready. Nil: it is not probed.
	Probes *v1alpha1.ReadinessProbes
	// ProbeResponses is spec.probeResponse.
	ProbeResponses *proberesponse.Rules
	// Passive is proxy.passive.
	Passive *passive.Rules
	// ClientHeader and ProxyProtocol are those of proxy.clientAddress.
	ClientHeader  v1alpha1.ClientAddressHeader
	ProxyProtocol bool
	// WaitingPage is proxy.waitingPage.
	WaitingPage bool
	// Problem is why the target does not start: a reason, a colon and the message of the
	// cluster. Empty when no reason is known. The text is not trusted.
	Problem string
	// Activity configures the reports of the traffic.
	Activity resolveractivity.Policy
}

// Port is one port of the public Service.
type Port struct {
	// Number and Name are those of the Service port.
	Number int32
	Name   string
	// AppProtocol is that of the Service port.
	AppProtocol string
	// ProxyPort is the proxy port for it.
	ProxyPort int32
}

// Worker runs while something is held, to wake the target or probe its pods.
type Worker interface {
	// Run returns when ctx ends. Changed has a value after a change.
	Run(ctx context.Context, changed <-chan struct{})
}

// Options configure a Service.
type Options struct {
	// Namespace and Name name the ElastiService, and UID is its UID.
	Namespace, Name string
	UID             types.UID
	// PublicService is the name of the public Service.
	PublicService string
	// Config is the first configuration; Apply changes it.
	Config *Config
	// Budget is shared by all services.
	Budget *memory.Budget
	// Dialer connects to pods. Optional.
	Dialer *dial.Dialer
	// ServeGrace is how long new connections are still served after resolvers left the
	// path of the service. 0: always.
	ServeGrace time.Duration
	// PathTimeout is how long a connection waits after that for resolvers to be in
	// the path again. Defaults to DefaultPathTimeout.
	PathTimeout time.Duration
	// Logger is the base of the log lines about the service.
	Logger klog.Logger
	// Finish is called for each request and connection of the service that has ended.
	// It must not retain the record. Optional.
	Finish func(*accesslog.Record)
	// Closed is called when the service was closed. Optional.
	Closed func()
	// Traffic counts the requests and connections. Close ends it. Optional.
	Traffic *resolveractivity.Tracker
	// Tasks runs the workers, so that a panic does not end the process. Optional.
	Tasks *task.Runner
	// Workers returns the workers of the service.
	Workers func(*Service) []Worker
}

// Service has the traffic and the pods of one ElastiService. It is safe for concurrent
// use.
type Service struct {
	// Namespace and Name name the ElastiService, PublicService its Service.
	Namespace, Name, PublicService string
	// UID is that of the ElastiService.
	UID types.UID

	queue     *hold.Queue
	traffic   *resolveractivity.Tracker
	config    atomic.Pointer[Config]
	leftSince atomic.Pointer[time.Time]
	path      path
	// serveGrace is Options.ServeGrace.
	serveGrace time.Duration
	// pathTimeout is Options.PathTimeout.
	pathTimeout time.Duration
	workers     []Worker
	tasks       *task.Runner
	finish      func(*accesslog.Record)
	closed      func()
	logger      klog.Logger
	keepAwake   keepAwake
}

// New returns a Service. Close must be called in the end.
func New(options Options) *Service {
	if options.Traffic == nil {
		options.Traffic = resolveractivity.NewTracker()
	}
	s := &Service{
		Namespace:     options.Namespace,
		Name:          options.Name,
		PublicService: options.PublicService,
		UID:           options.UID,
		finish:        options.Finish,
		closed:        options.Closed,
		tasks:         options.Tasks,
		traffic:       options.Traffic,
		serveGrace:    options.ServeGrace,
		pathTimeout:   cmp.Or(options.PathTimeout, DefaultPathTimeout),
		logger:        options.Logger.WithValues("namespace", options.Namespace, "elastiService", options.Name),
	}
	s.configure(options.Config)
	s.queue = hold.New(hold.Options{
		Limits: options.Config.Limits,
		Budget: options.Budget,
		Dialer: options.Dialer,
		Work:   s.work,
		Tasks:  options.Tasks,
	})
	if options.Workers != nil {
		s.workers = options.Workers(s)
	}
	return s
}

// PublicServiceKey returns the namespace and name of the public Service.
func (s *Service) PublicServiceKey() types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.PublicService}
}

// Finish records that a request or connection of the service has ended.
func (s *Service) Finish(record *accesslog.Record) {
	if s.finish != nil {
		s.finish(record)
	}
}

// Config returns the current configuration.
func (s *Service) Config() *Config { return s.config.Load() }

// Queue returns the queue of the service.
func (s *Service) Queue() *hold.Queue { return s.queue }

// Memory returns the account of the memory of the service's traffic.
func (s *Service) Memory() *memory.Account { return s.queue.Memory() }

// Traffic returns the tracker of the service's requests and connections.
func (s *Service) Traffic() *resolveractivity.Tracker { return s.traffic }

// Leaving reports whether clients should move to the pods: resolvers are not in the path
// of new connections, and are not about to be.
func (s *Service) Leaving() bool {
	config := s.config.Load()
	return config.Mode == v1alpha1.ModeServe && !config.Always
}

// LeftFor returns for how long clients should have moved to the pods, or a
// negative time when they should not.
func (s *Service) LeftFor() time.Duration {
	since := s.leftSince.Load()
	if since == nil {
		return -1
	}
	return time.Since(*since)
}

// Apply changes the configuration. It must not be called concurrently.
func (s *Service) Apply(config *Config) {
	s.configure(config)
	s.queue.SetLimits(config.Limits)
}

func (s *Service) configure(config *Config) {
	s.config.Store(config)
	s.traffic.Apply(config.Activity)
	s.path.setMode(config)
	switch {
	case !s.Leaving():
		s.leftSince.Store(nil)
	case s.leftSince.Load() == nil:
		now := time.Now()
		s.leftSince.Store(&now)
	}
}

// SetPods replaces the pods with those that the EndpointSlices list.
func (s *Service) SetPods(pods []endpoint.Description) {
	s.queue.SetPods(pods)
	s.path.setPods(pods)
}

// Close ends the wait of everything that is held, and returns when the workers have
// ended. Requests that were released before continue.
func (s *Service) Close() {
	s.keepAwake.stop()
	s.traffic.Close()
	s.queue.Close()
	if s.closed != nil {
		s.closed()
	}
}

// KeepAwake wakes the target and keeps it awake for a time from now on, as if something
// were held that long.
func (s *Service) KeepAwake(period time.Duration) {
	s.keepAwake.extend(s.queue, period)
}

// work runs the workers until ctx ends.
func (s *Service) work(ctx context.Context) {
	runAll(klog.NewContext(ctx, s.logger), s.tasks, s.workers, s.queue.Changed())
}
