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

package integration

import (
	"context"
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// recorder follows the EndpointSlices of a public Service.
type recorder struct {
	stop func()
	done chan struct{}
	// gaps and events are written by one goroutine until done is closed.
	gaps   []string
	events int
}

// recordEndpoints checks after each change that new connections have an endpoint. It
// must be called while they have one.
func recordEndpoints(t *testing.T, namespace string) *recorder {
	t.Helper()
	client := shared.Kubernetes.DiscoveryV1().EndpointSlices(namespace)
	options := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=app"}
	list, err := client.List(t.Context(), options)
	if err != nil {
		t.Fatalf("listing the slices of the public Service: %v", err)
	}
	current := map[string]*discoveryv1.EndpointSlice{}
	for i := range list.Items {
		current[list.Items[i].Name] = &list.Items[i]
	}
	options.ResourceVersion = list.ResourceVersion
	watcher, err := client.Watch(t.Context(), options)
	if err != nil {
		t.Fatalf("watching the slices of the public Service: %v", err)
	}
	record := &recorder{stop: watcher.Stop, done: make(chan struct{})}
	go func() {
		defer close(record.done)
		for event := range watcher.ResultChan() {
			slice, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				continue
			}
			record.events++
			if event.Type == watch.Deleted {
				delete(current, slice.Name)
			} else {
				current[slice.Name] = slice
			}
			if !reachesAnEndpoint(current) {
				record.gaps = append(record.gaps, fmt.Sprintf("after %s of %s at %s", event.Type, slice.Name, slice.ResourceVersion))
			}
		}
	}()
	return record
}

func (r *recorder) expectNoGap(t *testing.T) {
	t.Helper()
	r.stop()
	<-r.done
	if r.events == 0 {
		t.Error("no change of the slices was seen")
	}
	for _, gap := range r.gaps {
		t.Errorf("new connections have no endpoint %s", gap)
	}
}

// reachesAnEndpoint decides as kube-proxy does: terminating pods that still serve are
// used when there is no other endpoint.
func reachesAnEndpoint(current map[string]*discoveryv1.EndpointSlice) bool {
	for _, slice := range current {
		for _, endpoint := range slice.Endpoints {
			if ptr.Deref(endpoint.Conditions.Ready, true) || ptr.Deref(endpoint.Conditions.Serving, false) {
				return true
			}
		}
	}
	return false
}

// slicesOf lists the resolver slices of the public Service, or its other EndpointSlices.
func slicesOf(ctx context.Context, t *testing.T, namespace, selector string) []discoveryv1.EndpointSlice {
	t.Helper()
	list, err := shared.Kubernetes.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=app," + selector,
	})
	if err != nil {
		t.Fatalf("listing the slices of the public Service: %v", err)
	}
	return list.Items
}

func resolverSlices(ctx context.Context, t *testing.T, namespace string) []discoveryv1.EndpointSlice {
	t.Helper()
	return slicesOf(ctx, t, namespace, discoveryv1.LabelManagedBy+"="+v1alpha1.SliceManagedBy)
}

// ownEndpoints counts the endpoints of the public Service's own slices.
func ownEndpoints(ctx context.Context, t *testing.T, namespace string) int {
	t.Helper()
	count := 0
	for _, slice := range slicesOf(ctx, t, namespace, discoveryv1.LabelManagedBy+"!="+v1alpha1.SliceManagedBy) {
		count += len(slice.Endpoints)
	}
	return count
}

func waitForNoResolverSlices(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, "the resolver slices are deleted", func(ctx context.Context) string {
		if current := resolverSlices(ctx, t, namespace); len(current) > 0 {
			return fmt.Sprintf("there are %d", len(current))
		}
		return ""
	})
}
