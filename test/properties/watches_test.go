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

package properties

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// follow fills a history with all that is written in the cluster, until the test
// ends.
func (h *history) follow(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		following.Wait()
	})
	apps, core, discovery := client.AppsV1().Deployments(metav1.NamespaceAll), client.CoreV1().Services(metav1.NamespaceAll), client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)
	for of, source := range map[kind]*cache.ListWatch{
		deployment: {
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return apps.List(ctx, options)
			},
			WatchFuncWithContext: apps.Watch,
		},
		service: {
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return core.List(ctx, options)
			},
			WatchFuncWithContext: core.Watch,
		},
		endpointSlice: {
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return discovery.List(ctx, options)
			},
			WatchFuncWithContext: discovery.Watch,
		},
	} {
		list, err := source.ListWithContext(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatalf("listing every %s: %v", of, err)
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			h.record(t, of, watch.Added, item)
		}
		version, err := meta.NewAccessor().ResourceVersion(list)
		if err != nil {
			t.Fatal(err)
		}
		watcher, err := watchtools.NewRetryWatcherWithContext(ctx, version, source)
		if err != nil {
			t.Fatalf("watching every %s: %v", of, err)
		}
		following.Go(func() {
			for event := range watcher.ResultChan() {
				h.record(t, of, event.Type, event.Object)
			}
			if ctx.Err() == nil {
				t.Errorf("the watch of every %s ended", of)
			}
		})
	}
}

// record adds one event to the history.
func (h *history) record(t *testing.T, of kind, event watch.EventType, object runtime.Object) {
	t.Helper()
	accessor, err := meta.Accessor(object)
	if event == watch.Error || err != nil {
		t.Errorf("the watch of every %s reports %v", of, object)
		return
	}
	revision, err := strconv.ParseUint(accessor.GetResourceVersion(), 10, 64)
	if err != nil {
		t.Errorf("reading the revision of %s %s: %v", of, accessor.GetName(), err)
		return
	}
	c := change{key: keyOf(of, accessor.GetNamespace(), accessor.GetName()), revision: revision}
	if event != watch.Deleted {
		c.now = factsOf(object)
	}
	h.add(c)
}

func factsOf(object runtime.Object) any {
	switch object := object.(type) {
	case *appsv1.Deployment:
		return deploymentFacts{replicas: ptr.Deref(object.Spec.Replicas, 1)}
	case *corev1.Service:
		return serviceFacts{
			supported: isSupported(object), selects: object.Spec.Selector[appLabel],
			owner: object.Annotations[v1alpha1.AnnotationOwner], target: managedTarget(object),
		}
	case *discoveryv1.EndpointSlice:
		return sliceFacts{service: object.Labels[discoveryv1.LabelServiceName], resolvers: isResolverSlice(object), ready: countReady(object)}
	default:
		panic(fmt.Sprintf("there are no facts of a %T", object))
	}
}

// isSupported reports whether a Service can have resolvers in its path, as in
// docs/design.md.
func isSupported(object *corev1.Service) bool {
	if object.Spec.Type == corev1.ServiceTypeExternalName || object.Spec.ClusterIP == corev1.ClusterIPNone || len(object.Spec.Selector) == 0 {
		return false
	}
	return len(tcpPorts(object)) > 0
}

func tcpPorts(object *corev1.Service) []corev1.ServicePort {
	var found []corev1.ServicePort
	for _, port := range object.Spec.Ports {
		if port.Protocol == corev1.ProtocolTCP {
			found = append(found, port)
		}
	}
	return found
}

// managedTarget returns the name of the target that a private Service records.
func managedTarget(object *corev1.Service) string {
	var managed resources.ManagedTarget
	if json.Unmarshal([]byte(object.Annotations[v1alpha1.AnnotationTarget]), &managed) != nil {
		return ""
	}
	return managed.Target.Name
}

// isResolverSlice distinguishes the slices of the server from those of Kubernetes and those
// that tenants forge.
func isResolverSlice(slice *discoveryv1.EndpointSlice) bool {
	return resources.IsResolverSliceName(slice.Name, slice.Labels[discoveryv1.LabelServiceName])
}

// countReady counts the endpoints that new connections go to.
func countReady(slice *discoveryv1.EndpointSlice) (count int) {
	for _, endpoint := range slice.Endpoints {
		if ptr.Deref(endpoint.Conditions.Ready, true) {
			count++
		}
	}
	return count
}
