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

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

const (
	apiPollInterval = 100 * time.Millisecond
	apiTimeout      = time.Minute

	// apiCalls is how often one call is measured, awakeCalls how often a wake,
	// whose slowest calls count, apiWatchEvents how many events are sent to
	// apiWatchers, apiLists how often all objects, by default apiObjects, are
	// listed.
	apiCalls       = 300
	awakeCalls     = 1000
	apiWatchers    = 100
	apiWatchEvents = 100
	apiObjects     = 10000
	apiLists       = 10
	apiWriters     = 8
)

// measureAPI compares calls of the product's API with the same calls of a
// CustomResourceDefinition with the same schema. Both go through the API server of an
// otherwise idle control plane, with a store that acknowledges a write when it is on
// the disk. The calls alternate, so that both are measured under the same conditions.
func measureAPI(ctx context.Context, b *bench) (err error) {
	control, err := environment.StartForComparing(ctx)
	if err != nil {
		return fmt.Errorf("starting a control plane: %w", err)
	}
	defer func() {
		err = errors.Join(err, control.Stop(context.WithoutCancel(ctx)))
		if err == nil {
			err = control.Remove()
		}
	}()
	client, err := dynamic.NewForConfig(control.Admin)
	if err != nil {
		return fmt.Errorf("making the client that creates objects: %w", err)
	}
	compared := &bench{
		Cluster: &cluster.Cluster{Config: control.Admin, Host: control.Kubernetes, Elasti: control.Elasti, Dynamic: client},
		report:  b.report,
		objects: b.objects,
	}
	namespace, err := compared.CreateNamespace(ctx, "bench")
	if err != nil {
		return err
	}
	if err := compared.createTwin(ctx); err != nil {
		return err
	}
	return errors.Join(
		compared.compare(ctx, namespace, "create", "api_create_ratio_crd", apiCalls, compared.createOne),
		compared.copyStatuses(ctx, namespace, 0, apiCalls),
		compared.compare(ctx, namespace, "get", "api_get_ratio_crd", apiCalls, compared.getOne),
		compared.measureWatches(ctx, namespace),
		compared.measureLists(ctx, namespace),
	)
}

// operation is one timed call on the numbered object of a resource.
type operation func(ctx context.Context, resource schema.GroupVersionResource, namespace string, number int) error

// compare times an operation on ElastiServices and on their twins.
func (b *bench) compare(ctx context.Context, namespace, what, key string, times int, do operation) error {
	durations := make(map[schema.GroupVersionResource][]time.Duration)
	for number := range times {
		for _, resource := range []schema.GroupVersionResource{elastiResource, twinResource} {
			start := time.Now()
			if err := do(ctx, resource, namespace, number); err != nil {
				return fmt.Errorf("%s of %s: %w", what, resource.Group, err)
			}
			durations[resource] = append(durations[resource], time.Since(start))
		}
	}
	b.compared(what, key, durations)
	return nil
}

func (b *bench) compared(what, key string, durations map[schema.GroupVersionResource][]time.Duration) {
	elasti, twins := durations[elastiResource], durations[twinResource]
	b.durations(what+", an ElastiService", elasti)
	b.durations(what+", a custom resource", twins)
	b.set(key, durationQuantile(elasti, 0.5)/durationQuantile(twins, 0.5))
}

// createOne creates an object with the finalizer that an ElastiService gets
// anyway, and that a custom resource gets from its controller.
func (b *bench) createOne(ctx context.Context, resource schema.GroupVersionResource, namespace string, number int) error {
	name := objectName(number)
	_, err := b.Dynamic.Resource(resource).Namespace(namespace).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resource.GroupVersion().String(),
		"kind":       "ElastiService",
		"metadata":   map[string]any{"name": name, "finalizers": []any{v1alpha1.Finalizer}},
		"spec": map[string]any{
			"service":        name,
			"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
		},
	}}, metav1.CreateOptions{})
	return err
}

func (b *bench) getOne(ctx context.Context, resource schema.GroupVersionResource, namespace string, number int) error {
	_, err := b.Dynamic.Resource(resource).Namespace(namespace).Get(ctx, objectName(number), metav1.GetOptions{})
	return err
}

func objectName(number int) string { return fmt.Sprintf("object-%05d", number) }

// measureLists fills up to apiObjects objects of both, and times lists of all
// of them. The bytes are read, not decoded: that is the client's own time.
func (b *bench) measureLists(ctx context.Context, namespace string) error {
	start := time.Now()
	for _, resource := range []schema.GroupVersionResource{elastiResource, twinResource} {
		if err := b.fill(ctx, resource, namespace, apiCalls, b.objects); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%d objects of %s are there after %s\n", b.objects, resource.Group, time.Since(start).Round(time.Second))
	}
	if err := b.copyStatuses(ctx, namespace, apiCalls, b.objects); err != nil {
		return err
	}
	client := b.Host.Discovery().RESTClient()
	return b.compare(ctx, namespace, fmt.Sprintf("list of %d", b.objects), "api_list10k_ratio_crd", apiLists,
		func(ctx context.Context, resource schema.GroupVersionResource, namespace string, _ int) error {
			path := "/apis/" + resource.GroupVersion().String() + "/namespaces/" + namespace + "/" + resource.Resource
			return client.Get().AbsPath(path).Do(ctx).Error()
		})
}

// fill creates the numbered objects from first up to, not including, end.
func (b *bench) fill(ctx context.Context, resource schema.GroupVersionResource, namespace string, first, end int) error {
	return inParallel(ctx, first, end, func(ctx context.Context, number int) error {
		return b.createOne(ctx, resource, namespace, number)
	})
}

// copyStatuses gives the numbered twins the statuses of the ElastiServices, as a
// controller would, because the time of reads and watches depends on the size of an
// object. It returns an error if a twin does not have the same spec and status then.
func (b *bench) copyStatuses(ctx context.Context, namespace string, first, end int) error {
	elasti, twins := b.Dynamic.Resource(elastiResource).Namespace(namespace), b.Dynamic.Resource(twinResource).Namespace(namespace)
	return inParallel(ctx, first, end, func(ctx context.Context, number int) error {
		var spec, status map[string]any
		err := wait.PollUntilContextTimeout(ctx, apiPollInterval, apiTimeout, true, func(ctx context.Context) (bool, error) {
			object, err := elasti.Get(ctx, objectName(number), metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
			if err != nil || len(conditions) == 0 {
				return false, err
			}
			spec, _, _ = unstructured.NestedMap(object.Object, "spec")
			status, _, err = unstructured.NestedMap(object.Object, "status")
			return err == nil, err
		})
		if err != nil {
			return fmt.Errorf("waiting for the status of %s: %w", objectName(number), err)
		}
		twin, err := twins.ApplyStatus(ctx, objectName(number), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": twinResource.GroupVersion().String(),
			"kind":       "ElastiService",
			"metadata":   map[string]any{"name": objectName(number)},
			"status":     status,
		}}, metav1.ApplyOptions{FieldManager: "elasti-controller", Force: true})
		if err != nil {
			return err
		}
		for part, want := range map[string]map[string]any{"spec": spec, "status": status} {
			if got, _, _ := unstructured.NestedMap(twin.Object, part); !reflect.DeepEqual(got, want) {
				return fmt.Errorf("the %s of the custom resource %s is not that of the ElastiService:\n%s", part, objectName(number), diff.Diff(want, got))
			}
		}
		return nil
	})
}

// inParallel calls do for the numbers from first up to, not including, end, a
// few at a time, until one call fails.
func inParallel(ctx context.Context, first, end int, do func(ctx context.Context, number int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	numbers := make(chan int)
	var workers sync.WaitGroup
	for range apiWriters {
		workers.Go(func() {
			for number := range numbers {
				if err := do(ctx, number); err != nil {
					cancel(err)
				}
			}
		})
	}
	for number := first; number < end && ctx.Err() == nil; number++ {
		select {
		case numbers <- number:
		case <-ctx.Done():
		}
	}
	close(numbers)
	workers.Wait()
	return context.Cause(ctx)
}

// measureWatches times one change of an object until every one of many
// watchers has it.
func (b *bench) measureWatches(ctx context.Context, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	arrived := make(map[schema.GroupVersionResource]func(context.Context, string) error)
	for _, resource := range []schema.GroupVersionResource{elastiResource, twinResource} {
		watchers, err := b.startWatchers(ctx, resource, namespace)
		if err != nil {
			return err
		}
		defer watchers.stop()
		arrived[resource] = watchers.await
	}
	return b.compare(ctx, namespace, fmt.Sprintf("change → seen by %d watchers", apiWatchers), "api_watch100_ratio_crd", apiWatchEvents,
		func(ctx context.Context, resource schema.GroupVersionResource, namespace string, number int) error {
			mark := fmt.Sprint("mark-", number)
			patch := fmt.Appendf(nil, `{"metadata":{"labels":{"mark":%q}}}`, mark)
			if _, err := b.Dynamic.Resource(resource).Namespace(namespace).Patch(ctx, objectName(0), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				return err
			}
			return arrived[resource](ctx, mark)
		})
}

// watchers are connections that watch one object.
type watchers struct {
	watches []watch.Interface
}

func (b *bench) startWatchers(ctx context.Context, resource schema.GroupVersionResource, namespace string) (*watchers, error) {
	all := &watchers{}
	for range apiWatchers {
		one, err := b.Dynamic.Resource(resource).Namespace(namespace).Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: objectName(0)}))
		if err != nil {
			all.stop()
			return nil, fmt.Errorf("watching %s: %w", resource.Group, err)
		}
		all.watches = append(all.watches, one)
	}
	return all, nil
}

// await waits until every watcher has seen the object with the mark.
func (w *watchers) await(ctx context.Context, mark string) error {
	failures := make([]error, len(w.watches))
	var ended sync.WaitGroup
	for i, one := range w.watches {
		ended.Go(func() { failures[i] = awaitMark(ctx, one, mark) })
	}
	ended.Wait()
	return errors.Join(failures...)
}

func awaitMark(ctx context.Context, one watch.Interface, mark string) error {
	for {
		select {
		case event, open := <-one.ResultChan():
			if !open {
				return errors.New("a watch ended")
			}
			if seen, ok := event.Object.(*unstructured.Unstructured); ok && seen.GetLabels()["mark"] == mark {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *watchers) stop() {
	for _, one := range w.watches {
		one.Stop()
	}
}

// measureAwakeWake times wake calls for a target that is awake already.
func measureAwakeWake(ctx context.Context, b *bench) (err error) {
	namespace, err := b.CreateNamespace(ctx, "bench")
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), apiTimeout)
		defer cancel()
		err = errors.Join(err, b.DeleteNamespace(ctx, namespace), b.AwaitNamespaceDeleted(ctx, namespace))
	}()
	app := b.NewApplication(namespace, cluster.ApplicationOptions{Replicas: 1})
	if err := errors.Join(app.Create(ctx), app.AwaitMode(ctx, v1alpha1.ModeServe)); err != nil {
		return err
	}
	client := b.Elasti.ElastiV1alpha1().ElastiServices(namespace)
	deployments := b.Host.AppsV1().Deployments(namespace)
	var durations, reads []time.Duration
	for range awakeCalls {
		start := time.Now()
		if _, err := deployments.GetScale(ctx, app.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("reading the scale of the target: %w", err)
		}
		reads = append(reads, time.Since(start))
		start = time.Now()
		if _, err := client.Wake(ctx, app.Name, &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("waking a target that is awake: %w", err)
		}
		durations = append(durations, time.Since(start))
	}
	// The first ones open connections.
	durations, reads = durations[awakeCalls/10:], reads[awakeCalls/10:]
	b.durations("wake call, target awake", durations)
	b.durations("  for comparison, what it does by a client of the API: the target's scale is read", reads)
	b.set("wake_awake_p99_ms", durationQuantile(durations, 0.99))
	return nil
}
