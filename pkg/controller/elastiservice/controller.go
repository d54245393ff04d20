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

package elastiservice

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/startup"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/statuswriter"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
)

// resolverCheck is the key in the queue that stands for a check of the resolvers
// instead of an ElastiService.
var resolverCheck = types.NamespacedName{}

// nextWakes is the key in the queue that stands for admitting the next targets of wakeQueue.
var nextWakes = types.NamespacedName{Name: "next wakes"}

// nextPolls is the key in the queue that stands for polling the next targets that no watch
// reports.
var nextPolls = types.NamespacedName{Name: "next polls"}

// Controller keeps the cluster in the state that each ElastiService specifies. Make it with
// New and run it once.
type Controller struct {
	options Options

	elasti   versioned.Interface
	host     kubernetes.Interface
	scaling  Scaling
	recorder events.EventRecorder
	clock    clock.WithTicker
	metrics  *Metrics

	informers    *informers.Manager
	targets      *target.Watches
	targetKeys   *resources.TargetKeys
	autoscalers  *target.AutoscalerWatches
	ports        *proxyports.Allocator
	resolvers    *resolvers.Tracker
	liveness     *resolvers.Liveness
	portChecker  *resolvers.PortChecker
	states       *states
	scaleDowns   *scaleDowns
	failedStarts *failedStarts
	deletions    *deletions
	// wakeQueue limits the rate of the wakes of an outage of the resolvers, and of what
	// the storage has lost.
	wakeQueue *wakeQueue
	statuses  *statuswriter.Writer
	inspector *startup.Inspector

	// polls are the ElastiServices whose targets no watch reports.
	polls *polls
	// unsynced are the ElastiServices that wait for the caches of their namespaces.
	unsynced *unsynced
	// slicesTried records whether the EndpointSlices of each namespace are cached, or cannot be.
	slicesTried *tried

	// Set by Run before anything else runs.

	logger         klog.Logger
	elastiServices *scopedWatch
	services       *scopedWatch
	endpointSlices *scopedWatch
	resolverSlices *informers.Handle
	queue          *queue
}

// New returns a controller that does nothing until it is run.
func New(options Options) (*Controller, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	c := &Controller{
		options:      options,
		elasti:       options.Elasti,
		host:         options.Host,
		scaling:      options.Scaling,
		recorder:     options.Recorder,
		clock:        options.Clock,
		metrics:      options.Metrics,
		informers:    informers.New(informers.Options{Clock: options.Clock, Metrics: options.InformerMetrics}),
		states:       newStates(),
		scaleDowns:   newScaleDowns(),
		failedStarts: newFailedStarts(),
		deletions:    newDeletions(),
		unsynced:     newUnsynced(),
		slicesTried:  newTried(options.Namespaces),
		polls:        newPolls(),

		targetKeys: options.TargetKeys,
		wakeQueue:  newWakeQueue(options.WakeRate, options.Metrics.waitForWake),
	}
	c.inspector = startup.NewInspector(startup.Options{Host: options.Host, Scales: options.Scaling, Enqueue: c.enqueue, Clock: options.Clock})
	c.statuses = statuswriter.New(statuswriter.Options{
		Statuses: options.Statuses,
		Clock:    options.Clock,
		Watched:  c.watchedVersion,
		Written:  c.wroteStatus,
		Failed:   c.statusFailed,
		Waiting:  c.metrics.queueLength(queueStatus),
	})
	c.ports = proxyports.New(proxyports.Options{
		Range: options.ProxyPortRange, Claims: options.Claims, Freed: c.enqueue, Refers: c.refersTo, Used: c.metrics.proxyPortsUsed, Clock: options.Clock,
	})
	c.targets = target.NewWatches(target.WatchesOptions{
		Informers:       c.informers,
		Dynamic:         options.HostDynamic,
		Scaling:         options.Scaling,
		Scope:           c.scope,
		Enqueue:         c.enqueue,
		EnqueueUrgently: c.enqueueUrgently,
	})
	c.autoscalers = target.NewAutoscalerWatches(target.AutoscalerWatchesOptions{
		Informers: c.informers,
		Dynamic:   options.HostDynamic,
		Scope:     c.scope,
		Users:     c.usersOfAutoscaler,
		Enqueue:   c.enqueue,
	})
	return c, nil
}

// Run works until ctx ends, and returns when everything that it started has
// ended.
func (c *Controller) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithName("elastiservice-controller")
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logger))

	c.metrics.started(c.options.ProxyPortRange.Size)
	defer c.metrics.stopped()
	var running sync.WaitGroup
	defer running.Wait()
	c.queue = newQueue(c.clock, c.metrics.queueLength(queueSync))
	defer c.queue.ShutDown()
	defer cancel()

	c.liveness = resolvers.NewLiveness(c.options.DialResolver, func(watch func()) { running.Go(watch) }, func() { c.queue.Add(resolverCheck) })
	c.resolvers = resolvers.NewTracker(c.clock, c.options.ResolverGrace, c.options.ResolversChanged, c.liveness.Alive)
	c.portChecker = resolvers.NewPortChecker(c.options.DialResolver, c.resolvers.HealthAddress, c.clock)
	c.logger = logger
	if err := c.startWatches(); err != nil {
		return fmt.Errorf("watching the cluster: %w", err)
	}
	running.Go(func() { _ = c.informers.Run(ctx) })
	running.Go(func() { c.statuses.Run(ctx, c.options.Workers) })
	running.Go(func() { c.inspector.Run(ctx) })
	started := c.clock.Now()
	// What resolver slices refer to counts for the proxy ports, as far as it can be read.
	if !awaitSynced(ctx, c.elastiServices.handles()...) || !c.slicesTried.await(ctx) || c.restoreProxyPorts(ctx) != nil {
		return nil
	}
	running.Go(func() { c.ports.Run(ctx) })
	if len(c.options.Namespaces) > 0 {
		running.Go(func() { c.leaveNamespaces(ctx) })
	}
	if !awaitSynced(ctx, c.resolverSlices) {
		return nil
	}
	logger.Info("Caches of ElastiServices and resolvers are synced", "took", c.clock.Since(started))

	c.resolversChanged(ctx)
	c.queue.Add(resolverCheck)
	c.queue.Run(ctx, c.options.Workers, c.work)
	return nil
}

func (c *Controller) startWatches() error {
	var err error
	if c.elastiServices, err = c.watch(c.elastiServiceSource); err != nil {
		return err
	}
	if c.services, err = c.watch(c.serviceSource); err != nil {
		return err
	}
	if c.endpointSlices, err = c.watch(c.endpointSliceSource); err != nil {
		return err
	}
	if c.inScope(c.options.ResolverNamespace) {
		c.resolverSlices = c.endpointSlices.in(c.options.ResolverNamespace)
		return nil
	}
	c.resolverSlices, err = c.informers.Acquire(c.resolverSliceSource())
	return err
}

// awaitSynced waits until all caches are synced, and reports whether they are: ctx may end
// before.
func awaitSynced(ctx context.Context, handles ...*informers.Handle) bool {
	for _, handle := range handles {
		select {
		case <-ctx.Done():
			return false
		case <-handle.Synced():
		}
	}
	return true
}

// work works on one key of the queue.
func (c *Controller) work(ctx context.Context, key types.NamespacedName) {
	switch key {
	case resolverCheck:
		c.checkResolvers(ctx)
		return
	case nextWakes:
		c.admitWakes()
		return
	case nextPolls:
		c.pollTargets()
		return
	}
	err := c.sync(ctx, key)
	switch {
	case err == nil:
		c.queue.Forget(key)
	case ctx.Err() != nil:
	default:
		if errorClass(err) != errorConflict {
			klog.FromContext(ctx).Error(err, "Failed to sync ElastiService, will retry", "elastiService", key)
		}
		c.queue.AddRateLimited(key)
	}
}
