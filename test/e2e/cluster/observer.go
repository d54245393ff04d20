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

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/informers/externalversions"
)

// Change is a kind of change that an Observer records.
type Change string

const (
	// Scaled: spec.replicas of a Deployment has changed. The detail is the number.
	Scaled Change = "Scaled"
	// EndpointReady: the Service's own EndpointSlices have a ready endpoint, and had none.
	EndpointReady Change = "EndpointReady"
	// EndpointListed: the Service's own EndpointSlices have an endpoint that is
	// not ready yet, and had none.
	EndpointListed Change = "EndpointListed"
	// EndpointLost: the Service's own EndpointSlices have no ready endpoint any more.
	EndpointLost Change = "EndpointLost"
	// ResolversAdded: the Service has a resolver slice, and had none.
	ResolversAdded Change = "ResolversAdded"
	// ResolversRemoved: the Service has no resolver slice any more.
	ResolversRemoved Change = "ResolversRemoved"
	// ModeChanged: an ElastiService has another mode. The detail is the mode.
	ModeChanged Change = "ModeChanged"
	// SleepRequested: an ElastiService is to be put to sleep.
	SleepRequested Change = "SleepRequested"
	// ActivityReported: a resolver reports the traffic of an ElastiService for the
	// first time. The detail is the resolver.
	ActivityReported Change = "ActivityReported"
	// PodCreated: there is a pod. This and the following are recorded with IncludePods
	// alone.
	PodCreated Change = "PodCreated"
	// PodTerminating: a pod has a deletionTimestamp.
	PodTerminating Change = "PodTerminating"
	// PodDeleted: a pod is deleted.
	PodDeleted Change = "PodDeleted"
	// PodScheduled: a pod has a node. The detail is its name.
	PodScheduled Change = "PodScheduled"
	// PodRunning: all containers of a pod run. The detail is its address.
	PodRunning Change = "PodRunning"
	// PodReady: the kubelet reports a pod as ready.
	PodReady Change = "PodReady"
)

// Moment is one change and when this process observed it. The times in API objects
// have whole seconds only; a watch on the same machine is more precise.
type Moment struct {
	At     time.Time
	Change Change
	// Name of the Deployment, Service, ElastiService or pod.
	Name   string
	Detail string
}

// String returns the time of day and the change.
func (m Moment) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", m.At.Format(time.StampMilli), m.Name, m.Change, m.Detail))
}

// Observer watches one namespace and records what changes. It is safe for concurrent use.
type Observer struct {
	host   informers.SharedInformerFactory
	elasti externalversions.SharedInformerFactory
	// handled report whether everything that existed was recorded.
	handled []cache.InformerSynced

	mu      sync.Mutex
	moments []Moment
	// grown is closed, and replaced, when a moment is added.
	grown chan struct{}
	// listed and ready hold, for each Service, its EndpointSlices with an
	// endpoint, and with a ready one; resolvers, its resolver slices.
	listed, ready, resolvers map[string]map[string]bool
}

// NewObserver prepares to watch a namespace.
func (c *Cluster) NewObserver(namespace string) (*Observer, error) {
	o := &Observer{
		host:      informers.NewSharedInformerFactoryWithOptions(c.Host, 0, informers.WithNamespace(namespace)),
		elasti:    externalversions.NewSharedInformerFactoryWithOptions(c.Elasti, 0, externalversions.WithNamespace(namespace)),
		grown:     make(chan struct{}),
		listed:    map[string]map[string]bool{},
		ready:     map[string]map[string]bool{},
		resolvers: map[string]map[string]bool{},
	}
	return o, errors.Join(
		onChange(o, o.host.Apps().V1().Deployments().Informer(), o.deploymentChanged),
		onChange(o, o.host.Discovery().V1().EndpointSlices().Informer(), o.sliceChanged),
		onChange(o, o.elasti.Elasti().V1alpha1().ElastiServices().Informer(), o.elastiServiceChanged),
	)
}

// IncludePods has the changes of the pods that match the selector recorded too. It
// must be called before Run.
func (o *Observer) IncludePods(selector labels.Selector) error {
	return onChange(o, o.host.Core().V1().Pods().Informer(), func(before, after *corev1.Pod) {
		if pod := cmp.Or(after, before); selector.Matches(labels.Set(pod.Labels)) {
			o.podChanged(before, after)
		}
	})
}

// Run watches until ctx ends. It closes started once everything that exists
// was seen.
func (o *Observer) Run(ctx context.Context, started chan<- struct{}) {
	o.host.StartWithContext(ctx)
	o.elasti.StartWithContext(ctx)
	defer o.host.Shutdown()
	defer o.elasti.Shutdown()
	if cache.WaitForCacheSync(ctx.Done(), o.handled...) {
		close(started)
	}
	<-ctx.Done()
}

// Since returns the moments from the given time on.
func (o *Observer) Since(start time.Time) []Moment {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, moment := range o.moments {
		if !moment.At.Before(start) {
			return append([]Moment(nil), o.moments[i:]...)
		}
	}
	return nil
}

// Await returns the first moment from start on of the change, with the name and
// the detail; an empty one stands for any. It waits for one until ctx ends.
func (o *Observer) Await(ctx context.Context, start time.Time, change Change, name, detail string) (Moment, error) {
	for {
		o.mu.Lock()
		grown := o.grown
		o.mu.Unlock()
		var seen []Moment
		for _, moment := range o.Since(start) {
			if name != "" && moment.Name != name {
				continue
			}
			if moment.Change == change && (detail == "" || moment.Detail == detail) {
				return moment, nil
			}
			seen = append(seen, moment)
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return Moment{}, fmt.Errorf("waiting for %s %s of %s: %w; seen: %v", change, detail, name, context.Cause(ctx), seen)
		}
	}
}

func (o *Observer) add(change Change, name, detail string) {
	o.moments = append(o.moments, Moment{At: time.Now(), Change: change, Name: name, Detail: detail})
	close(o.grown)
	o.grown = make(chan struct{})
}

func (o *Observer) deploymentChanged(before, after *appsv1.Deployment) {
	if before == nil || after == nil {
		return
	}
	was, is := ptr.Deref(before.Spec.Replicas, 1), ptr.Deref(after.Spec.Replicas, 1)
	if was != is {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.add(Scaled, after.Name, fmt.Sprint(is))
	}
}

func (o *Observer) elastiServiceChanged(before, after *v1alpha1.ElastiService) {
	if after == nil {
		return
	}
	if before == nil {
		before = &v1alpha1.ElastiService{}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, reported := range after.Status.Activity {
		known := func(activity v1alpha1.ResolverActivity) bool { return activity.Resolver == reported.Resolver }
		if !slices.ContainsFunc(before.Status.Activity, known) {
			o.add(ActivityReported, after.Name, reported.Resolver)
		}
	}
	if before.Status.SleepRequestedTime == nil && after.Status.SleepRequestedTime != nil {
		o.add(SleepRequested, after.Name, "")
	}
	if before.Status.Mode != after.Status.Mode {
		o.add(ModeChanged, after.Name, string(after.Status.Mode))
	}
}

func (o *Observer) podChanged(before, after *corev1.Pod) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if after == nil {
		o.add(PodDeleted, before.Name, "")
		return
	}
	if before == nil {
		o.add(PodCreated, after.Name, "")
		before = &corev1.Pod{}
	}
	if before.Spec.NodeName != after.Spec.NodeName {
		o.add(PodScheduled, after.Name, after.Spec.NodeName)
	}
	if !containersRun(before) && containersRun(after) {
		o.add(PodRunning, after.Name, after.Status.PodIP)
	}
	if !podIsReady(before) && podIsReady(after) {
		o.add(PodReady, after.Name, "")
	}
	if before.DeletionTimestamp == nil && after.DeletionTimestamp != nil {
		o.add(PodTerminating, after.Name, "")
	}
}

func containersRun(pod *corev1.Pod) bool {
	return len(pod.Status.ContainerStatuses) > 0 &&
		!slices.ContainsFunc(pod.Status.ContainerStatuses, func(status corev1.ContainerStatus) bool { return status.State.Running == nil })
}

func podIsReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
	})
}

// AwaitReadyEndpoint waits until the Service's own EndpointSlices have a ready
// endpoint, if they have none now.
func (o *Observer) AwaitReadyEndpoint(ctx context.Context, service string) error {
	for {
		o.mu.Lock()
		grown, ready := o.grown, len(o.ready[service]) > 0
		o.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return fmt.Errorf("waiting for a ready endpoint of %s: %w", service, context.Cause(ctx))
		}
	}
}

func (o *Observer) sliceChanged(before, after *discoveryv1.EndpointSlice) {
	slice := after
	if after == nil {
		slice = before
	}
	service := slice.Labels[discoveryv1.LabelServiceName]
	o.mu.Lock()
	defer o.mu.Unlock()
	if IsResolverSlice(slice) {
		o.count(o.resolvers, service, slice.Name, after != nil, ResolversAdded, ResolversRemoved)
		return
	}
	o.count(o.listed, service, slice.Name, after != nil && len(after.Endpoints) > 0, EndpointListed, "")
	o.count(o.ready, service, slice.Name, after != nil && hasReadyEndpoint(after), EndpointReady, EndpointLost)
}

// count keeps a set of the slices of each Service, and records when the set
// gets its first or loses its last member; the latter only if it has a name.
func (o *Observer) count(sets map[string]map[string]bool, service, slice string, member bool, added, removed Change) {
	set := sets[service]
	if set == nil {
		set = map[string]bool{}
		sets[service] = set
	}
	before := len(set)
	if member {
		set[slice] = true
	} else {
		delete(set, slice)
	}
	switch {
	case before == 0 && len(set) > 0:
		o.add(added, service, "")
	case before > 0 && len(set) == 0 && removed != "":
		o.add(removed, service, "")
	}
}

// onChange calls changed for every object that is added, updated or deleted. Before is
// nil for an added object, after for a deleted one.
func onChange[T any](o *Observer, informer cache.SharedIndexInformer, changed func(before, after *T)) error {
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { changed(nil, object.(*T)) },
		UpdateFunc: func(before, after any) { changed(before.(*T), after.(*T)) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			changed(object.(*T), nil)
		},
	})
	if err != nil {
		return err
	}
	o.handled = append(o.handled, registration.HasSynced)
	return nil
}

func hasReadyEndpoint(slice *discoveryv1.EndpointSlice) bool {
	for _, endpoint := range slice.Endpoints {
		if ptr.Deref(endpoint.Conditions.Ready, true) {
			return true
		}
	}
	return false
}
