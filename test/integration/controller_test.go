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
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

const (
	firstProxyPort, lastProxyPort = 10000, 29999
)

func TestATargetAtZeroHasResolversInThePath(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue)

	object := readElastiService(t, namespace)
	public, err := shared.Kubernetes.CoreV1().Services(namespace).Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the public Service: %v", err)
	}
	private, err := shared.Kubernetes.CoreV1().Services(namespace).Get(t.Context(), object.Status.PrivateService, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the private Service that the status names: %v", err)
	}
	if private.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("the private Service has the cluster IP %s, want none", private.Spec.ClusterIP)
	}
	if !maps.Equal(private.Spec.Selector, public.Spec.Selector) {
		t.Errorf("the private Service selects %v, the public one %v", private.Spec.Selector, public.Spec.Selector)
	}
	if !equality.Semantic.DeepEqual(private.Spec.Ports, public.Spec.Ports) {
		t.Errorf("the private Service has the ports %+v, the public one %+v", private.Spec.Ports, public.Spec.Ports)
	}
	if private.Labels[v1alpha1.LabelRole] != v1alpha1.RolePrivate || private.Labels[v1alpha1.LabelManagedBy] != environment.ServerName {
		t.Errorf("the private Service has the labels %v", private.Labels)
	}

	slice := resolverSlices(t.Context(), t, namespace)[0]
	if slice.Labels[v1alpha1.LabelRole] != v1alpha1.RoleResolver {
		t.Errorf("the resolver slice has the labels %v", slice.Labels)
	}
	if len(slice.Endpoints) != 1 || !slices.Equal(slice.Endpoints[0].Addresses, []string{shared.Resolvers[0].Address}) {
		t.Fatalf("the resolver slice has the endpoints %+v, want the ready resolver", slice.Endpoints)
	}
	conditions := slice.Endpoints[0].Conditions
	if conditions.Ready == nil || !*conditions.Ready || conditions.Serving == nil || !*conditions.Serving || conditions.Terminating == nil || *conditions.Terminating {
		t.Errorf("the conditions of the resolver are %+v, want all of them explicit", conditions)
	}
	if ptr.Deref(slice.Endpoints[0].NodeName, "") == "" {
		t.Errorf("the resolver in the slice has no node")
	}
	if len(object.Status.ProxyPorts) != len(public.Spec.Ports) || len(slice.Ports) != len(public.Spec.Ports) {
		t.Fatalf("%d ports of the Service have %d proxy ports and %d in the slice", len(public.Spec.Ports), len(object.Status.ProxyPorts), len(slice.Ports))
	}
	for i, port := range public.Spec.Ports {
		proxyPort := object.Status.ProxyPorts[i]
		if proxyPort.Port != port.Port || proxyPort.Name != port.Name || proxyPort.AppProtocol != ptr.Deref(port.AppProtocol, "") {
			t.Errorf("the proxy port of %+v is %+v", port, proxyPort)
		}
		if proxyPort.ProxyPort < firstProxyPort || proxyPort.ProxyPort > lastProxyPort {
			t.Errorf("the proxy port of %s is %d, want one from %d to %d", port.Name, proxyPort.ProxyPort, firstProxyPort, lastProxyPort)
		}
		if ptr.Deref(slice.Ports[i].Name, "") != port.Name || ptr.Deref(slice.Ports[i].Port, 0) != proxyPort.ProxyPort {
			t.Errorf("the port %s of the slice is %d, want %d", port.Name, ptr.Deref(slice.Ports[i].Port, 0), proxyPort.ProxyPort)
		}
	}
}

// The resolvers get the pods from the slices of the private Service, which they select by
// the label that the EndpointSlice controller copies from it.
func TestPodsAreAmongThePrivateEndpointsBeforeTheyAreReady(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 1)
	createElastiService(t, namespace, newElastiService("app"))
	pod := runPod(t, namespace, "app")
	eventually(t, "the pod is a private endpoint", func(ctx context.Context) string {
		list, err := shared.Kubernetes.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelRole + "=" + v1alpha1.RolePrivate})
		if err != nil {
			return err.Error()
		}
		for _, slice := range list.Items {
			for _, endpoint := range slice.Endpoints {
				if endpoint.TargetRef != nil && endpoint.TargetRef.Name == pod {
					return ""
				}
			}
		}
		return fmt.Sprintf("it is in none of %d slices", len(list.Items))
	})
	waitForMode(t, namespace, v1alpha1.ModeProxy)
}

// New connections have an endpoint at every moment from the first on.
func TestModesSwitchWithoutAGap(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	record := recordEndpoints(t, namespace)

	for round := range 3 {
		if _, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
			t.Fatalf("waking in round %d: %v", round, err)
		}
		pod := runPod(t, namespace, "app")
		setReady(t, namespace, pod, true)
		waitForMode(t, namespace, v1alpha1.ModeServe)
		waitForNoResolverSlices(t, namespace)

		scaleTarget(t, namespace, 0)
		waitForMode(t, namespace, v1alpha1.ModeProxy)
		removePod(t, namespace, pod)
		eventually(t, "the private endpoints are deleted", func(ctx context.Context) string {
			if endpoints := ownEndpoints(ctx, t, namespace); endpoints > 0 {
				return fmt.Sprintf("there are %d", endpoints)
			}
			return ""
		})
	}
	record.expectNoGap(t)
}

func TestResolversAreInThePathOfAnUnreadyPod(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 1)
	createElastiService(t, namespace, newElastiService("app"))
	pod := runPod(t, namespace, "app")
	setReady(t, namespace, pod, true)
	waitForMode(t, namespace, v1alpha1.ModeServe)
	waitForNoResolverSlices(t, namespace)
	setReady(t, namespace, pod, false)
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	setReady(t, namespace, pod, true)
	waitForMode(t, namespace, v1alpha1.ModeServe)
	waitForNoResolverSlices(t, namespace)
}

func TestServiceAndTargetMayComeLater(t *testing.T) {
	namespace := newNamespace(t)
	createElastiService(t, namespace, newElastiService("app"))
	waitForCondition(t, namespace, v1alpha1.ConditionServiceFound, metav1.ConditionFalse)
	waitForCondition(t, namespace, v1alpha1.ConditionTargetFound, metav1.ConditionFalse)
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionFalse)

	createService(t, namespace)
	waitForCondition(t, namespace, v1alpha1.ConditionServiceFound, metav1.ConditionTrue)
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	createDeployment(t, namespace, 0)
	waitForCondition(t, namespace, v1alpha1.ConditionTargetFound, metav1.ConditionTrue)
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue)
}

func TestObjectsThatOthersChangeArePutBack(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue)
	slice := resolverSlices(t.Context(), t, namespace)[0]
	private := readElastiService(t, namespace).Status.PrivateService
	slicesClient, services := shared.Kubernetes.DiscoveryV1().EndpointSlices(namespace), shared.Kubernetes.CoreV1().Services(namespace)
	isPutBack := func(ctx context.Context) string {
		current := resolverSlices(ctx, t, namespace)
		if len(current) != 1 {
			return fmt.Sprintf("there are %d resolver slices", len(current))
		}
		if !equality.Semantic.DeepEqual(current[0].Endpoints, slice.Endpoints) || !equality.Semantic.DeepEqual(current[0].Ports, slice.Ports) || !maps.Equal(current[0].Labels, slice.Labels) {
			return fmt.Sprintf("it is %+v", current[0])
		}
		return ""
	}
	for _, change := range []struct{ what, patch string }{
		{"endpoints", `{"endpoints":[]}`},
		{"ports", `{"ports":[{"name":"http","port":1}]}`},
		{"role", `{"metadata":{"labels":{"elasti.truefoundry.com/role":"other"}}}`},
	} {
		if _, err := slicesClient.Patch(t.Context(), slice.Name, types.MergePatchType, []byte(change.patch), metav1.PatchOptions{}); err != nil {
			t.Fatalf("changing the %s of the resolver slice: %v", change.what, err)
		}
		eventually(t, "the "+change.what+" of the resolver slice are put back", isPutBack)
	}
	if err := slicesClient.Delete(t.Context(), slice.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting the resolver slice: %v", err)
	}
	eventually(t, "the resolver slice is back", isPutBack)

	if _, err := services.Patch(t.Context(), private, types.MergePatchType, []byte(`{"spec":{"selector":{"app":"other"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatalf("changing the private Service: %v", err)
	}
	eventually(t, "the selector of the private Service is put back", func(ctx context.Context) string {
		service, err := services.Get(ctx, private, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if !maps.Equal(service.Spec.Selector, appLabels) {
			return fmt.Sprintf("it is %v", service.Spec.Selector)
		}
		return ""
	})
	if err := services.Delete(t.Context(), private, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting the private Service: %v", err)
	}
	eventually(t, "the private Service is back", func(ctx context.Context) string {
		if _, err := services.Get(ctx, private, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
}

func TestResolverSlicesFollowTheReadyResolvers(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	second := shared.Resolvers[1]
	for _, step := range []struct {
		ready bool
		want  []string
	}{
		{true, []string{shared.Resolvers[0].Address, second.Address}},
		{false, []string{shared.Resolvers[0].Address}},
	} {
		setReady(t, environment.SystemNamespace, second.Pod, step.ready)
		slices.Sort(step.want)
		eventually(t, "the resolver slice follows", func(ctx context.Context) string {
			var addresses []string
			for _, slice := range resolverSlices(ctx, t, namespace) {
				for _, endpoint := range slice.Endpoints {
					addresses = append(addresses, endpoint.Addresses...)
				}
			}
			if slices.Sort(addresses); !slices.Equal(addresses, step.want) {
				return fmt.Sprintf("it has %v, want %v", addresses, step.want)
			}
			return ""
		})
	}
}

func TestServicesOfOneNameInTwoNamespacesAreApart(t *testing.T) {
	first, second := newNamespace(t), newNamespace(t)
	taken := map[int32]string{}
	for _, namespace := range []string{first, second} {
		createApplication(t, namespace, 0)
		createElastiService(t, namespace, newElastiService("app"))
		waitForMode(t, namespace, v1alpha1.ModeProxy)
		for _, port := range readElastiService(t, namespace).Status.ProxyPorts {
			if other, found := taken[port.ProxyPort]; found {
				t.Errorf("the proxy port %d belongs to %s and %s", port.ProxyPort, other, namespace)
			}
			taken[port.ProxyPort] = namespace
		}
	}
	if _, err := elastiServices(first).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking: %v", err)
	}
	if replicas := desiredReplicas(t, second); replicas != 0 {
		t.Errorf("waking in one namespace has scaled the other one to %d", replicas)
	}
}

func TestDeletionLeavesTheTargetAwakeAndNothingElse(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	before, err := shared.Kubernetes.CoreV1().Services(namespace).Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the public Service: %v", err)
	}
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	if err := elastiServices(namespace).Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting: %v", err)
	}
	pod := runPod(t, namespace, "app")
	if len(resolverSlices(t.Context(), t, namespace)) == 0 {
		t.Error("the resolvers are out of the path before a pod is ready")
	}
	setReady(t, namespace, pod, true)
	eventually(t, "the ElastiService is deleted", func(ctx context.Context) string {
		if _, err := elastiServices(namespace).Get(ctx, "app", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("reading it returns %v", err)
		}
		return ""
	})
	waitForNoResolverSlices(t, namespace)
	eventually(t, "only the public Service is left", func(ctx context.Context) string {
		services, err := shared.Kubernetes.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		if len(services.Items) != 1 {
			return fmt.Sprintf("there are %d Services", len(services.Items))
		}
		if after := services.Items[0]; after.ResourceVersion != before.ResourceVersion {
			return "the public Service was changed"
		}
		return ""
	})
	if replicas := desiredReplicas(t, namespace); replicas != 1 {
		t.Errorf("the target is left at %d replicas, want 1", replicas)
	}
}

// A write of an unchanged status would be repeated for every ElastiService of a cluster
// forever.
func TestNothingIsWrittenAtRest(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue)
	waitForCondition(t, namespace, v1alpha1.ConditionSleeping, metav1.ConditionTrue)
	before := readElastiService(t, namespace)
	// The controller has synced another object completely after the first one.
	other := newNamespace(t)
	createApplication(t, other, 0)
	createElastiService(t, other, newElastiService("app"))
	waitForCondition(t, other, v1alpha1.ConditionReady, metav1.ConditionTrue)
	waitForCondition(t, other, v1alpha1.ConditionSleeping, metav1.ConditionTrue)
	if after := readElastiService(t, namespace); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the ElastiService was written without a reason: before %+v, after %+v", before.Status, after.Status)
	}
}

func readElastiService(t *testing.T, namespace string) *v1alpha1.ElastiService {
	t.Helper()
	object, err := elastiServices(namespace).Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the ElastiService: %v", err)
	}
	return object
}

func waitForMode(t *testing.T, namespace string, mode v1alpha1.Mode) {
	t.Helper()
	eventually(t, fmt.Sprintf("the mode is %s", mode), func(ctx context.Context) string {
		object, err := elastiServices(namespace).Get(ctx, "app", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if object.Status.Mode != mode {
			return fmt.Sprintf("it is %q", object.Status.Mode)
		}
		return ""
	})
}

func waitForCondition(t *testing.T, namespace, condition string, status metav1.ConditionStatus) {
	t.Helper()
	eventually(t, fmt.Sprintf("the condition %s is %s", condition, status), func(ctx context.Context) string {
		object, err := elastiServices(namespace).Get(ctx, "app", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if found := meta.FindStatusCondition(object.Status.Conditions, condition); found == nil || found.Status != status {
			return fmt.Sprintf("it is %+v", found)
		}
		return ""
	})
}
