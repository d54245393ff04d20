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
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// Indexes of what is watched. Their values are "namespace/name".
const (
	// byService finds ElastiServices and EndpointSlices by their Service.
	byService = "service"
	// byPrivateService finds ElastiServices by their private Service.
	byPrivateService = "privateService"
	// byAutoscaler finds ElastiServices by their autoscaler, whatever its type.
	byAutoscaler = "autoscaler"
	// byTarget finds ElastiServices by the name of their target, whatever its kind.
	byTarget = "target"
	// byOwner finds the objects that were made for an ElastiService.
	byOwner = "owner"
)

// scopedWatch is one watch over all namespaces, or one for each.
type scopedWatch struct {
	all    *informers.Handle
	single map[string]*informers.Handle
}

// in returns the watch that has a namespace.
func (w *scopedWatch) in(namespace string) *informers.Handle {
	if w.all != nil {
		return w.all
	}
	return w.single[namespace]
}

func (w *scopedWatch) handles() []*informers.Handle {
	if w.all != nil {
		return []*informers.Handle{w.all}
	}
	var handles []*informers.Handle
	for _, handle := range w.single {
		handles = append(handles, handle)
	}
	return handles
}

// scope is the namespace of the watch that has a namespace.
func (c *Controller) scope(namespace string) string {
	if len(c.options.Namespaces) == 0 {
		return metav1.NamespaceAll
	}
	return namespace
}

func (c *Controller) inScope(namespace string) bool {
	return len(c.options.Namespaces) == 0 || slices.Contains(c.options.Namespaces, namespace)
}

// watch acquires the watches of a resource that have the namespaces that are
// worked on.
func (c *Controller) watch(source func(namespace string) informers.Source) (*scopedWatch, error) {
	watches := &scopedWatch{single: map[string]*informers.Handle{}}
	if len(c.options.Namespaces) == 0 {
		handle, err := c.informers.Acquire(source(metav1.NamespaceAll))
		watches.all = handle
		return watches, err
	}
	for _, namespace := range c.options.Namespaces {
		handle, err := c.informers.Acquire(source(namespace))
		if err != nil {
			return nil, err
		}
		watches.single[namespace] = handle
	}
	return watches, nil
}

func (c *Controller) elastiServiceSource(namespace string) informers.Source {
	reader := c.options.Reader
	return informers.Source{
		Key: informers.Key{Resource: v1alpha1.SchemeGroupVersion.WithResource("elastiservices"), Namespace: namespace},
		List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return reader.List(ctx, namespace, options)
		},
		Watch: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return reader.Watch(ctx, namespace, options)
		},
		Client:    reader,
		Example:   &v1alpha1.ElastiService{},
		Transform: keepElastiService,
		Indexers: cache.Indexers{
			byService: index(func(elastiService *v1alpha1.ElastiService) []types.NamespacedName {
				return []types.NamespacedName{resources.PublicServiceKey(elastiService)}
			}),
			byPrivateService: index(func(elastiService *v1alpha1.ElastiService) []types.NamespacedName {
				return []types.NamespacedName{resources.PrivateServiceKey(resources.PublicServiceKey(elastiService))}
			}),
			byTarget: index(func(elastiService *v1alpha1.ElastiService) []types.NamespacedName {
				return []types.NamespacedName{target.Of(elastiService).NamespacedName()}
			}),
			byAutoscaler: index(func(elastiService *v1alpha1.ElastiService) []types.NamespacedName {
				if elastiService.Spec.Autoscaler == nil {
					return nil
				}
				return []types.NamespacedName{resources.AutoscalerKey(elastiService.Namespace, elastiService.Spec.Autoscaler.Name)}
			}),
		},
		Deleted: c.elastiServiceDeleted,
		Changed: c.elastiServiceChanged,
	}
}

func (c *Controller) serviceSource(namespace string) informers.Source {
	client := c.host.CoreV1().Services(namespace)
	return informers.Source{
		Key: informers.Key{Resource: corev1.SchemeGroupVersion.WithResource("services"), Namespace: namespace},
		List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		Watch: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
		Client:    c.host,
		Example:   &corev1.Service{},
		Transform: keepService(c.options.Signer),
		Indexers:  cache.Indexers{byOwner: index(func(service *corev1.Service) []types.NamespacedName { return resources.OwnerOf(&service.ObjectMeta) })},
		Changed:   c.serviceChanged,
		Synced:    func() { c.namespaceSynced(namespace) },
		Failed:    func() { c.namespaceFailed(namespace, c.services) },
	}
}

func (c *Controller) endpointSliceSource(namespace string) informers.Source {
	return c.filteredSliceSource(namespace, "")
}

// resolverSliceSource watches the slices of the resolvers' Service only, for
// when the namespace of the resolvers is not one that is worked on.
func (c *Controller) resolverSliceSource() informers.Source {
	selector := fields.OneTermEqualSelector(discoveryv1.LabelServiceName, c.options.ResolverService).String()
	return c.filteredSliceSource(c.options.ResolverNamespace, selector)
}

func (c *Controller) filteredSliceSource(namespace, labelSelector string) informers.Source {
	client := c.host.DiscoveryV1().EndpointSlices(namespace)
	return informers.Source{
		Key: informers.Key{Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), Namespace: namespace},
		List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = labelSelector
			return client.List(ctx, options)
		},
		Watch: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = labelSelector
			return client.Watch(ctx, options)
		},
		Client:    c.host,
		Example:   &discoveryv1.EndpointSlice{},
		Transform: keepSlice(c.options.Signer, c.resolverService()),
		Indexers: cache.Indexers{
			byService: index(func(slice *observedSlice) []types.NamespacedName {
				return []types.NamespacedName{slice.service()}
			}),
			byOwner: index(func(slice *observedSlice) []types.NamespacedName { return resources.OwnerOf(&slice.ObjectMeta) }),
		},
		Changed: c.endpointSliceChanged,
		Synced: func() {
			c.slicesTried.record(namespace)
			c.namespaceSynced(namespace)
		},
		Failed: func() {
			c.slicesTried.record(namespace)
			c.namespaceFailed(namespace, c.endpointSlices)
		},
	}
}

func index[T any](values func(T) []types.NamespacedName) cache.IndexFunc {
	return func(object any) ([]string, error) {
		var keys []string
		if typed, ok := object.(T); ok {
			for _, value := range values(typed) {
				keys = append(keys, value.String())
			}
		}
		return keys, nil
	}
}

// indexed returns the objects of a watch with a value in an index.
func indexed[T any](handle *informers.Handle, indexName string, value types.NamespacedName) []T {
	if handle == nil {
		return nil
	}
	found := handle.ByIndex(indexName, value.String())
	objects := make([]T, 0, len(found))
	for _, object := range found {
		objects = append(objects, object.(T))
	}
	return objects
}

// usersOfAutoscaler returns the ElastiServices that name an autoscaler.
func (c *Controller) usersOfAutoscaler(resource schema.GroupVersionResource, autoscaler types.NamespacedName) []types.NamespacedName {
	var users []types.NamespacedName
	for _, elastiService := range indexed[*v1alpha1.ElastiService](c.elastiServices.in(autoscaler.Namespace), byAutoscaler, autoscaler) {
		if of, _ := scaling.AutoscalerResource(string(elastiService.Spec.Autoscaler.Type)); of == resource {
			users = append(users, resources.KeyOf(elastiService))
		}
	}
	return users
}
