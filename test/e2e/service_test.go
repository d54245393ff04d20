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

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

func TestEveryPortOfAServiceWakesAndReachesItsOwnTargetPort(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{ServicePorts: []corev1.ServicePort{
		{Name: "named", Port: 80, TargetPort: intstr.FromString("http")},
		{Name: "numbered", Port: 8000, TargetPort: intstr.FromInt32(8080)},
	}})
	for _, port := range []int{8000, 80} {
		response, err := cluster.Get(s.ctx, fmt.Sprintf("http://%s:%d/port", app.Address, port))
		s.check(err)
		s.checkResponse(app, response, "/port")
	}
}

func TestResolverSliceIsPutBackWhenItWasEditedOrDeleted(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})
	client := s.Host.DiscoveryV1().EndpointSlices(s.namespace)
	slice := s.resolverSlice(app)

	edited := slice.DeepCopy()
	edited.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.244.255.254"}}}
	_, err := client.Update(s.ctx, edited, metav1.UpdateOptions{})
	s.check(err)
	s.awaitSliceLike(app, "the edited slice is as before", slice, func(*discoveryv1.EndpointSlice) bool { return true })

	s.check(client.Delete(s.ctx, slice.Name, metav1.DeleteOptions{}))
	s.awaitSliceLike(app, "the deleted slice is back", slice, func(now *discoveryv1.EndpointSlice) bool { return now.UID != slice.UID })
	s.get(app, "/")
}

func TestEndpointsOfResolversTellTheirConditions(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	slice := s.resolverSlice(s.asleep(cluster.ApplicationOptions{}))
	for _, endpoint := range slice.Endpoints {
		conditions := endpoint.Conditions
		if conditions.Ready == nil || conditions.Serving == nil || conditions.Terminating == nil || endpoint.NodeName == nil {
			t.Errorf("an endpoint leaves open whether it is ready, serving, terminating, or where it is: %+v", endpoint)
		}
	}
}

func TestUserServiceIsNeverEdited(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})
	before, err := s.Host.CoreV1().Services(s.namespace).Get(s.ctx, app.Name, metav1.GetOptions{})
	s.check(err)
	s.get(app, "/")
	s.check(app.AwaitMode(s.ctx, v1alpha1.ModeServe))
	s.check(app.Sleep(s.ctx))
	s.deleteElastiService(app)
	after, err := s.Host.CoreV1().Services(s.namespace).Get(s.ctx, app.Name, metav1.GetOptions{})
	s.check(err)
	if before.ResourceVersion != after.ResourceVersion {
		t.Errorf("the Service was changed by %v", after.ManagedFields)
	}
}

func TestDeletedElastiServiceLeavesTheTargetAwakeAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.awake(cluster.ApplicationOptions{})
	s.check(app.Sleep(s.ctx))
	s.check(app.AwaitResolverSlice(s.ctx, true))
	observer := s.observe()
	deleted := time.Now()
	s.deleteElastiService(app)
	s.check(app.AwaitResolverSlice(s.ctx, false))
	removed, err := observer.Await(s.ctx, deleted, cluster.ResolversRemoved, app.Name, "")
	s.check(err)
	ready, err := observer.Await(s.ctx, deleted, cluster.EndpointReady, app.Name, "")
	s.check(err)
	if removed.At.Before(ready.At) {
		t.Errorf("the resolver slice was removed %s before the Service had a ready endpoint", ready.At.Sub(removed.At))
	}
	s.awaitPrivateServices(0)
	s.checkReplicas(app, 1)
	s.awaitPods(app, 1)
	s.get(app, "/")
}

func TestDeletedNamespaceIsNotHeldUp(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	namespace := s.newNamespace()
	s.asleepIn(namespace, cluster.ApplicationOptions{Name: "asleep"})
	missing := s.NewApplication(namespace, cluster.ApplicationOptions{Name: "missing"})
	s.check(missing.CreateElastiService(s.ctx))
	s.check(s.DeleteNamespace(s.ctx, namespace))
	s.check(s.AwaitNamespaceDeleted(s.ctx, namespace))
}

// deleteElastiService deletes an ElastiService and waits until its finalizer is done.
func (s *scene) deleteElastiService(app *cluster.Application) {
	s.Helper()
	s.check(app.DeleteElastiService(s.ctx))
	s.check(s.AwaitElastiServiceDeleted(s.ctx, app.Namespace, app.Name))
}

// resolverSlice reads the resolver slice of an application that is asleep.
func (s *scene) resolverSlice(app *cluster.Application) *discoveryv1.EndpointSlice {
	s.Helper()
	found, err := s.AwaitEndpointSlices(s.ctx, app.Namespace, app.Name, "there is a resolver slice with an endpoint", func(found []*discoveryv1.EndpointSlice) bool {
		return len(readyResolvers(found)) > 0
	})
	s.check(err)
	return found[slices.IndexFunc(found, cluster.IsResolverSlice)]
}

// awaitSliceLike waits until the resolver slice of an application has the
// endpoints and ports of the given one, and fulfills the condition.
func (s *scene) awaitSliceLike(app *cluster.Application, what string, want *discoveryv1.EndpointSlice, condition func(*discoveryv1.EndpointSlice) bool) {
	s.Helper()
	_, err := s.AwaitEndpointSlices(s.ctx, app.Namespace, app.Name, what, func(found []*discoveryv1.EndpointSlice) bool {
		i := slices.IndexFunc(found, cluster.IsResolverSlice)
		return i >= 0 && condition(found[i]) && found[i].Name == want.Name &&
			slices.Equal(readyResolvers(found), readyResolvers([]*discoveryv1.EndpointSlice{want})) &&
			slices.EqualFunc(found[i].Ports, want.Ports, func(a, b discoveryv1.EndpointPort) bool {
				return ptr.Equal(a.Name, b.Name) && ptr.Equal(a.Port, b.Port)
			})
	})
	s.check(err)
}

// awaitPrivateServices waits until the namespace has a number of private Services.
func (s *scene) awaitPrivateServices(number int) {
	s.Helper()
	_, err := s.AwaitServices(s.ctx, s.namespace, fmt.Sprintf("there are %d private Services", number), func(found []*corev1.Service) bool {
		private := 0
		for _, service := range found {
			if service.Labels[v1alpha1.LabelRole] == v1alpha1.RolePrivate {
				private++
			}
		}
		return private == number
	})
	s.check(err)
}
