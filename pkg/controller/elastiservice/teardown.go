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
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/fairqueue"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/signature"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// A teardown takes little more than teardownRestore + teardownEndpoints +
// lingerTime at most: less than a pod is given to terminate.
const (
	// teardownRestore is how long a teardown tries to wake the targets.
	teardownRestore = 15 * time.Second
	// teardownEndpoints is how long it then waits for ready endpoints, while
	// resolvers still hold traffic.
	teardownEndpoints = 15 * time.Second
	// teardownAttempt ends an attempt to wake a target that hangs.
	teardownAttempt = 5 * time.Second
	// teardownPoll is the pause between two checks of the endpoints of a
	// Service, and between two attempts to wake a target.
	teardownPoll = 500 * time.Millisecond
	// teardownConcurrency is how many objects are worked on at a time, half of them of
	// one namespace at most.
	teardownConcurrency = 64
)

// Teardown restores the cluster to what it was without ElastiServices. It goes by
// the objects that a Controller made, so it needs neither ElastiServices nor
// the server that stores them. No Controller may run at the same time.
type Teardown struct {
	// Host reads and deletes Services and EndpointSlices.
	Host kubernetes.Interface
	// Scaling wakes targets.
	Scaling Scaling
	// Signers recognizes the objects that a Controller made: others do not count.
	Signers Signers
	// Namespaces are the namespaces that are worked on. Empty means all.
	Namespaces []string
	// ElastiServices are those whose statuses record targets, as far as they can be
	// read.
	ElastiServices []*v1alpha1.ElastiService
	// KeepResolvers has the resolvers stay in front of targets that cannot be woken: they
	// keep working, and Run is called again.
	KeepResolvers bool
	// Pacer, if set, has targets at zero woken no faster than it allows: other work goes
	// on in the cluster, which may have no nodes for the pods of all of them. An
	// uninstallation does not wait.
	Pacer *rate.Limiter
	// Clock is the time.
	Clock clock.WithTicker
}

// Signers loads the signer that recognizes the objects that a Controller made. It is
// safe for concurrent use.
type Signers interface {
	Load(ctx context.Context) (*signature.Signer, error)
}

// Run wakes every target and resumes its autoscaler, then takes the resolvers
// out of the path of each Service as soon as it has a ready endpoint, and last
// removes the private Services. It does as much as it can, whatever fails, such as in
// namespaces that it can read when it cannot read others.
// Running it again does the rest: the private Service of a target that could not be
// woken stays, since it may be the only record of it.
func (t *Teardown) Run(ctx context.Context) error {
	signer, err := t.Signers.Load(ctx)
	if err != nil {
		return err
	}
	var private []corev1.Service
	var resolverSlices []discoveryv1.EndpointSlice
	namespaces := t.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	var unread []error
	for _, namespace := range namespaces {
		services, endpointSlices, err := t.list(ctx, namespace)
		if err != nil {
			unread = append(unread, err)
			continue
		}
		private = append(private, services...)
		resolverSlices = append(resolverSlices, endpointSlices...)
	}
	private = slices.DeleteFunc(private, func(service corev1.Service) bool { return !isPrivateService(signer, &service.ObjectMeta) })
	resolverSlices = slices.DeleteFunc(resolverSlices, func(slice discoveryv1.EndpointSlice) bool { return !isResolverSlice(signer, &slice.ObjectMeta) })
	klog.FromContext(ctx).Info("Restoring the cluster", "privateServices", len(private), "resolverSlices", len(resolverSlices))

	records := slices.Concat(recordsOf(private), recordsOfSlices(signer, resolverSlices), recordsInStatuses(t.ElastiServices))
	asleep, restored := t.restoreTargets(ctx, records)
	private = slices.DeleteFunc(private, func(service corev1.Service) bool { return asleep.Has(resources.KeyOf(&service)) })
	if t.KeepResolvers {
		resolverSlices = slices.DeleteFunc(resolverSlices, func(slice discoveryv1.EndpointSlice) bool {
			return asleep.Has(privateServiceOf(&slice))
		})
	}
	removed := t.removeResolverSlices(ctx, signer, resolverSlices)
	if len(resolverSlices) > 0 {
		// Resolvers still get connections until every node has observed the deletion.
		select {
		case <-ctx.Done():
		case <-t.Clock.After(lingerTime):
		}
	}
	return errors.Join(append(unread, restored, removed, t.removePrivateServices(ctx, private))...)
}

// list returns the objects of a namespace that may be private Services and resolver slices.
// It returns both or, with an error, neither: a private Service may record the target of a
// slice, and a slice that of a private Service.
func (t *Teardown) list(ctx context.Context, namespace string) ([]corev1.Service, []discoveryv1.EndpointSlice, error) {
	services, err := t.Host.CoreV1().Services(namespace).List(ctx, selecting(v1alpha1.LabelRole, v1alpha1.RolePrivate))
	if err != nil {
		return nil, nil, fmt.Errorf("listing private Services in namespace %q, whose targets may be left without replicas, scale them by hand: %w", namespace, err)
	}
	endpointSlices, err := t.Host.DiscoveryV1().EndpointSlices(namespace).List(ctx, selecting(discoveryv1.LabelManagedBy, v1alpha1.SliceManagedBy))
	if err != nil {
		return nil, nil, fmt.Errorf("listing resolver slices in namespace %q, whose targets may be left without replicas, scale them by hand: %w", namespace, err)
	}
	return services.Items, endpointSlices.Items, nil
}

// record is a target that an object records.
type record struct {
	namespace string
	managed   *resources.ManagedTarget
	// privateService is the private Service of the public Service that the object is for.
	privateService types.NamespacedName
}

// target returns the target that is recorded.
func (r *record) target() scaling.Target {
	return scaling.TargetOf(r.namespace, r.managed.Target)
}

// key identifies what is to be restored: records with the same key are of one target.
func (r *record) key() string {
	return r.namespace + "/" + r.managed.String()
}

func recordsOf(private []corev1.Service) (records []record) {
	for i := range private {
		if managed := resources.ManagedTargetIn(&private[i].ObjectMeta); managed != nil {
			records = append(records, record{private[i].Namespace, managed, resources.KeyOf(&private[i])})
		}
	}
	return records
}

// recordsOfSlices returns what resolver slices record: a client may have edited or
// deleted the private Service.
func recordsOfSlices(signer *signature.Signer, resolverSlices []discoveryv1.EndpointSlice) (records []record) {
	for i := range resolverSlices {
		if managed := resources.ManagedTargetIn(&resolverSlices[i].ObjectMeta); managed != nil && signer.Made(&resolverSlices[i].ObjectMeta) {
			records = append(records, record{resolverSlices[i].Namespace, managed, privateServiceOf(&resolverSlices[i])})
		}
	}
	return records
}

// recordsInStatuses returns what the statuses of ElastiServices record: a target whose
// Service is deleted is recorded nowhere else.
func recordsInStatuses(elastiServices []*v1alpha1.ElastiService) (records []record) {
	for _, elastiService := range elastiServices {
		if managed := resources.ManagedTargetInStatus(&elastiService.Status); managed != nil {
			records = append(records, record{elastiService.Namespace, managed, resources.PrivateServiceKey(resources.PublicServiceKey(elastiService))})
		}
	}
	return records
}

// privateServiceOf returns the private Service of the public Service of a resolver slice.
func privateServiceOf(slice *discoveryv1.EndpointSlice) types.NamespacedName {
	return resources.PrivateServiceKey(v1alpha1.SliceServiceKey(slice))
}

// restoreTargets wakes the targets that are recorded. It returns the private Services
// of those that may be left without replicas.
func (t *Teardown) restoreTargets(ctx context.Context, records []record) (asleep sets.Set[types.NamespacedName], err error) {
	deadline := t.Clock.Now().Add(teardownRestore)
	// Most targets are recorded by several objects, and restored once.
	privateServices := map[string]sets.Set[types.NamespacedName]{}
	records = slices.DeleteFunc(records, func(recorded record) bool {
		key := recorded.key()
		_, known := privateServices[key]
		if !known {
			privateServices[key] = sets.New[types.NamespacedName]()
		}
		privateServices[key].Insert(recorded.privateService)
		return known
	})
	var mu sync.Mutex
	asleep = sets.New[types.NamespacedName]()
	// hanging are the namespaces of targets for which calls did not return in time. The
	// others do not wait for a call for each of those.
	hanging := sets.New[string]()
	isHanging := func(namespace string) bool {
		mu.Lock()
		defer mu.Unlock()
		return hanging.Has(namespace)
	}
	err = forEach(records, func(recorded *record) string { return recorded.namespace }, func(recorded *record) error {
		deadline, err := t.awaitTurn(ctx, recorded, deadline)
		if err != nil {
			return err
		}
		err = errHanging
		if !isHanging(recorded.namespace) || t.Clock.Now().Before(deadline) {
			err = t.restoreTarget(ctx, recorded.target(), recorded.managed, deadline)
		}
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			if errors.Is(err, context.DeadlineExceeded) {
				hanging.Insert(recorded.namespace)
			}
			asleep = asleep.Union(privateServices[recorded.key()])
		}
		return err
	})
	return asleep, err
}

// awaitTurn waits until a target may be woken, and returns until when that is tried:
// later than deadline by what it waited. A target that is awake does not wait.
func (t *Teardown) awaitTurn(ctx context.Context, recorded *record, deadline time.Time) (time.Time, error) {
	if t.Pacer == nil {
		return deadline, nil
	}
	reading, cancel := context.WithTimeout(ctx, teardownAttempt)
	defer cancel()
	scale, err := t.Scaling.Get(reading, recorded.target())
	if err == nil && scale.Spec.Replicas > 0 {
		return deadline, nil
	}
	now := t.Clock.Now()
	delay := t.Pacer.ReserveN(now, 1).DelayFrom(now)
	select {
	case <-t.Clock.After(delay):
		return deadline.Add(delay), nil
	case <-ctx.Done():
		return deadline, ctx.Err()
	}
}

// errHanging means that a target may be left without replicas because calls for others
// of its namespace have hung.
var errHanging = errors.New("calls for the targets of a namespace hang, so some of them may be left without replicas: scale them by hand")

// restoreTarget wakes a target that is recorded, and tries to until a time.
func (t *Teardown) restoreTarget(ctx context.Context, scaleTarget scaling.Target, managed *resources.ManagedTarget, deadline time.Time) error {
	last := ctx.Err()
	_ = wait.PollUntilContextCancel(ctx, teardownPoll, true, func(ctx context.Context) (bool, error) {
		last = t.restore(ctx, scaleTarget, managed)
		return last == nil || t.Clock.Now().After(deadline), nil
	})
	if last != nil {
		return fmt.Errorf("%s may be left without replicas, scale it by hand: %w", scaleTarget, last)
	}
	return nil
}

// restore wakes a target, which changes nothing but its autoscaler when it is
// awake. There is nothing to do for one that does not exist.
func (t *Teardown) restore(ctx context.Context, scaleTarget scaling.Target, managed *resources.ManagedTarget) error {
	ctx, cancel := context.WithTimeout(ctx, teardownAttempt)
	defer cancel()
	autoscaler := scaling.AutoscalerOf(managed.Autoscaler)
	result, err := t.Scaling.Restore(ctx, scaleTarget, autoscaler, managed.MinReplicas())
	var kindError *scaling.KindError
	if errors.As(err, &kindError) {
		err = nil
	}
	if err == nil {
		return ignoreNotFound(result.AutoscalerError)
	}
	return errors.Join(ignoreNotFound(err), ignoreNotFound(t.Scaling.ResumeAutoscaler(ctx, scaleTarget.Namespace, autoscaler)))
}

func (t *Teardown) removeResolverSlices(ctx context.Context, signer *signature.Signer, resolverSlices []discoveryv1.EndpointSlice) error {
	deadline := t.Clock.Now().Add(teardownEndpoints)
	return forEach(resolverSlices, namespaceOf[*discoveryv1.EndpointSlice], func(slice *discoveryv1.EndpointSlice) error {
		public := v1alpha1.SliceServiceKey(slice)
		// A timeout is no error: the resolvers are removed anyway.
		_ = wait.PollUntilContextCancel(ctx, teardownPoll, true, func(ctx context.Context) (bool, error) {
			return t.hasReadyEndpoint(ctx, signer, public) || t.Clock.Now().After(deadline), nil
		})
		options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &slice.UID}}
		err := t.Host.DiscoveryV1().EndpointSlices(slice.Namespace).Delete(ctx, slice.Name, options)
		if ignoreNotFound(err) != nil {
			return fmt.Errorf("deleting resolver slice %s/%s: %w", slice.Namespace, slice.Name, err)
		}
		return nil
	})
}

// hasReadyEndpoint reports whether one of a Service's own slices has a ready
// endpoint.
func (t *Teardown) hasReadyEndpoint(ctx context.Context, signer *signature.Signer, service types.NamespacedName) bool {
	found, err := t.Host.DiscoveryV1().EndpointSlices(service.Namespace).List(ctx, selecting(discoveryv1.LabelServiceName, service.Name))
	if err != nil {
		return false
	}
	for i := range found.Items {
		slice := &found.Items[i]
		if isResolverSlice(signer, &slice.ObjectMeta) {
			continue
		}
		for j := range slice.Endpoints {
			if resources.IsReady(&slice.Endpoints[j]) {
				return true
			}
		}
	}
	return false
}

func (t *Teardown) removePrivateServices(ctx context.Context, private []corev1.Service) error {
	return forEach(private, namespaceOf[*corev1.Service], func(service *corev1.Service) error {
		options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &service.UID}}
		if err := t.Host.CoreV1().Services(service.Namespace).Delete(ctx, service.Name, options); ignoreNotFound(err) != nil {
			return fmt.Errorf("deleting private Service %s/%s: %w", service.Namespace, service.Name, err)
		}
		return nil
	})
}

func selecting(label, value string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: labels.Set{label: value}.String()}
}

func namespaceOf[T metav1.Object](object T) string { return object.GetNamespace() }

// forEach works on all items, a bounded number at a time, and joins the errors. Items of
// one namespace that take long do not keep those of others waiting.
func forEach[T any](items []T, namespaceOf func(*T) string, work func(*T) error) error {
	queue := fairqueue.NewWorkQueue(fairqueue.WorkQueueOptions[int]{
		Clock:       clock.RealClock{},
		NamespaceOf: func(i int) string { return namespaceOf(&items[i]) },
		FirstRetry:  firstRetry,
		LastRetry:   lastRetry,
	})
	problems := make([]error, len(items))
	running, done := context.WithCancel(context.Background())
	var left sync.WaitGroup
	for i := range items {
		left.Add(1)
		queue.Add(i)
	}
	go func() {
		left.Wait()
		done()
	}()
	queue.Run(running, teardownConcurrency, func(_ context.Context, i int) {
		defer left.Done()
		problems[i] = work(&items[i])
	})
	return errors.Join(problems...)
}
