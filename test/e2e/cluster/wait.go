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
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// AwaitElastiService waits until an ElastiService fulfills the condition.
func (c *Cluster) AwaitElastiService(ctx context.Context, namespace, name, what string, condition func(*v1alpha1.ElastiService) bool) (*v1alpha1.ElastiService, error) {
	return awaitOne(ctx, c.Elasti.ElastiV1alpha1().RESTClient(), "elastiservices", namespace, name, what, condition)
}

// AwaitDeployment waits until a Deployment fulfills the condition.
func (c *Cluster) AwaitDeployment(ctx context.Context, namespace, name, what string, condition func(*appsv1.Deployment) bool) (*appsv1.Deployment, error) {
	return awaitOne(ctx, c.Host.AppsV1().RESTClient(), "deployments", namespace, name, what, condition)
}

// AwaitRollout waits until a Deployment of the product has only pods that are
// as it says now, and all of them are ready.
func (c *Cluster) AwaitRollout(ctx context.Context, name string) error {
	_, err := c.AwaitDeployment(ctx, SystemNamespace, name, "it is rolled out", func(deployment *appsv1.Deployment) bool {
		status := deployment.Status
		return status.ObservedGeneration >= deployment.Generation && status.UpdatedReplicas == ptr.Deref(deployment.Spec.Replicas, 1) &&
			status.Replicas == status.UpdatedReplicas && status.AvailableReplicas == status.UpdatedReplicas
	})
	return err
}

// AwaitPods waits until the pods that a label selector selects fulfill the condition.
func (c *Cluster) AwaitPods(ctx context.Context, namespace, selector, what string, condition func([]*corev1.Pod) bool) ([]*corev1.Pod, error) {
	return await(ctx, labeled(c.Host.CoreV1().RESTClient(), "pods", namespace, selector), what, condition)
}

// AwaitEndpointSlices waits until the EndpointSlices of a Service fulfill the condition.
func (c *Cluster) AwaitEndpointSlices(ctx context.Context, namespace, service, what string, condition func([]*discoveryv1.EndpointSlice) bool) ([]*discoveryv1.EndpointSlice, error) {
	source := labeled(c.Host.DiscoveryV1().RESTClient(), "endpointslices", namespace, discoveryv1.LabelServiceName+"="+service)
	return await(ctx, source, what, condition)
}

// AwaitServices waits until the Services of a namespace fulfill the condition.
func (c *Cluster) AwaitServices(ctx context.Context, namespace, what string, condition func([]*corev1.Service) bool) ([]*corev1.Service, error) {
	return await(ctx, labeled(c.Host.CoreV1().RESTClient(), "services", namespace, ""), what, condition)
}

// AwaitNamespaceDeleted waits until a namespace does not exist.
func (c *Cluster) AwaitNamespaceDeleted(ctx context.Context, name string) error {
	source := named(c.Host.CoreV1().RESTClient(), "namespaces", metav1.NamespaceAll, name)
	_, err := await(ctx, source, "namespace "+name+" is deleted", func(found []*corev1.Namespace) bool { return len(found) == 0 })
	return err
}

// AwaitElastiServiceDeleted waits until an ElastiService does not exist.
func (c *Cluster) AwaitElastiServiceDeleted(ctx context.Context, namespace, name string) error {
	source := named(c.Elasti.ElastiV1alpha1().RESTClient(), "elastiservices", namespace, name)
	_, err := await(ctx, source, "ElastiService "+name+" is deleted", func(found []*v1alpha1.ElastiService) bool { return len(found) == 0 })
	return err
}

// IsResolverSlice reports whether an EndpointSlice is a resolver slice.
func IsResolverSlice(slice *discoveryv1.EndpointSlice) bool {
	return slice.Labels[discoveryv1.LabelManagedBy] == v1alpha1.SliceManagedBy
}

// PodIsReady reports whether the Ready condition of a pod is true.
func PodIsReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
	})
}

func named(client rest.Interface, resource, namespace, name string) *cache.ListWatch {
	return cache.NewListWatchFromClient(client, resource, namespace, fields.OneTermEqualSelector(metav1.ObjectNameField, name))
}

func labeled(client rest.Interface, resource, namespace, selector string) *cache.ListWatch {
	return cache.NewFilteredListWatchFromClient(client, resource, namespace, func(options *metav1.ListOptions) {
		options.LabelSelector = selector
	})
}

// object is a pointer to T that is an API object.
type object[T any] interface {
	*T
	runtime.Object
	metav1.Object
}

func awaitOne[T any, P object[T]](ctx context.Context, client rest.Interface, resource, namespace, name, what string, condition func(P) bool) (P, error) {
	found, err := await(ctx, named(client, resource, namespace, name), fmt.Sprintf("%s %s: %s", resource, name, what), func(found []P) bool {
		return len(found) == 1 && condition(found[0])
	})
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

// await watches until the objects fulfill the condition. Its error holds the
// objects as last seen.
func await[T any, P object[T]](ctx context.Context, source *cache.ListWatch, what string, condition func([]P) bool) ([]P, error) {
	indexer, informer, watcher, done := watchtools.NewIndexerInformerWatcher(source, P(new(T)))
	defer func() {
		watcher.Stop()
		<-done
	}()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("waiting until %s: the first list: %w", what, context.Cause(ctx))
	}
	for {
		objects := contents[T, P](indexer)
		if condition(objects) {
			return objects, nil
		}
		select {
		case <-watcher.ResultChan():
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting until %s: %w; last seen:\n%s", what, context.Cause(ctx), render(objects))
		}
	}
}

func contents[T any, P object[T]](indexer cache.Indexer) []P {
	var objects []P
	for _, item := range indexer.List() {
		objects = append(objects, item.(P))
	}
	slices.SortFunc(objects, func(a, b P) int { return strings.Compare(a.GetName(), b.GetName()) })
	return objects
}

// render writes objects as YAML, without managed fields.
func render[T any, P object[T]](objects []P) string {
	if len(objects) == 0 {
		return "nothing"
	}
	var text strings.Builder
	for _, item := range objects {
		shown := item.DeepCopyObject().(P)
		shown.SetManagedFields(nil)
		encoded, err := yaml.Marshal(shown)
		if err != nil {
			encoded = []byte(err.Error())
		}
		fmt.Fprintf(&text, "---\n%s", encoded)
	}
	return text.String()
}
