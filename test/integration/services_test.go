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
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// waitForResolverEndpoints waits until the resolver slices of a family have
// the endpoints, in any order.
func waitForResolverEndpoints(t *testing.T, namespace string, family discoveryv1.AddressType, want ...string) {
	t.Helper()
	slices.Sort(want)
	eventually(t, fmt.Sprintf("the resolvers in %s are %v", family, want), func(ctx context.Context) string {
		var found []string
		for _, slice := range resolverSlices(ctx, t, namespace) {
			if slice.AddressType != family {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				found = append(found, endpoint.Addresses...)
			}
		}
		slices.Sort(found)
		if !slices.Equal(found, want) {
			return fmt.Sprintf("they are %v", found)
		}
		return ""
	})
}

func TestDualStackServiceHasASliceOfEachFamily(t *testing.T) {
	// The address is one of a multicast group, where no server can be.
	const resolverAddress = "ff35:40::53"
	resolvers := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: environment.SystemNamespace, Name: "resolver-ipv6", Labels: map[string]string{
			discoveryv1.LabelServiceName: environment.ResolverName, discoveryv1.LabelManagedBy: "integration-test",
		}},
		AddressType: discoveryv1.AddressTypeIPv6,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{resolverAddress}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
	}
	system := shared.Kubernetes.DiscoveryV1().EndpointSlices(environment.SystemNamespace)
	if _, err := system.Create(t.Context(), resolvers, metav1.CreateOptions{}); err != nil {
		t.Fatalf("giving the resolvers an address of IPv6: %v", err)
	}
	t.Cleanup(func() {
		if err := system.Delete(context.Background(), resolvers.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})

	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	patch := []byte(`{"spec":{"ipFamilyPolicy":"RequireDualStack"}}`)
	public, err := shared.Kubernetes.CoreV1().Services(namespace).Patch(t.Context(), "app", types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("making the Service dual-stack: %v", err)
	}
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	waitForResolverEndpoints(t, namespace, discoveryv1.AddressTypeIPv4, shared.Resolvers[0].Address)
	waitForResolverEndpoints(t, namespace, discoveryv1.AddressTypeIPv6, resolverAddress)

	// With one family again, the slice of the other is deleted.
	patch = []byte(`{"spec":{"ipFamilyPolicy":"SingleStack","ipFamilies":["IPv4"],"clusterIPs":["` + public.Spec.ClusterIP + `"]}}`)
	if _, err := shared.Kubernetes.CoreV1().Services(namespace).Patch(t.Context(), "app", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatalf("making the Service single-stack: %v", err)
	}
	waitForResolverEndpoints(t, namespace, discoveryv1.AddressTypeIPv6)
	waitForResolverEndpoints(t, namespace, discoveryv1.AddressTypeIPv4, shared.Resolvers[0].Address)
}

// waitForPrivateFamilies waits until the private Service has the IP families.
func waitForPrivateFamilies(t *testing.T, namespace string, want ...corev1.IPFamily) {
	t.Helper()
	eventually(t, fmt.Sprintf("the private Service has the families %v", want), func(ctx context.Context) string {
		name := readElastiService(t, namespace).Status.PrivateService
		private, err := shared.Kubernetes.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if !slices.Equal(private.Spec.IPFamilies, want) {
			return fmt.Sprintf("it has %v", private.Spec.IPFamilies)
		}
		return ""
	})
}

// Pods that listen on one family only are reached through the Service's own
// families, also when these change or the Service is made again.
func TestPrivateServiceHasTheFamiliesOfTheService(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	waitForPrivateFamilies(t, namespace, corev1.IPv4Protocol)

	services := shared.Kubernetes.CoreV1().Services(namespace)
	patch := []byte(`{"spec":{"ipFamilyPolicy":"PreferDualStack"}}`)
	public, err := services.Patch(t.Context(), "app", types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("making the Service dual-stack: %v", err)
	}
	waitForPrivateFamilies(t, namespace, corev1.IPv4Protocol, corev1.IPv6Protocol)
	patch = []byte(`{"spec":{"ipFamilyPolicy":"SingleStack","ipFamilies":["IPv4"],"clusterIPs":["` + public.Spec.ClusterIP + `"]}}`)
	if _, err := services.Patch(t.Context(), "app", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatalf("making the Service single-stack: %v", err)
	}
	waitForPrivateFamilies(t, namespace, corev1.IPv4Protocol)

	if err := services.Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting the Service: %v", err)
	}
	again := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: public.Spec}
	again.Spec.ClusterIP, again.Spec.ClusterIPs = "", nil
	again.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	again.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	if _, err := services.Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatalf("making the Service again: %v", err)
	}
	waitForPrivateFamilies(t, namespace, corev1.IPv6Protocol, corev1.IPv4Protocol)
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue)
}

func TestPortsThatAreNotTCPAreLeftAlone(t *testing.T) {
	namespace := newNamespace(t)
	createDeployment(t, namespace, 0)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: corev1.ServiceSpec{
		Selector: appLabels,
		Ports: []corev1.ServicePort{
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
			{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP},
			{Name: "signaling", Port: 3868, Protocol: corev1.ProtocolSCTP},
		},
	}}
	if _, err := shared.Kubernetes.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the Service: %v", err)
	}
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue)
	message := waitForReason(t, namespace, v1alpha1.ConditionServiceFound, metav1.ConditionTrue, v1alpha1.ReasonPortsNotProxied)
	if want := `Service "app" exists; its ports 53/UDP, 3868/SCTP are left alone: only TCP traffic wakes the target`; message != want {
		t.Errorf("the condition says %q, want %q", message, want)
	}
	for _, slice := range resolverSlices(t.Context(), t, namespace) {
		if len(slice.Ports) != 1 || ptr.Deref(slice.Ports[0].Name, "") != "dns-tcp" || ptr.Deref(slice.Ports[0].Protocol, "") != corev1.ProtocolTCP {
			t.Errorf("the resolver slice %s has the ports %+v, want the one of TCP", slice.Name, slice.Ports)
		}
	}
}

func TestObjectsOfOthersAreReportedAndNeverOverwritten(t *testing.T) {
	// The names are those that another ElastiService of this Service would get.
	example := newNamespace(t)
	createApplication(t, example, 0)
	createElastiService(t, example, newElastiService("app"))
	waitForMode(t, example, v1alpha1.ModeProxy)
	privateName, sliceName := readElastiService(t, example).Status.PrivateService, resolverSlices(t.Context(), t, example)[0].Name

	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: privateName}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "theirs"}, Ports: []corev1.ServicePort{{Port: 1}},
	}}
	services := shared.Kubernetes.CoreV1().Services(namespace)
	service, err := services.Create(t.Context(), service, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating a Service of others: %v", err)
	}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: sliceName}, AddressType: discoveryv1.AddressTypeIPv4}
	endpointSlices := shared.Kubernetes.DiscoveryV1().EndpointSlices(namespace)
	if slice, err = endpointSlices.Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating an EndpointSlice of others: %v", err)
	}

	createElastiService(t, namespace, newElastiService("app"))
	message := waitForReason(t, namespace, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNameTaken)
	t.Logf("the condition says: %s", message)
	waitForEvent(t, namespace, v1alpha1.ReasonNameTaken)
	if after, err := services.Get(t.Context(), privateName, metav1.GetOptions{}); err != nil || after.ResourceVersion != service.ResourceVersion {
		t.Errorf("the Service of others was changed to %+v (%v)", after, err)
	}
	if after, err := endpointSlices.Get(t.Context(), sliceName, metav1.GetOptions{}); err != nil || after.ResourceVersion != slice.ResourceVersion {
		t.Errorf("the EndpointSlice of others was changed to %+v (%v)", after, err)
	}

	// The ElastiService recovers without a change of it.
	if err := services.Delete(t.Context(), privateName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := endpointSlices.Delete(t.Context(), sliceName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventuallyWithin(t, resolverTimeout, "it is ready", func(ctx context.Context) string {
		object, err := elastiServices(namespace).Get(ctx, "app", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if !meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Sprintf("the conditions are %+v", object.Status.Conditions)
		}
		return ""
	})
}

// removeElastiServicesOfEndedTests deletes all that could hold a proxy port, in namespaces
// that are still terminating.
func removeElastiServicesOfEndedTests(t *testing.T) {
	t.Helper()
	eventually(t, "there is no ElastiService of another test", func(ctx context.Context) string {
		list, err := elastiServices(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for i := range list.Items {
			client, name := elastiServices(list.Items[i].Namespace), list.Items[i].Name
			if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err.Error()
			}
			patch := []byte(`{"metadata":{"finalizers":null}}`)
			if _, err := client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err.Error()
			}
		}
		if len(list.Items) > 0 {
			return fmt.Sprintf("there were %d", len(list.Items))
		}
		return ""
	})
}

func TestServiceWithoutAFreeProxyPortUsesTheSharedOne(t *testing.T) {
	const sharedHTTPPort = 8012
	// Enough for one of the two Services, which have two ports each.
	restartServerWith(t, "--proxy-port-range=20000-20001", fmt.Sprintf("--shared-http-port=%d", sharedHTTPPort))
	removeElastiServicesOfEndedTests(t)
	first, second := newNamespace(t), newNamespace(t)
	for _, namespace := range []string{first, second} {
		createApplication(t, namespace, 0)
		createElastiService(t, namespace, newElastiService("app"))
		waitForMode(t, namespace, v1alpha1.ModeProxy)
	}
	waitForReason(t, second, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProxyPortsExhausted)
	waitForEvent(t, second, v1alpha1.ReasonProxyPortsExhausted)
	waitForResolverEndpoints(t, second, discoveryv1.AddressTypeIPv4, shared.Resolvers[0].Address)
	for _, slice := range resolverSlices(t.Context(), t, second) {
		for _, port := range slice.Ports {
			if ptr.Deref(port.Port, 0) != sharedHTTPPort {
				t.Errorf("the port %s of the slice is %d, want the shared one", ptr.Deref(port.Name, ""), ptr.Deref(port.Port, 0))
			}
		}
	}

	// It gets proxy ports of its own as soon as some are free.
	if err := elastiServices(first).Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// The deletion waits for the target that it woke.
	setReady(t, first, runPod(t, first, "app"), true)
	eventuallyWithin(t, resolverTimeout, "it has proxy ports of its own", func(ctx context.Context) string {
		object, err := elastiServices(second).Get(ctx, "app", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, port := range object.Status.ProxyPorts {
			if port.ProxyPort == sharedHTTPPort {
				return fmt.Sprintf("they are %+v", object.Status.ProxyPorts)
			}
		}
		if !meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Sprintf("the conditions are %+v", object.Status.Conditions)
		}
		return ""
	})
}

// TestBrokenElastiServicesDoNotHoldUpOthers has more broken ones than there are
// workers.
func TestBrokenElastiServicesDoNotHoldUpOthers(t *testing.T) {
	broken := newNamespace(t)
	for number := range 40 {
		object := newElastiService(fmt.Sprintf("broken-%d", number))
		object.Spec.Service = object.Name
		switch number % 3 {
		case 0:
			object.Spec.ScaleTargetRef = v1alpha1.ScaleTargetRef{APIVersion: "missing.example.com/v1", Kind: "Missing", Name: "app"}
		case 1:
			// Without a scale subresource.
			object.Spec.ScaleTargetRef = v1alpha1.ScaleTargetRef{APIVersion: "v1", Kind: "ConfigMap", Name: "app"}
		}
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: object.Name}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": object.Name}, Ports: []corev1.ServicePort{{Port: 80}},
		}}
		if _, err := shared.Kubernetes.CoreV1().Services(broken).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		createElastiService(t, broken, object)
	}
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	if _, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking: %v", err)
	}
	pod := runPod(t, namespace, "app")
	setReady(t, namespace, pod, true)
	waitForMode(t, namespace, v1alpha1.ModeServe)
}

func TestMovedElastiServiceLeavesNothingBehind(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	previousPrivate := readElastiService(t, namespace).Status.PrivateService
	previousSlices := resolverSlices(t.Context(), t, namespace)

	other := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "other"}, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	if _, err := shared.Kubernetes.CoreV1().Services(namespace).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"spec":{"service":"other","scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"other"}}}`)
	if _, err := elastiServices(namespace).Patch(t.Context(), "app", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatalf("moving the ElastiService: %v", err)
	}
	// Nothing would wake the previous target any more.
	eventually(t, "the previous target is awake", func(context.Context) string {
		if replicas := desiredReplicas(t, namespace); replicas != 1 {
			return fmt.Sprintf("it has %d replicas", replicas)
		}
		return ""
	})
	// Clients of its Service wait at the resolvers for it.
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	waitForNoResolverSlices(t, namespace)
	eventually(t, "the previous private Service is deleted", func(ctx context.Context) string {
		list, err := shared.Kubernetes.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelRole + "=" + v1alpha1.RolePrivate})
		if err != nil {
			return err.Error()
		}
		for _, service := range list.Items {
			if service.Name == previousPrivate {
				return "it is there"
			}
		}
		if len(list.Items) != 1 {
			return fmt.Sprintf("there are %d private Services", len(list.Items))
		}
		return ""
	})
	eventually(t, "the new Service has its resolver slice", func(ctx context.Context) string {
		list, err := shared.Kubernetes.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelManagedBy + "=" + v1alpha1.SliceManagedBy,
		})
		if err != nil {
			return err.Error()
		}
		for _, slice := range list.Items {
			if slice.Name == previousSlices[0].Name {
				return "the previous one is there"
			}
		}
		if len(list.Items) != 1 || list.Items[0].Labels[discoveryv1.LabelServiceName] != "other" {
			return fmt.Sprintf("there are %d", len(list.Items))
		}
		return ""
	})
}
