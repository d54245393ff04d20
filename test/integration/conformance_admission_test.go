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
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// elastiResources are the resources of the policies and webhooks of a test.
func elastiResources() admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{"elasti.truefoundry.com"}, APIVersions: []string{"*"}, Resources: []string{"elastiservices", "elastiservices/wake"},
		},
	}
}

// onlyIn selects one namespace.
func onlyIn(namespace string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
}

func matchElastiResources(namespace string) *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{
		NamespaceSelector: onlyIn(namespace),
		ResourceRules:     []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: elastiResources()}},
	}
}

func TestValidatingAdmissionPolicyIsKeptTo(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	client := elastiServices(namespace)
	createElastiService(t, namespace, newElastiService("app"))
	registrations := shared.Kubernetes.AdmissionregistrationV1()
	meta := metav1.ObjectMeta{Name: namespace}
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: meta,
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: matchElastiResources(namespace),
			MatchConditions:  []admissionregistrationv1.MatchCondition{{Name: "not-deletions", Expression: "request.operation != 'DELETE'"}},
			Validations: []admissionregistrationv1.Validation{
				{Expression: "has(request.subResource) || !has(object.spec.cooldownPeriod) || object.spec.cooldownPeriod >= 60", Message: "cool down for a minute"},
				{Expression: "!has(request.subResource) || (has(object.spec.reason) && object.spec.reason != '')", Message: "say why"},
			},
		},
	}
	if _, err := registrations.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the policy: %v", err)
	}
	t.Cleanup(func() {
		if err := registrations.ValidatingAdmissionPolicies().Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: meta,
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: namespace, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	if _, err := registrations.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatalf("binding the policy: %v", err)
	}
	t.Cleanup(func() {
		if err := registrations.ValidatingAdmissionPolicyBindings().Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})

	hasty := newElastiService("hasty")
	hasty.Spec.Service = "hasty"
	hasty.Spec.CooldownPeriod = ptr.To[int32](1)
	eventually(t, "a create is denied", func(ctx context.Context) string {
		return notDenied("cool down for a minute", func() error {
			_, err := client.Create(ctx, hasty, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		})
	})
	for name, write := range map[string]struct {
		message string
		do      func() error
	}{
		"update": {"cool down for a minute", func() error {
			_, err := client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"spec":{"cooldownPeriod":1}}`), metav1.PatchOptions{})
			return err
		}},
		"wake": {"say why", func() error {
			_, err := client.Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
			return err
		}},
	} {
		if complaint := notDenied(write.message, write.do); complaint != "" {
			t.Errorf("%s: %s", name, complaint)
		}
	}
	if replicas := desiredReplicas(t, namespace); replicas != 0 {
		t.Errorf("spec.replicas of the target is %d after a denied wake, want 0", replicas)
	}
	request := &v1alpha1.WakeRequest{Spec: v1alpha1.WakeRequestSpec{Reason: "a test"}}
	if _, err := client.Wake(t.Context(), "app", request, metav1.CreateOptions{}); err != nil {
		t.Errorf("a wake that the policy allows: %v", err)
	}
}

// notDenied returns a complaint unless an operation is denied with a message.
func notDenied(message string, do func() error) (complaint string) {
	if err := do(); err == nil || !strings.Contains(err.Error(), message) {
		return fmt.Sprintf("it returns %v, want it denied with %q", err, message)
	}
	return ""
}

// createMutatingPolicies has a policy change ElastiServices of a namespace, and another
// one wake requests.
func createMutatingPolicies(t *testing.T, namespace string) {
	t.Helper()
	registrations := shared.Kubernetes.AdmissionregistrationV1()
	for name, mutation := range map[string]struct {
		condition string
		mutation  admissionregistrationv1.Mutation
	}{
		"label": {"!has(request.subResource)", admissionregistrationv1.Mutation{
			PatchType:          admissionregistrationv1.PatchTypeApplyConfiguration,
			ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: `Object{metadata: Object.metadata{labels: {"policy": request.operation}}, spec: Object.spec{cooldownPeriod: 77}}`},
		}},
		"wake": {"has(request.subResource)", admissionregistrationv1.Mutation{
			PatchType: admissionregistrationv1.PatchTypeJSONPatch,
			JSONPatch: &admissionregistrationv1.JSONPatch{Expression: `[JSONPatch{op: "add", path: "/spec/replicas", value: 3}]`},
		}},
	} {
		meta := metav1.ObjectMeta{Name: namespace + "-" + name}
		policy := &admissionregistrationv1.MutatingAdmissionPolicy{
			ObjectMeta: meta,
			Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
				MatchConstraints:   matchElastiResources(namespace),
				MatchConditions:    []admissionregistrationv1.MatchCondition{{Name: "when", Expression: mutation.condition}},
				Mutations:          []admissionregistrationv1.Mutation{mutation.mutation},
				ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			},
		}
		// A policy cannot match deletions.
		policy.Spec.MatchConstraints.ResourceRules[0].Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update}
		if _, err := registrations.MutatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
			t.Fatalf("creating the policy: %v", err)
		}
		t.Cleanup(func() {
			if err := registrations.MutatingAdmissionPolicies().Delete(context.Background(), meta.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
			ObjectMeta: meta,
			Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: meta.Name},
		}
		if _, err := registrations.MutatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatalf("binding the policy: %v", err)
		}
		t.Cleanup(func() {
			if err := registrations.MutatingAdmissionPolicyBindings().Delete(context.Background(), meta.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMutatingAdmissionPolicyIsKeptTo(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	client := elastiServices(namespace)
	createMutatingPolicies(t, namespace)
	eventually(t, "a create is changed", func(ctx context.Context) string {
		created, err := client.Create(ctx, newElastiService("app"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err.Error()
		}
		if created.Labels["policy"] != "CREATE" || ptr.Deref(created.Spec.CooldownPeriod, 0) != 77 {
			return fmt.Sprintf("it has the labels %v and the cooldown %d", created.Labels, ptr.Deref(created.Spec.CooldownPeriod, 0))
		}
		return ""
	})
	createElastiService(t, namespace, newElastiService("app"))
	updated, err := client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"spec":{"cooldownPeriod":78}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("patching: %v", err)
	}
	if updated.Labels["policy"] != "UPDATE" || ptr.Deref(updated.Spec.CooldownPeriod, 0) != 77 {
		t.Errorf("an update leaves the labels %v and the cooldown %d, want it changed by the policy", updated.Labels, ptr.Deref(updated.Spec.CooldownPeriod, 0))
	}
	eventually(t, "a wake is changed", func(ctx context.Context) string {
		woken, err := client.Wake(ctx, "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err.Error()
		}
		if woken.Status.Replicas != 3 {
			return fmt.Sprintf("it would be for %d replicas", woken.Status.Replicas)
		}
		return ""
	})
	if _, err := client.Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking: %v", err)
	}
	if replicas := desiredReplicas(t, namespace); replicas != 3 {
		t.Errorf("spec.replicas of the target is %d, want the 3 of the policy", replicas)
	}
}

// In a namespace that is being deleted no object is created and no target is woken.
func TestNamespaceLifecycleIsKeptTo(t *testing.T) {
	if _, err := elastiServices("missing").Create(t.Context(), newElastiService("app"), metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("creating in a namespace that is not there returns %v, want not found", err)
	}
	namespace := newDisposableNamespace(t)
	createApplication(t, namespace, 0)
	object := newElastiService("app")
	// The finalizer keeps the namespace until the end of the test.
	object.Finalizers = []string{"example.com/keep"}
	createElastiService(t, namespace, object)
	deleteNamespace(t, namespace)
	other := newElastiService("other")
	other.Spec.Service = "other"
	eventually(t, "a create is rejected", func(ctx context.Context) string {
		if _, err := elastiServices(namespace).Create(ctx, other, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); !isNamespaceTerminating(err) {
			return fmt.Sprintf("it returns %v", err)
		}
		return ""
	})
	if _, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); !isNamespaceTerminating(err) {
		t.Errorf("waking returns %v, want that the namespace is being deleted", err)
	}
	removal := []byte(`[{"op":"test","path":"/metadata/finalizers/0","value":"example.com/keep"},{"op":"remove","path":"/metadata/finalizers/0"}]`)
	eventually(t, "the finalizer is removed", func(ctx context.Context) string {
		current, err := elastiServices(namespace).Get(ctx, "app", metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && !slices.Contains(current.Finalizers, "example.com/keep") {
			return ""
		}
		_, err = elastiServices(namespace).Patch(ctx, "app", types.JSONPatchType, removal, metav1.PatchOptions{})
		return errorText(err)
	})
	waitForNamespaceDeleted(t, namespace)
}

func isNamespaceTerminating(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}
