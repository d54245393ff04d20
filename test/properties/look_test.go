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
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// sight is what there is, as the API says it.
type sight struct {
	deployments    map[types.NamespacedName]*appsv1.Deployment
	services       map[types.NamespacedName]*corev1.Service
	slices         []discoveryv1.EndpointSlice
	elastiServices []v1alpha1.ElastiService
	// leaving are the namespaces that are not gone yet.
	leaving   []string
	resolvers int
}

// look reads what there is in the namespaces of the tenants.
func (w *world) look(ctx context.Context) (*sight, error) {
	s := &sight{deployments: map[types.NamespacedName]*appsv1.Deployment{}, services: map[types.NamespacedName]*corev1.Service{}}
	elastiServices, err := w.control.Elasti.ElastiV1alpha1().ElastiServices(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing ElastiServices: %w", err)
	}
	s.elastiServices = elastiServices.Items
	for _, tenant := range w.tenants {
		if err := s.lookInto(ctx, w, tenant.namespace); err != nil {
			return nil, err
		}
	}
	for namespace := range w.gone {
		_, err := w.control.Kubernetes.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if err == nil {
			s.leaving = append(s.leaving, namespace)
		} else if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	resolvers, err := w.control.Kubernetes.DiscoveryV1().EndpointSlices(environment.SystemNamespace).
		List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + environment.ResolverName})
	if err != nil {
		return nil, err
	}
	for i := range resolvers.Items {
		s.resolvers += countReady(&resolvers.Items[i])
	}
	return s, nil
}

func (s *sight) lookInto(ctx context.Context, w *world, namespace string) error {
	deployments, err := w.control.Kubernetes.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range deployments.Items {
		s.deployments[nameOf(&deployments.Items[i])] = &deployments.Items[i]
	}
	services, err := w.control.Kubernetes.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range services.Items {
		s.services[nameOf(&services.Items[i])] = &services.Items[i]
	}
	endpointSlices, err := w.control.Kubernetes.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	s.slices = append(s.slices, endpointSlices.Items...)
	return nil
}

func nameOf(object metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// complaints returns what is not as it is to be in a quiet moment.
func (s *sight) complaints(w *world) (found []string) {
	complain := func(format string, arguments ...any) { found = append(found, fmt.Sprintf(format, arguments...)) }
	for _, namespace := range s.leaving {
		complain("namespace %s is not gone", namespace)
	}
	for i := range s.elastiServices {
		s.lookAt(&s.elastiServices[i], complain)
	}
	s.lookForSharedPorts(complain)
	s.lookForLeftovers(w, complain)
	for name, object := range s.deployments {
		replicas := ptr.Deref(object.Spec.Replicas, 1)
		switch {
		case name.Name == bystander && replicas != 0:
			complain("%s was scaled to %d, and nothing manages it", name, replicas)
		case name.Name == bystander || replicas > 0:
		case w.wakes[name]:
			complain("%s is at zero after it was woken", name)
		case !s.isCovered(name) && !w.leftAtZero[name] && !s.lost(w, name.Namespace) && (w.released[name] || !s.waitsForItsService(name)):
			complain("%s is at zero with no resolver in front of it", name)
		}
	}
	return found
}

// lookAt looks at one ElastiService and all that belongs to it.
func (s *sight) lookAt(object *v1alpha1.ElastiService, complain func(string, ...any)) {
	name := nameOf(object)
	say := func(format string, arguments ...any) {
		complain("ElastiService "+name.String()+": "+format, arguments...)
	}
	if object.DeletionTimestamp != nil {
		say("it is still being deleted")
		return
	}
	if object.Status.ObservedGeneration != object.Generation {
		say("generation %d is observed of %d", object.Status.ObservedGeneration, object.Generation)
	}
	public := types.NamespacedName{Namespace: object.Namespace, Name: object.Spec.Service}
	service, ok := s.services[public]
	resolvers, others := s.endpoints(public)
	if !ok || !isSupported(service) {
		if resolvers > 0 {
			say("Service %s, which is unsupported or missing, has %d resolvers", public.Name, resolvers)
		}
		return
	}
	target, exists := s.deployments[types.NamespacedName{Namespace: object.Namespace, Name: object.Spec.ScaleTargetRef.Name}]
	always := object.Spec.Proxy != nil && object.Spec.Proxy.Policy == v1alpha1.ProxyAlways
	asleep := exists && ptr.Deref(target.Spec.Replicas, 1) == 0
	switch {
	case s.resolvers > 0 && resolvers == 0 && (others == 0 || always):
		say("Service %s has %d endpoints and no resolver; asleep: %t", public.Name, others, asleep)
	case resolvers > 0 && others > 0 && !always:
		say("Service %s has %d endpoints, and resolvers beside them", public.Name, others)
	}
	if inPath := len(s.resolverSlices(public)) > 0; inPath != (object.Status.Mode == v1alpha1.ModeProxy) {
		say("the mode is %q, and there are resolver slices: %t", object.Status.Mode, inPath)
	}
	s.lookAtPorts(object, service, say)
	private, ok := s.services[types.NamespacedName{Namespace: object.Namespace, Name: resources.PrivateServiceName(public.Name)}]
	switch {
	case !ok:
		say("there is no private Service of Service %s", public.Name)
	case private.Annotations[v1alpha1.AnnotationOwner] != object.Name || managedTarget(private) != object.Spec.ScaleTargetRef.Name || private.Spec.Selector[appLabel] != service.Spec.Selector[appLabel]:
		say("the private Service is %v for the pods %v", private.Annotations, private.Spec.Selector)
	}
}

// lookAtPorts looks whether each TCP port has a proxy port that the slices have too.
func (s *sight) lookAtPorts(object *v1alpha1.ElastiService, service *corev1.Service, say func(string, ...any)) {
	var want, recorded []string
	for _, port := range tcpPorts(service) {
		want = append(want, fmt.Sprintf("%s %d", port.Name, port.Port))
	}
	proxied := map[string]int32{}
	for _, port := range object.Status.ProxyPorts {
		recorded = append(recorded, fmt.Sprintf("%s %d", port.Name, port.Port))
		proxied[port.Name] = port.ProxyPort
	}
	if !slices.Equal(want, recorded) {
		say("the proxy ports are for %v, and the Service has %v", recorded, want)
	}
	for _, slice := range s.resolverSlices(nameOf(service)) {
		for _, port := range slice.Ports {
			if proxied[ptr.Deref(port.Name, "")] != ptr.Deref(port.Port, 0) {
				say("a resolver slice leads %s to port %d, and the proxy ports are %v", ptr.Deref(port.Name, ""), ptr.Deref(port.Port, 0), object.Status.ProxyPorts)
			}
		}
	}
}

// lookForSharedPorts looks for proxy ports with two owners.
func (s *sight) lookForSharedPorts(complain func(string, ...any)) {
	owners := map[int32]string{}
	for i := range s.elastiServices {
		name := nameOf(&s.elastiServices[i]).String()
		for _, port := range s.elastiServices[i].Status.ProxyPorts {
			if other, taken := owners[port.ProxyPort]; taken {
				complain("proxy port %d belongs to %s and to %s", port.ProxyPort, other, name)
			}
			owners[port.ProxyPort] = name
		}
	}
}

// lookForLeftovers looks for what was made for ElastiServices that are not there any
// more. A store that knows none at all has lost them.
func (s *sight) lookForLeftovers(w *world, complain func(string, ...any)) {
	if len(s.elastiServices) == 0 {
		return
	}
	needed := s.needed()
	for name := range s.services {
		if strings.HasPrefix(name.Name, "elasti-") && !needed[name] && !w.edited[name] {
			complain("the private Service %s is left", name)
		}
	}
	for i := range s.slices {
		public := types.NamespacedName{Namespace: s.slices[i].Namespace, Name: s.slices[i].Labels[discoveryv1.LabelServiceName]}
		if isResolverSlice(&s.slices[i]) && !needed[public] {
			complain("the resolver slice %s/%s is left", s.slices[i].Namespace, s.slices[i].Name)
		}
	}
}

// needed returns the Services that ElastiServices have, and their private Services.
func (s *sight) needed() map[types.NamespacedName]bool {
	needed := map[types.NamespacedName]bool{}
	for i := range s.elastiServices {
		public := types.NamespacedName{Namespace: s.elastiServices[i].Namespace, Name: s.elastiServices[i].Spec.Service}
		if service, ok := s.services[public]; ok && isSupported(service) {
			needed[public] = true
			needed[types.NamespacedName{Namespace: public.Namespace, Name: resources.PrivateServiceName(public.Name)}] = true
		}
	}
	return needed
}

// isCovered tells whether a target has somebody in front of it: each Service that its
// ElastiServices have, or had before the store lost them.
func (s *sight) isCovered(target types.NamespacedName) bool {
	covered := false
	for _, name := range serviceNames {
		public := types.NamespacedName{Namespace: target.Namespace, Name: name}
		private, ok := s.services[types.NamespacedName{Namespace: target.Namespace, Name: resources.PrivateServiceName(name)}]
		if !ok || managedTarget(private) != target.Name {
			continue
		}
		if resolvers, others := s.endpoints(public); resolvers+others == 0 && s.resolvers > 0 {
			return false
		}
		covered = true
	}
	return covered
}

// lost tells whether there is a private Service in a namespace that a tenant has
// edited and whose ElastiService is gone: what its target was is not known.
func (s *sight) lost(w *world, namespace string) bool {
	needed := s.needed()
	for name := range w.edited {
		if _, ok := s.services[name]; ok && name.Namespace == namespace && !needed[name] {
			return true
		}
	}
	return false
}

// waitsForItsService tells whether a target has an ElastiService whose Service is
// not there: nobody can call it.
func (s *sight) waitsForItsService(target types.NamespacedName) bool {
	return slices.ContainsFunc(s.elastiServices, func(object v1alpha1.ElastiService) bool {
		_, ok := s.services[types.NamespacedName{Namespace: object.Namespace, Name: object.Spec.Service}]
		return !ok && object.Namespace == target.Namespace && object.Spec.ScaleTargetRef.Name == target.Name
	})
}

func (s *sight) resolverSlices(public types.NamespacedName) (found []*discoveryv1.EndpointSlice) {
	for i := range s.slices {
		slice := &s.slices[i]
		if slice.Namespace == public.Namespace && slice.Labels[discoveryv1.LabelServiceName] == public.Name && isResolverSlice(slice) {
			found = append(found, slice)
		}
	}
	return found
}

// endpoints counts the ready endpoints of a Service: resolvers, and others. What
// tenants forge is not among the others.
func (s *sight) endpoints(public types.NamespacedName) (resolvers, others int) {
	for i := range s.slices {
		slice := &s.slices[i]
		switch {
		case slice.Namespace != public.Namespace || slice.Labels[discoveryv1.LabelServiceName] != public.Name:
		case isResolverSlice(slice):
			resolvers += countReady(slice)
		default:
			others += countReady(slice)
		}
	}
	return resolvers, others
}

// remember takes over what counts in the next rounds.
func (s *sight) remember(w *world) {
	clear(w.wakes)
	clear(w.released)
	needed := s.needed()
	for name := range w.edited {
		if _, ok := s.services[name]; !ok || needed[name] {
			delete(w.edited, name)
		}
	}
	for name, object := range s.deployments {
		if ptr.Deref(object.Spec.Replicas, 1) > 0 || s.isCovered(name) {
			delete(w.leftAtZero, name)
		}
	}
}
