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

// Package service is what a resolver keeps for one ElastiService: how its
// traffic is treated, what is held for it and which pods it has.
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
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/dial"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/passive"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/proberesponse"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// Config is how the traffic of a service is treated. It is not changed once it
// was given to a Service.
type Config struct {
	// Mode is status.mode.
	Mode v1alpha1.Mode
	// Always is true when resolvers are to stay in the path (proxy.policy).
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
	// Probes is what a pod that is not ready is asked. Nil: it is not asked.
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
	// Problem is what keeps the target from starting: a reason, a colon and what
	// the cluster says about it. Empty when nothing is known to. Others wrote it.
	Problem string
	// Activity says what is reported of the traffic.
	Activity activity.Policy
}

// Port is one port of the public Service.
type Port struct {
	// Number and Name are those of the Service port.
	Number int32
	Name   string
	// AppProtocol is that of the Service port.
	AppProtocol string
	// ProxyPort is where the resolver listens for it.
	ProxyPort int32
}

// Worker makes pods appear and be found ready while something is held.
type Worker interface {
	// Run ends with ctx. Changed has a value when it should look again.
	Run(ctx context.Context, changed <-chan struct{})
}

// Options are what a Service is made of.
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
	// ServeGrace is for how long after resolvers left the path of the service new
	// connections are still served. 0: for ever.
	ServeGrace time.Duration
	// PathTimeout is how long a connection waits after that for resolvers to be in
	// the path again. Defaults to DefaultPathTimeout.
	PathTimeout time.Duration
	// Logger is the base of the log lines about the service.
	Logger klog.Logger
	// Finish is told of each request and connection of the service when it has
	// ended. It must not keep the record. Optional.
	Finish func(*accesslog.Record)
	// Closed is called when the service was closed. Optional.
	Closed func()
	// Traffic counts the requests and connections. Close ends it. Optional.
	Traffic *activity.Tracker
	// Tasks runs the workers, so that a panic of one does not end the process.
	// Optional.
	Tasks *task.Runner
	// Workers returns what runs while something is held for the service.
	Workers func(*Service) []Worker
}

// Service is the traffic and the pods of one ElastiService. It is safe for
// concurrent use.
type Service struct {
	// Namespace and Name name the ElastiService, PublicService its Service.
	Namespace, Name, PublicService string
	// UID is that of the ElastiService.
	UID types.UID

	queue     *hold.Queue
	traffic   *activity.Tracker
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

// New returns a Service. Close ends it.
func New(options Options) *Service {
	if options.Traffic == nil {
		options.Traffic = activity.NewTracker()
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
		logger:        options.Logger.WithValues("namespace", options.Namespace, "elastiservice", options.Name),
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

// Finish tells that a request or connection of the service has ended.
func (s *Service) Finish(record *accesslog.Record) {
	if s.finish != nil {
		s.finish(record)
	}
}

// Config returns the current configuration.
func (s *Service) Config() *Config { return s.config.Load() }

// Queue returns where the service's traffic waits.
func (s *Service) Queue() *hold.Queue { return s.queue }

// Memory returns what counts the bytes that the service's traffic costs.
func (s *Service) Memory() *memory.Account { return s.queue.Memory() }

// Traffic returns what counts the service's requests and connections.
func (s *Service) Traffic() *activity.Tracker { return s.traffic }

// Leaving reports whether clients should move to the pods: resolvers are not
// in the path of new connections, and are not meant to be.
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

// Apply changes the configuration. It must not be called twice at a time.
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

// SetPods replaces what the EndpointSlices say about the pods.
func (s *Service) SetPods(pods []endpoint.Description) {
	s.queue.SetPods(pods)
	s.path.setPods(pods)
}

// Close ends the wait of what is held, and returns when nothing runs for the
// service any more but what was released before.
func (s *Service) Close() {
	s.keepAwake.stop()
	s.traffic.Close()
	s.queue.Close()
	if s.closed != nil {
		s.closed()
	}
}

// KeepAwake wakes the target, and lets it stay awake, for a time from now on as
// if something was held that long.
func (s *Service) KeepAwake(period time.Duration) {
	s.keepAwake.extend(s.queue, period)
}

// work runs the workers for as long as ctx lasts.
func (s *Service) work(ctx context.Context) {
	runAll(klog.NewContext(ctx, s.logger), s.tasks, s.workers, s.queue.Changed())
}
