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
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// notAllowed is how OpenShift rejects the address of a pod.
const notAllowed = "endpoint address is not allowed"

// restrictEndpoints has EndpointSlices of a namespace rejected as OpenShift does: only
// clients that may create endpointslices/restricted may write addresses of pods.
func restrictEndpoints(t *testing.T, namespace string) {
	t.Helper()
	registrations := shared.Kubernetes.AdmissionregistrationV1()
	meta := metav1.ObjectMeta{Name: namespace}
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionregistrationv1.MatchResources{
			NamespaceSelector: onlyIn(namespace),
			ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{discoveryv1.GroupName}, APIVersions: []string{"*"}, Resources: []string{"endpointslices"}},
			}}},
		},
		Validations: []admissionregistrationv1.Validation{{
			Expression: "!has(object.endpoints) || object.endpoints.size() == 0 || " +
				"authorizer.group('discovery.k8s.io').resource('endpointslices').subresource('restricted').namespace(object.metadata.namespace).check('create').allowed()",
			Message: notAllowed,
			Reason:  ptr.To(metav1.StatusReasonForbidden),
		}},
	}}
	if _, err := registrations.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the policy: %v", err)
	}
	t.Cleanup(func() {
		if err := registrations.ValidatingAdmissionPolicies().Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: namespace, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
	}}
	if _, err := registrations.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatalf("binding the policy: %v", err)
	}
	t.Cleanup(func() {
		if err := registrations.ValidatingAdmissionPolicyBindings().Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	writer, err := kubernetes.NewForConfig(newServiceAccount(t, namespace, "writer", rbacv1.PolicyRule{
		APIGroups: []string{discoveryv1.GroupName}, Resources: []string{"endpointslices"}, Verbs: []string{"create"},
	}))
	if err != nil {
		t.Fatal(err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "probe"},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{environment.NoAddress(1)}}},
	}
	eventually(t, "addresses are rejected", func(ctx context.Context) string {
		return notDenied(notAllowed, func() error {
			_, err := writer.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		})
	})
}

func TestRestrictedEndpointSlicesNeedThePermissionThatIsDocumented(t *testing.T) {
	namespace := newNamespace(t)
	restrictEndpoints(t, namespace)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	if message := waitForReason(t, namespace, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonWriteFailed); !strings.Contains(message, notAllowed) {
		t.Errorf("Ready is false because of %q, want the message of the cluster", message)
	}

	meta := metav1.ObjectMeta{Name: environment.ServerName, Namespace: namespace}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{discoveryv1.GroupName}, Resources: []string{"endpointslices/restricted"}, Verbs: []string{"create"},
	}}}
	if _, err := shared.Kubernetes.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the role: %v", err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: environment.SystemNamespace, Name: environment.ServerName}},
	}
	if _, err := shared.Kubernetes.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatalf("binding the role: %v", err)
	}
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue)
	waitForMode(t, namespace, v1alpha1.ModeProxy)
}
