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

// Package route keeps the services and ports of a resolver in sync with the API server:
// one Service for each ElastiService, one listener for each of its proxy ports, and the
// pods that the EndpointSlices of its private Service list.
//
// It knows nothing of what is held. Begin with Table.
package route

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elastiinformers "github.com/truefoundry/elasti-apiserver/pkg/generated/informers/externalversions/elasti/v1alpha1"
	elastilisters "github.com/truefoundry/elasti-apiserver/pkg/generated/listers/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/proberesponse"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// byPrivateService is the name of the index of both informers: namespace and
// name of the private Service.
const byPrivateService = "elasti-private-service"

// A port that cannot be opened is tried again after 10 ms, 20 ms, … 5 s.
const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Options configure a Table.
type Options struct {
	// ElastiServices and EndpointSlices are informers that the caller starts
	// after New. The EndpointSlices are those of private Services.
	ElastiServices elastiinformers.ElastiServiceInformer
	EndpointSlices discoveryinformers.EndpointSliceInformer
	// Listeners opens and closes ports.
	Listeners Listeners
	// Linger is how long a port without claims still accepts connections and forwards
	// them to the last known pods: the propagation delay until the data plane of the
	// cluster sends them elsewhere.
	Linger time.Duration
	// SharedPort is the proxy port that several services share. 0: none.
	SharedPort int32
	// Conflicts is called with the number of claims on proxy ports that conflict with an
	// earlier claim. Optional.
	Conflicts func(int)
	// Logger is the base of log lines.
	Logger klog.Logger
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// NewService returns the Service of an ElastiService.
	NewService func(object *v1alpha1.ElastiService, config *service.Config) *service.Service
}

// Table syncs services and ports with the ElastiServices.
type Table struct {
	// Immutable.
	options Options
	lister  elastilisters.ElastiServiceLister
	objects cache.Indexer
	slices  cache.Indexer
	synced  []cache.InformerSynced
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName]
	ready   atomic.Bool

	// Owned by Run.
	entries map[types.NamespacedName]*entry
	ports   *ports
	// orphans are the services of deleted ElastiServices whose private Services are still
	// there, by private Service.
	orphans map[types.NamespacedName]*service.Service
	// draining has the services of deleted ElastiServices in the order in which they end.
	draining []drainingService
}

// entry is the state of one ElastiService.
type entry struct {
	uid     types.UID
	service *service.Service
	// private is the private Service. Its name is empty when there is none.
	private types.NamespacedName
	// generation is that of the compiled spec.
	generation int64
}

// drainingService is the service of a deleted ElastiService, which lingers as long as its
// ports.
type drainingService struct {
	service *service.Service
	until   time.Time
}

// expiry is the key in the queue for a call of expire. No ElastiService has an empty name.
// The other keys are those of ElastiServices, and of private Services that none has.
var expiry = types.NamespacedName{}

// New returns a Table. It fails when the informers were started before.
func New(options Options) (*Table, error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	t := &Table{
		options: options,
		lister:  options.ElastiServices.Lister(),
		objects: options.ElastiServices.Informer().GetIndexer(),
		slices:  options.EndpointSlices.Informer().GetIndexer(),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, lastRetry),
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Clock: options.Clock}),
		entries: map[types.NamespacedName]*entry{},
		orphans: map[types.NamespacedName]*service.Service{},
		ports:   newPorts(&options),
	}
	if err := t.observe(options.ElastiServices.Informer(), privateServiceOfObject, t.objectChanged); err != nil {
		return nil, fmt.Errorf("observing ElastiServices: %w", err)
	}
	if err := t.observe(options.EndpointSlices.Informer(), serviceOfSliceObject, t.sliceChanged); err != nil {
		return nil, fmt.Errorf("observing EndpointSlices: %w", err)
	}
	return t, nil
}

// observe adds an index to an informer, and calls changed with each old and new state of
// an object.
func (t *Table) observe(informer cache.SharedIndexInformer, index cache.IndexFunc, changed func(any)) error {
	if err := informer.AddIndexers(cache.Indexers{byPrivateService: index}); err != nil {
		return err
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed,
		UpdateFunc: func(before, after any) {
			changed(before)
			changed(after)
		},
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			changed(object)
		},
	})
	if err != nil {
		return err
	}
	t.synced = append(t.synced, registration.HasSynced)
	return nil
}

func privateServiceOfObject(object any) ([]string, error) {
	es, ok := object.(*v1alpha1.ElastiService)
	if !ok || es.Status.PrivateService == "" {
		return nil, nil
	}
	return []string{privateServiceOf(es).String()}, nil
}

// privateServiceOf returns the private Service of an ElastiService, with an empty name when
// it has none.
func privateServiceOf(es *v1alpha1.ElastiService) types.NamespacedName {
	return types.NamespacedName{Namespace: es.Namespace, Name: es.Status.PrivateService}
}

func serviceOfSliceObject(object any) ([]string, error) {
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil, nil
	}
	// Resolvers watch the slices of private Services only.
	return []string{v1alpha1.SliceServiceKey(slice).String()}, nil
}

func (t *Table) objectChanged(object any) {
	if es, ok := object.(*v1alpha1.ElastiService); ok {
		t.queue.Add(cache.MetaObjectToName(es).AsNamespacedName())
	}
}

func (t *Table) sliceChanged(object any) {
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	private := v1alpha1.SliceServiceKey(slice)
	objects, err := t.objects.ByIndex(byPrivateService, private.String())
	if err != nil {
		// ByIndex fails only without the index, which New has added.
		return
	}
	for _, object := range objects {
		t.objectChanged(object)
	}
	if len(objects) == 0 {
		// It may be that of an orphan, which only Run knows.
		t.queue.Add(private)
	}
}

// Ready reports whether every ElastiService that existed at the start was synced and all
// its ports are open.
func (t *Table) Ready() bool { return t.ready.Load() }

// Run syncs the ElastiServices until ctx ends, and then closes all ports and services.
func (t *Table) Run(ctx context.Context) error {
	defer t.closeAll()
	defer t.queue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), t.synced...) {
		return nil
	}
	initial, err := t.lister.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing ElastiServices: %w", err)
	}
	// Of two claims on a port, that of the older ElastiService must be the first.
	slices.SortFunc(initial, func(a, b *v1alpha1.ElastiService) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	// incomplete has the initial ElastiServices some ports of which are not open.
	incomplete := sets.New[types.NamespacedName]()
	for _, es := range initial {
		if key := cache.MetaObjectToName(es).AsNamespacedName(); !t.process(ctx, key) {
			incomplete.Insert(key)
		}
	}
	t.readyWithout(ctx, incomplete)

	stop := context.AfterFunc(ctx, t.queue.ShutDown)
	defer stop()
	for {
		key, shutdown := t.queue.Get()
		if shutdown {
			return nil
		}
		if t.process(ctx, key) && incomplete.Has(key) {
			t.readyWithout(ctx, incomplete.Delete(key))
		}
		t.queue.Done(key)
	}
}

// readyWithout makes the table ready when nothing is incomplete.
func (t *Table) readyWithout(ctx context.Context, incomplete sets.Set[types.NamespacedName]) {
	if incomplete.Len() == 0 {
		t.ready.Store(true)
		klog.FromContext(ctx).Info("Ready for the traffic of all ElastiServices", "count", len(t.entries))
	}
}

// process syncs one ElastiService, and retries later on failure. It reports whether the
// sync succeeded.
func (t *Table) process(ctx context.Context, key types.NamespacedName) bool {
	if key == expiry {
		t.expire()
		return true
	}
	defer t.scheduleExpiry()
	t.syncOrphan(key)
	if err := t.sync(ctx, key); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to serve all ports of an ElastiService, will retry", "elastiService", key)
		t.queue.AddRateLimited(key)
		return false
	}
	t.queue.Forget(key)
	return true
}

func (t *Table) sync(ctx context.Context, key types.NamespacedName) error {
	object, err := t.lister.ElastiServices(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		t.drain(key)
		return nil
	}
	if err != nil {
		return fmt.Errorf("getting the ElastiService: %w", err)
	}
	kept := t.keep(ctx, key, object)
	kept.private = privateServiceOf(object)
	// What another ElastiService had is this one's now.
	t.syncOrphan(kept.private)
	endpointSlices, err := t.endpointSlices(kept.private)
	if err != nil {
		return err
	}
	pods := podsOf(endpointSlices)
	if len(pods) > 0 || object.DeletionTimestamp.IsZero() {
		// The slices of an ElastiService that is being deleted are deleted first; its pods
		// stay.
		kept.service.SetPods(pods)
	}
	return t.ports.set(kept.service, portsOfService(object))
}

// keep creates or updates the entry of an ElastiService.
func (t *Table) keep(ctx context.Context, key types.NamespacedName, object *v1alpha1.ElastiService) *entry {
	kept := t.entries[key]
	if kept != nil && (kept.uid != object.UID || kept.service.PublicService != object.Spec.Service) {
		t.drain(key)
		kept = nil
	}
	if kept != nil && kept.generation == object.Generation {
		kept.service.Apply(configOf(object, kept.service.Config().ProbeResponses))
		return kept
	}
	rules, err := proberesponse.Compile(object.Spec.ProbeResponse)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A rule of an ElastiService has no effect", "elastiService", key)
	}
	config := configOf(object, rules)
	if kept == nil {
		kept = &entry{
			uid:     object.UID,
			service: t.options.NewService(object, config),
		}
		t.entries[key] = kept
	} else {
		kept.service.Apply(config)
	}
	kept.generation = object.Generation
	return kept
}

// endpointSlices returns the EndpointSlices of a private Service.
func (t *Table) endpointSlices(private types.NamespacedName) ([]*discoveryv1.EndpointSlice, error) {
	if private.Name == "" {
		return nil, nil
	}
	found, err := t.slices.ByIndex(byPrivateService, private.String())
	if err != nil {
		return nil, fmt.Errorf("listing the EndpointSlices of Service %s: %w", private.Name, err)
	}
	endpointSlices := make([]*discoveryv1.EndpointSlice, 0, len(found))
	for _, item := range found {
		// The EndpointSlice controller of Kubernetes leaves a slice alone that is being
		// deleted: with a finalizer a user would keep endpoints that it would remove.
		if slice := item.(*discoveryv1.EndpointSlice); slice.DeletionTimestamp.IsZero() {
			endpointSlices = append(endpointSlices, slice)
		}
	}
	return endpointSlices, nil
}
