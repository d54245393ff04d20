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
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// observation is the state of the cluster as the API returns it.
type observation struct {
	deployments    map[types.NamespacedName]*appsv1.Deployment
	services       map[types.NamespacedName]*corev1.Service
	slices         []discoveryv1.EndpointSlice
	elastiServices []v1alpha1.ElastiService
	// terminating are the namespaces that are still being deleted.
	terminating []string
	resolvers   int
}

// observe reads the state of the namespaces of the tenants.
func (w *testbed) observe(ctx context.Context) (*observation, error) {
	s := &observation{deployments: map[types.NamespacedName]*appsv1.Deployment{}, services: map[types.NamespacedName]*corev1.Service{}}
	elastiServices, err := w.control.Elasti.ElastiV1alpha1().ElastiServices(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing ElastiServices: %w", err)
	}
	s.elastiServices = elastiServices.Items
	for _, tenant := range w.tenants {
		if err := s.observeNamespace(ctx, w, tenant.namespace); err != nil {
			return nil, err
		}
	}
	for namespace := range w.deletedNamespaces {
		_, err := w.control.Kubernetes.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if err == nil {
			s.terminating = append(s.terminating, namespace)
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

func (s *observation) observeNamespace(ctx context.Context, w *testbed, namespace string) error {
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
	return cache.MetaObjectToName(object).AsNamespacedName()
}

// violations returns the violated invariants in a quiet period.
func (s *observation) violations(w *testbed) (found []string) {
	report := func(format string, arguments ...any) { found = append(found, fmt.Sprintf(format, arguments...)) }
	for _, namespace := range s.terminating {
		report("namespace %s is not deleted", namespace)
	}
	for i := range s.elastiServices {
		s.checkElastiService(&s.elastiServices[i], report)
	}
	s.checkSharedPorts(report)
	s.checkLeftovers(w, report)
	for name, object := range s.deployments {
		replicas := ptr.Deref(object.Spec.Replicas, 1)
		switch {
		case name.Name == bystander && replicas != 0:
			report("%s was scaled to %d, and nothing manages it", name, replicas)
		case name.Name == bystander || replicas > 0:
		case w.wakes[name]:
			report("%s is at zero after it was woken", name)
		case !s.hasEndpoints(name) && !w.leftAtZero[name] && !s.isForgotten(w, name) && (w.released[name] || !s.waitsForItsService(name)):
			report("%s is at zero with no resolver in front of it", name)
		}
	}
	return found
}

// checkElastiService checks one ElastiService and all that belongs to it.
func (s *observation) checkElastiService(object *v1alpha1.ElastiService, report func(string, ...any)) {
	name := nameOf(object)
	say := func(format string, arguments ...any) {
		report("ElastiService "+name.String()+": "+format, arguments...)
	}
	if object.DeletionTimestamp != nil {
		say("it is still being deleted")
		return
	}
	if object.Status.ObservedGeneration != object.Generation {
		say("generation %d is observed of %d", object.Status.ObservedGeneration, object.Generation)
	}
	public := resources.PublicServiceKey(object)
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
	s.checkPorts(object, service, say)
	private, ok := s.services[resources.PrivateServiceKey(resources.PublicServiceKey(object))]
	switch {
	case !ok:
		say("there is no private Service of Service %s", public.Name)
	case private.Annotations[v1alpha1.AnnotationOwner] != object.Name || managedTarget(private) != object.Spec.ScaleTargetRef.Name || private.Spec.Selector[appLabel] != service.Spec.Selector[appLabel]:
		say("the private Service is %v for the pods %v", private.Annotations, private.Spec.Selector)
	}
}

// checkPorts checks that each TCP port has a proxy port that the slices have too.
func (s *observation) checkPorts(object *v1alpha1.ElastiService, service *corev1.Service, say func(string, ...any)) {
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

// checkSharedPorts finds proxy ports with two owners.
func (s *observation) checkSharedPorts(report func(string, ...any)) {
	owners := map[int32]string{}
	for i := range s.elastiServices {
		name := nameOf(&s.elastiServices[i]).String()
		for _, port := range s.elastiServices[i].Status.ProxyPorts {
			if other, taken := owners[port.ProxyPort]; taken {
				report("proxy port %d belongs to %s and to %s", port.ProxyPort, other, name)
			}
			owners[port.ProxyPort] = name
		}
	}
}

// checkLeftovers finds the objects of ElastiServices that do not exist any more. A store
// without ElastiServices may have lost them.
func (s *observation) checkLeftovers(w *testbed, report func(string, ...any)) {
	if len(s.elastiServices) == 0 && w.mayBeLost {
		return
	}
	needed := s.needed()
	edited := map[types.NamespacedName]bool{}
	for public := range w.editedPrivate {
		edited[privateOf(public)] = true
	}
	for name := range s.services {
		// The owner of one that a tenant has edited is unknown, unless there is a
		// resolver slice.
		if strings.HasPrefix(name.Name, "elasti-") && !needed[name] && !edited[name] {
			report("the private Service %s is left", name)
		}
	}
	for i := range s.slices {
		public := v1alpha1.SliceServiceKey(&s.slices[i])
		if isResolverSlice(&s.slices[i]) && !needed[public] && !w.hasNoRecords(public) {
			report("the resolver slice %s/%s is left", s.slices[i].Namespace, s.slices[i].Name)
		}
	}
}

// needed returns the Services that ElastiServices have, and their private Services.
func (s *observation) needed() map[types.NamespacedName]bool {
	needed := map[types.NamespacedName]bool{}
	for i := range s.elastiServices {
		public := resources.PublicServiceKey(&s.elastiServices[i])
		if service, ok := s.services[public]; ok && isSupported(service) {
			needed[public] = true
			needed[privateOf(public)] = true
		}
	}
	for name := range s.services {
		if s.isRecord(name) {
			needed[name] = true
		}
	}
	return needed
}

// isRecord reports whether a private Service is the record of a sleeping target while the
// Service of its ElastiService does not exist.
func (s *observation) isRecord(name types.NamespacedName) bool {
	private := s.services[name]
	target, ok := s.deployments[types.NamespacedName{Namespace: name.Namespace, Name: managedTarget(private)}]
	return ok && ptr.Deref(target.Spec.Replicas, 1) == 0 && slices.ContainsFunc(s.elastiServices, func(object v1alpha1.ElastiService) bool {
		_, exists := s.services[resources.PublicServiceKey(&object)]
		return !exists && object.Namespace == name.Namespace && object.Name == private.Annotations[v1alpha1.AnnotationOwner] &&
			object.Spec.ScaleTargetRef.Name == target.Name
	})
}

// hasEndpoints reports whether each Service of a target has an endpoint: the Services
// that its ElastiServices have, or had before the store lost them.
func (s *observation) hasEndpoints(target types.NamespacedName) bool {
	found := false
	for _, name := range serviceNames {
		public := types.NamespacedName{Namespace: target.Namespace, Name: name}
		private, ok := s.services[types.NamespacedName{Namespace: target.Namespace, Name: resources.PrivateServiceName(name)}]
		if !ok || managedTarget(private) != target.Name {
			continue
		}
		if resolvers, others := s.endpoints(public); resolvers+others == 0 && s.resolvers > 0 {
			return false
		}
		found = true
	}
	return found
}

func privateOf(public types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: public.Namespace, Name: resources.PrivateServiceName(public.Name)}
}

// hasNoRecords reports whether a tenant has edited both objects that record the target
// of a Service.
func (w *testbed) hasNoRecords(public types.NamespacedName) bool {
	return w.editedPrivate[public] && w.editedSlices[public]
}

// isForgotten reports whether more was lost of a target than one loss: its ElastiService,
// and what recorded the target in the cluster.
func (s *observation) isForgotten(w *testbed, target types.NamespacedName) bool {
	if w.orphaned[target] && time.Since(w.disturbed) < leaseTime {
		return true
	}
	if w.mayBeLost && (w.onlyInStore[target] || w.touchedServices(target.Namespace)) {
		return true
	}
	needed := s.needed()
	return slices.ContainsFunc(serviceNames, func(name string) bool {
		public := types.NamespacedName{Namespace: target.Namespace, Name: name}
		return w.hasNoRecords(public) && (w.mayBeLost || !needed[public])
	})
}

// touchedServices reports whether the test has changed a Service of a namespace in this
// round.
func (w *testbed) touchedServices(namespace string) bool {
	return slices.ContainsFunc(serviceNames, func(name string) bool { return w.touched.objects[keyOf(service, namespace, name)] })
}

// waitsForItsService reports whether a target has an ElastiService whose Service does not
// exist, so that no client can call it.
func (s *observation) waitsForItsService(target types.NamespacedName) bool {
	return slices.ContainsFunc(s.elastiServices, func(object v1alpha1.ElastiService) bool {
		_, ok := s.services[resources.PublicServiceKey(&object)]
		return !ok && object.Namespace == target.Namespace && object.Spec.ScaleTargetRef.Name == target.Name
	})
}

func (s *observation) resolverSlices(public types.NamespacedName) (found []*discoveryv1.EndpointSlice) {
	for i := range s.slices {
		slice := &s.slices[i]
		if v1alpha1.SliceServiceKey(slice) == public && isResolverSlice(slice) {
			found = append(found, slice)
		}
	}
	return found
}

// endpoints counts the ready endpoints of a Service: resolvers, and others. What
// tenants forge is not among the others.
func (s *observation) endpoints(public types.NamespacedName) (resolvers, others int) {
	for i := range s.slices {
		slice := &s.slices[i]
		switch {
		case v1alpha1.SliceServiceKey(slice) != public:
		case isResolverSlice(slice):
			resolvers += countReady(slice)
		default:
			others += countReady(slice)
		}
	}
	return resolvers, others
}

// record records the state for the next rounds.
func (s *observation) record(w *testbed) {
	clear(w.onlyInStore)
	for name, object := range s.deployments {
		switch asleep := ptr.Deref(object.Spec.Replicas, 1) == 0; {
		case !asleep || s.hasEndpoints(name):
		case s.waitsForItsService(name):
			w.onlyInStore[name] = true
		case s.isForgotten(w, name):
			w.leftAtZero[name] = true
		}
	}
	clear(w.wakes)
	clear(w.released)
	clear(w.orphaned)
	w.empty = len(s.elastiServices) == 0
	w.mayBeLost = w.mayBeLost && len(s.elastiServices) == 0
	needed := s.needed()
	for _, edited := range []map[types.NamespacedName]bool{w.editedPrivate, w.editedSlices} {
		for public := range edited {
			if _, ok := s.services[privateOf(public)]; needed[public] || !ok && len(s.resolverSlices(public)) == 0 {
				delete(edited, public)
			}
		}
	}
	for name, object := range s.deployments {
		if ptr.Deref(object.Spec.Replicas, 1) > 0 || s.hasEndpoints(name) {
			delete(w.leftAtZero, name)
		}
	}
}
