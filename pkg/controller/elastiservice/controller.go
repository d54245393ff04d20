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
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/statuswriter"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
)

// fieldManager is the name under which the controller writes.
const fieldManager = "elasti-apiserver"

// targetRetry is how often a target is looked up when no watch tells of it: its
// kind is not served, or a server does not answer or refuses.
const targetRetry = 5 * time.Second

// resolverCheck is the key in the queue that stands for a look at the
// resolvers instead of an ElastiService.
var resolverCheck = types.NamespacedName{}

// Controller keeps the cluster as each ElastiService wants it. Make it with
// New and run it once.
type Controller struct {
	options Options

	elasti   versioned.Interface
	host     kubernetes.Interface
	scaling  Scaling
	recorder events.EventRecorder
	clock    clock.WithTicker
	metrics  *Metrics

	informers   *informers.Manager
	targets     *target.Watches
	autoscalers *target.AutoscalerWatches
	ports       *proxyports.Allocator
	resolvers   *resolvers.Tracker
	pulses      *resolvers.Liveness
	listeners   *resolvers.PortChecker
	memories    *memories
	statuses    *statuswriter.Writer

	// Set by Run before anything else runs.

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
		options:   options,
		elasti:    options.Elasti,
		host:      options.Host,
		scaling:   options.Scaling,
		recorder:  options.Recorder,
		clock:     options.Clock,
		metrics:   options.Metrics,
		informers: informers.New(informers.Options{Clock: options.Clock, Metrics: options.InformerMetrics}),
		listeners: resolvers.NewPortChecker(options.DialResolver, options.Clock),
		memories:  newMemories(),
	}
	c.statuses = statuswriter.New(statuswriter.Options{
		Elasti:  options.Elasti,
		Clock:   options.Clock,
		Watched: c.watchedVersion,
		Written: c.wroteStatus,
		Failed:  c.statusFailed,
	})
	c.ports = proxyports.New(options.ProxyPortRange, options.Clock, c.enqueue)
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

	var running sync.WaitGroup
	defer running.Wait()
	c.queue = newQueue(c.clock)
	defer c.queue.ShutDown()
	defer cancel()

	c.pulses = resolvers.NewLiveness(c.options.DialResolver, func(feel func()) { running.Go(feel) }, func() { c.queue.Add(resolverCheck) })
	c.resolvers = resolvers.NewTracker(c.clock, c.options.ResolverGrace, c.options.ResolversChanged, c.pulses.Alive)
	handles, err := c.startWatches()
	if err != nil {
		return fmt.Errorf("watching the cluster: %w", err)
	}
	running.Go(func() { _ = c.informers.Run(ctx) })
	running.Go(func() { c.statuses.Run(ctx, c.options.Workers) })
	started := c.clock.Now()
	for _, handle := range handles {
		select {
		case <-ctx.Done():
			return nil
		case <-handle.Synced():
		}
	}
	logger.Info("The objects of the cluster are known", "took", c.clock.Since(started))

	c.resolversChanged(ctx)
	c.restoreProxyPorts()
	c.queue.Add(resolverCheck)
	for range c.options.Workers {
		running.Go(func() {
			for c.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	return nil
}

func (c *Controller) startWatches() ([]*informers.Handle, error) {
	var err error
	if c.elastiServices, err = c.watch(c.elastiServiceSource); err != nil {
		return nil, err
	}
	if c.services, err = c.watch(c.serviceSource); err != nil {
		return nil, err
	}
	if c.endpointSlices, err = c.watch(c.endpointSliceSource); err != nil {
		return nil, err
	}
	if c.inScope(c.options.ResolverNamespace) {
		c.resolverSlices = c.endpointSlices.in(c.options.ResolverNamespace)
	} else if c.resolverSlices, err = c.informers.Acquire(c.resolverSliceSource()); err != nil {
		return nil, err
	}
	handles := []*informers.Handle{c.resolverSlices}
	for _, watches := range []*scopedWatch{c.elastiServices, c.services, c.endpointSlices} {
		handles = append(handles, watches.handles()...)
	}
	return handles, nil
}

// work takes one key off the queue. It returns false when the queue is shut down.
func (c *Controller) work(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	if ctx.Err() != nil {
		return true
	}
	if key == resolverCheck {
		c.checkResolvers(ctx)
		return true
	}
	err := c.sync(ctx, key)
	switch {
	case err == nil:
		c.queue.Forget(key)
	case ctx.Err() != nil:
	default:
		if errorClass(err) != errorConflict {
			klog.FromContext(ctx).Error(err, "Working on an ElastiService failed, it is tried again", "elastiService", key)
		}
		c.queue.AddRateLimited(key)
	}
	return true
}

func (c *Controller) enqueue(key types.NamespacedName) { c.queue.Add(key) }

func (c *Controller) enqueueUrgently(key types.NamespacedName) { c.queue.AddUrgent(key) }

func (c *Controller) elastiServiceChanged(before, after any) {
	old, _ := before.(*v1alpha1.ElastiService)
	current, _ := after.(*v1alpha1.ElastiService)
	c.options.Changed(old, current)
	for _, object := range []any{before, after} {
		elastiService, ok := object.(*v1alpha1.ElastiService)
		if !ok {
			continue
		}
		c.enqueue(resources.KeyOf(elastiService))
		if before == nil || after == nil || before.(*v1alpha1.ElastiService).Spec.Service != after.(*v1alpha1.ElastiService).Spec.Service {
			// Whoever named the same Service may have it now, or lose it.
			c.enqueueByService(types.NamespacedName{Namespace: elastiService.Namespace, Name: elastiService.Spec.Service}, c.enqueue)
		}
	}
}

func (c *Controller) serviceChanged(before, after any) {
	service, ok := after.(*corev1.Service)
	if !ok {
		service = before.(*corev1.Service)
	}
	name := types.NamespacedName{Namespace: service.Namespace, Name: service.Name}
	c.enqueueByService(name, c.enqueue)
	c.enqueueByPrivateService(name)
	for _, key := range resources.OwnerOf(&service.ObjectMeta) {
		c.enqueue(key)
	}
}

func (c *Controller) endpointSliceChanged(before, after any) {
	old, _ := before.(*observedSlice)
	current, _ := after.(*observedSlice)
	for _, slice := range []*observedSlice{old, current} {
		if slice == nil {
			continue
		}
		if slice.service() == c.resolverService() {
			c.queue.Add(resolverCheck)
		}
		if !slice.ours() && old != nil && current != nil && old.ready == current.ready && old.service() == current.service() {
			continue
		}
		switch {
		case slice.Labels[v1alpha1.LabelRole] == v1alpha1.RolePrivate:
			c.enqueueByPrivateService(slice.service())
		case !slice.ours() && hasReady(old) != hasReady(current):
			c.enqueueByService(slice.service(), c.enqueueUrgently)
		default:
			c.enqueueByService(slice.service(), c.enqueue)
		}
		for _, key := range resources.OwnerOf(&slice.ObjectMeta) {
			c.enqueue(key)
		}
	}
}

// hasReady tells whether a slice, which may be nil, has a ready endpoint.
func hasReady(slice *observedSlice) bool { return slice != nil && slice.ready > 0 }

func (c *Controller) enqueueByService(service types.NamespacedName, enqueue func(types.NamespacedName)) {
	for _, elastiService := range indexed[*v1alpha1.ElastiService](c.elastiServices.in(service.Namespace), byService, service) {
		enqueue(resources.KeyOf(elastiService))
	}
}

func (c *Controller) enqueueByPrivateService(service types.NamespacedName) {
	for _, elastiService := range indexed[*v1alpha1.ElastiService](c.elastiServices.in(service.Namespace), byPrivateService, service) {
		c.enqueue(resources.KeyOf(elastiService))
	}
}

// watchedVersion returns the resource version that the watch has of an
// ElastiService, empty when it has none.
func (c *Controller) watchedVersion(key types.NamespacedName) string {
	if object, ok := c.elastiServices.in(key.Namespace).Get(key.Namespace, key.Name); ok {
		return object.(*v1alpha1.ElastiService).ResourceVersion
	}
	return ""
}

func (c *Controller) enqueueAll() {
	for _, handle := range c.elastiServices.handles() {
		for _, object := range handle.List() {
			c.enqueue(resources.KeyOf(object.(*v1alpha1.ElastiService)))
		}
	}
}

func (c *Controller) resolverService() types.NamespacedName {
	return types.NamespacedName{Namespace: c.options.ResolverNamespace, Name: c.options.ResolverService}
}

// resolversChanged takes in the slices of the resolvers' Service and reports
// whether the ready resolvers changed.
func (c *Controller) resolversChanged(ctx context.Context) bool {
	return c.resolvers.Update(func() []*discoveryv1.EndpointSlice {
		var found []*discoveryv1.EndpointSlice
		defer func() { c.pulses.Watch(ctx, found) }()
		for _, slice := range indexed[*observedSlice](c.resolverSlices, byService, c.resolverService()) {
			if slice.slice != nil && !slice.ours() {
				found = append(found, slice.slice)
			}
		}
		return found
	})
}

// checkResolvers sees to it that everybody hears of resolvers that come, go,
// or have been gone for the grace period.
func (c *Controller) checkResolvers(ctx context.Context) {
	changed := c.resolversChanged(ctx)
	state, since, wait := c.resolvers.Availability()
	if state == resolvers.Missing {
		c.queue.AddAfter(resolverCheck, wait)
	}
	if state == resolvers.Unavailable {
		klog.FromContext(ctx).Info("No resolver is ready: sleeping targets are woken", "since", since)
	}
	if changed || state == resolvers.Unavailable {
		c.enqueueAll()
	}
}
