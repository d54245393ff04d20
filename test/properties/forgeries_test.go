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
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	elasticlientset "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
)

// createForger creates an administrator of the namespace that may also write statuses.
func (w *testbed) createForger(ctx context.Context, tenant *tenant) error {
	const name = "forger"
	namespace, client := tenant.namespace, w.control.Kubernetes
	about := metav1.ObjectMeta{Name: name, Namespace: namespace}
	if _, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: about}, metav1.CreateOptions{}); err != nil {
		return err
	}
	role := &rbacv1.Role{ObjectMeta: about, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}},
	}}
	if _, err := client.RbacV1().Roles(namespace).Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return err
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: about,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}
	if _, err := client.RbacV1().RoleBindings(namespace).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return err
	}
	config, err := w.control.AsServiceAccount(ctx, namespace, name)
	if err != nil {
		return err
	}
	if tenant.forger, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	tenant.forgerElasti, err = elasticlientset.NewForConfig(config)
	return err
}

// forgePrivateService makes a Service that looks as if the bystander were managed.
func forgePrivateService(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	tenant, name := w.anyTenant(random), anyOf(random, serviceNames)
	forged := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "forged-" + name,
			Labels: map[string]string{v1alpha1.LabelRole: v1alpha1.RolePrivate, v1alpha1.LabelManagedBy: v1alpha1.ManagedBy},
			Annotations: map[string]string{
				v1alpha1.AnnotationOwner:  anyOf(random, []string{name, "unknown"}),
				v1alpha1.AnnotationTarget: targetBystander,
			},
		},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	_, err := tenant.forger.CoreV1().Services(tenant.namespace).Create(ctx, forged, metav1.CreateOptions{})
	return fmt.Sprintf("forge a private Service %s/%s", tenant.namespace, forged.Name), err
}

const targetBystander = `{"target":{"apiVersion":"apps/v1","kind":"Deployment","name":"` + bystander + `"},"minTargetReplicas":5}`

// forgeResolverSlice makes a slice without endpoints that looks like one of resolvers.
func forgeResolverSlice(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	tenant, name := w.anyTenant(random), anyOf(random, serviceNames)
	forged := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: "forged-" + name,
			Labels: map[string]string{
				discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: v1alpha1.SliceManagedBy, v1alpha1.LabelRole: v1alpha1.RoleResolver,
			},
			Annotations: map[string]string{v1alpha1.AnnotationOwner: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	_, err := tenant.forger.DiscoveryV1().EndpointSlices(tenant.namespace).Create(ctx, forged, metav1.CreateOptions{})
	return fmt.Sprintf("forge a resolver slice %s/%s", tenant.namespace, forged.Name), err
}

// forgeStatus tries to take over a proxy port, and to put the target to sleep.
func forgeStatus(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	tenant, name, port := w.anyTenant(random), anyOf(random, serviceNames), 10000+random.IntN(20)
	patch := fmt.Sprintf(`{"status":{"sleepRequestedTime":"2026-01-01T00:00:00Z","proxyPorts":[{"port":80,"name":"http","proxyPort":%d}]}}`, port)
	_, err := tenant.forgerElasti.ElastiV1alpha1().ElastiServices(tenant.namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	what := fmt.Sprintf("forge the status of ElastiService %s/%s", tenant.namespace, name)
	if err == nil {
		w.fail("%s: it was not rejected", what)
	}
	return what, err
}

// resolverSliceOf is the name of the resolver slice of a Service.
func resolverSliceOf(name string) string {
	return resources.ResolverSliceName(name, discoveryv1.AddressTypeIPv4, 0)
}

func deleteResolverSlice(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	tenant, name := w.anyTenant(random), anyOf(random, serviceNames)
	w.touchSlice(tenant.namespace, name)
	return fmt.Sprintf("delete the resolver slice of %s/%s", tenant.namespace, name),
		tenant.forger.DiscoveryV1().EndpointSlices(tenant.namespace).Delete(ctx, resolverSliceOf(name), metav1.DeleteOptions{})
}

// editResolverSlice takes the resolvers, the marks or the ports out of a slice.
func editResolverSlice(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	tenant, name := w.anyTenant(random), anyOf(random, serviceNames)
	patch := anyOf(random, []string{
		`{"endpoints":[]}`,
		`{"ports":[{"name":"http","protocol":"TCP","port":1}]}`,
		fmt.Sprintf(`{"metadata":{"annotations":{%q:"unknown"}}}`, v1alpha1.AnnotationOwner),
		fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, v1alpha1.AnnotationSignature),
	})
	w.touchSlice(tenant.namespace, name)
	_, err := tenant.forger.DiscoveryV1().EndpointSlices(tenant.namespace).Patch(ctx, resolverSliceOf(name), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return fmt.Sprintf("patch the resolver slice of %s/%s: %s", tenant.namespace, name, patch), err
}

// touchSlice records that a tenant changes the resolver slice of a Service.
func (w *testbed) touchSlice(namespace, name string) {
	w.touch(endpointSlice, namespace, name)
	w.editedSlices[types.NamespacedName{Namespace: namespace, Name: name}] = true
}

// touchPrivateService records that a tenant changes the private Service of a Service.
func (w *testbed) touchPrivateService(namespace, name string) (private string) {
	private = resources.PrivateServiceName(name)
	w.touch(service, namespace, private)
	w.editedPrivate[types.NamespacedName{Namespace: namespace, Name: name}] = true
	return private
}

func deletePrivateService(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	tenant, name := w.anyTenant(random), anyOf(random, serviceNames)
	private := w.touchPrivateService(tenant.namespace, name)
	return fmt.Sprintf("delete the private Service %s/%s", tenant.namespace, private),
		tenant.forger.CoreV1().Services(tenant.namespace).Delete(ctx, private, metav1.DeleteOptions{})
}

// editPrivateService makes it say that another workload is managed, or select other
// pods.
func editPrivateService(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	tenant, name := w.anyTenant(random), anyOf(random, serviceNames)
	private := w.touchPrivateService(tenant.namespace, name)
	patch := anyOf(random, []string{
		fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationTarget, targetBystander),
		fmt.Sprintf(`{"metadata":{"annotations":{%q:"unknown"}}}`, v1alpha1.AnnotationOwner),
		`{"spec":{"selector":{"app":"nothing"}}}`,
	})
	_, err := tenant.forger.CoreV1().Services(tenant.namespace).Patch(ctx, private, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return fmt.Sprintf("patch the private Service %s/%s: %s", tenant.namespace, private, patch), err
}
