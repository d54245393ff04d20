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

// Package route keeps the services of a resolver, and which port belongs to
// which of them, as the API server tells it: one Service for each
// ElastiService, one listener for each of its proxy ports, and the pods that
// the EndpointSlices of its private Service list.
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

// Options are what a Table is made of.
type Options struct {
	// ElastiServices and EndpointSlices are informers that the caller starts
	// after New. The EndpointSlices are those of private Services.
	ElastiServices elastiinformers.ElastiServiceInformer
	EndpointSlices discoveryinformers.EndpointSliceInformer
	// Listeners opens and closes ports.
	Listeners Listeners
	// Linger is how long a port that is not wanted any more goes on accepting
	// connections, and sending them to the pods that were last known: it takes
	// the data plane of the cluster that long to send them elsewhere.
	Linger time.Duration
	// SharedPort is the proxy port that several services share. 0: none.
	SharedPort int32
	// Conflicts is told how many claims on proxy ports stand back because an
	// earlier one has the port. Optional.
	Conflicts func(int)
	// Logger is the base of log lines.
	Logger klog.Logger
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// NewService makes the Service of an ElastiService.
	NewService func(object *v1alpha1.ElastiService, config *service.Config) *service.Service
}

// Table follows the ElastiServices.
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
	// retired are the services that are not wanted any more, in the order in which
	// they end.
	retired []retiree
}

// entry is what is kept for one ElastiService.
type entry struct {
	uid     types.UID
	service *service.Service
	// generation is that of the spec that was compiled.
	generation int64
}

// retiree is a service that is not wanted any more, and lingers as long as its
// ports do.
type retiree struct {
	service *service.Service
	until   time.Time
}

// expiry is the key in the queue that stands for the end of what lingers. There
// is no ElastiService without a name.
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
		ports:   newPorts(&options),
	}
	if err := t.observe(options.ElastiServices.Informer(), privateServiceOfObject, t.objectChanged); err != nil {
		return nil, fmt.Errorf("observing ElastiServices: %w", err)
	}
	if err := t.observe(options.EndpointSlices.Informer(), privateServiceOfSlice, t.sliceChanged); err != nil {
		return nil, fmt.Errorf("observing EndpointSlices: %w", err)
	}
	return t, nil
}

// observe indexes what an informer has, and calls changed with each old and new
// state of it.
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
	return []string{es.Namespace + "/" + es.Status.PrivateService}, nil
}

func privateServiceOfSlice(object any) ([]string, error) {
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil, nil
	}
	return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}, nil
}

func (t *Table) objectChanged(object any) {
	if es, ok := object.(*v1alpha1.ElastiService); ok {
		t.queue.Add(types.NamespacedName{Namespace: es.Namespace, Name: es.Name})
	}
}

func (t *Table) sliceChanged(object any) {
	keys, _ := privateServiceOfSlice(object)
	for _, key := range keys {
		objects, err := t.objects.ByIndex(byPrivateService, key)
		if err != nil {
			// Only an index that does not exist fails, and New has added it.
			continue
		}
		for _, object := range objects {
			t.objectChanged(object)
		}
	}
}

// Ready reports whether every ElastiService that existed at the start is known
// and all its ports have been opened.
func (t *Table) Ready() bool { return t.ready.Load() }

// Run follows the ElastiServices until ctx ends, and then closes every port and
// service.
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
	// Of two claims on a port, that of the older ElastiService is the first.
	slices.SortFunc(initial, func(a, b *v1alpha1.ElastiService) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	// incomplete are those of the initial ones some ports of which are not open.
	incomplete := sets.New[types.NamespacedName]()
	for _, es := range initial {
		if key := (types.NamespacedName{Namespace: es.Namespace, Name: es.Name}); !t.process(ctx, key) {
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

// process makes what is kept for one ElastiService true, or has that tried
// again. It reports whether it is.
func (t *Table) process(ctx context.Context, key types.NamespacedName) bool {
	if key == expiry {
		t.expire()
		return true
	}
	defer t.scheduleExpiry()
	if err := t.sync(ctx, key); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot serve all ports of an ElastiService, will try again", "elastiservice", key)
		t.queue.AddRateLimited(key)
		return false
	}
	t.queue.Forget(key)
	return true
}

func (t *Table) sync(ctx context.Context, key types.NamespacedName) error {
	object, err := t.lister.ElastiServices(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		t.retire(key)
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking up the ElastiService: %w", err)
	}
	kept := t.keep(ctx, key, object)
	endpointSlices, err := t.endpointSlices(object)
	if err != nil {
		return err
	}
	pods := podsOf(endpointSlices)
	if len(pods) > 0 || object.DeletionTimestamp.IsZero() {
		// The slices of an ElastiService that is being deleted go first, the pods
		// stay.
		kept.service.SetPods(pods)
	}
	return t.ports.set(kept.service, portsOfService(object))
}

// keep makes the entry of an ElastiService, or brings it up to date.
func (t *Table) keep(ctx context.Context, key types.NamespacedName, object *v1alpha1.ElastiService) *entry {
	kept := t.entries[key]
	if kept != nil && (kept.uid != object.UID || kept.service.PublicService != object.Spec.Service) {
		t.retire(key)
		kept = nil
	}
	if kept != nil && kept.generation == object.Generation {
		kept.service.Apply(configOf(object, kept.service.Config().ProbeResponses))
		return kept
	}
	rules, err := proberesponse.Compile(object.Spec.ProbeResponse)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A rule of an ElastiService has no effect", "elastiservice", key)
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

func (t *Table) endpointSlices(object *v1alpha1.ElastiService) ([]*discoveryv1.EndpointSlice, error) {
	if object.Status.PrivateService == "" {
		return nil, nil
	}
	found, err := t.slices.ByIndex(byPrivateService, object.Namespace+"/"+object.Status.PrivateService)
	if err != nil {
		return nil, fmt.Errorf("looking up the EndpointSlices of Service %s: %w", object.Status.PrivateService, err)
	}
	endpointSlices := make([]*discoveryv1.EndpointSlice, 0, len(found))
	for _, item := range found {
		endpointSlices = append(endpointSlices, item.(*discoveryv1.EndpointSlice))
	}
	return endpointSlices, nil
}
