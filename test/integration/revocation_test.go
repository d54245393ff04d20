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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// A Secret is used for at most a minute after the permission was revoked.
func TestRevokedSecretOfATriggerCountsWithinAMinute(t *testing.T) {
	restartServerWith(t, "--polling-interval=1s", "--trigger-allowed-servers=127.0.0.0/8")
	namespace := newNamespace(t)
	createApplication(t, namespace, 1)
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	if _, err := shared.Kubernetes.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "monitoring"}, Data: map[string][]byte{"token": []byte("s3cr3t")},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the Secret: %v", err)
	}
	mayWrite := rbacv1.PolicyRule{APIGroups: []string{"elasti.truefoundry.com"}, Resources: []string{"elastiservices"}, Verbs: []string{"create", "update", "patch", "get"}}
	author := elastiClient(t, newServiceAccount(t, namespace, "author", mayWrite)).ElastiV1alpha1().ElastiServices(namespace)
	revokeAuthor := allowSecret(t, namespace, "author-reads", namespace, "author")
	revokeServer := allowSecret(t, namespace, "server-reads", environment.SystemNamespace, environment.ServerName)

	server := quietMetrics(t).URL
	object := newSleepyElastiService(fmt.Sprintf(`{"query":"requests","threshold":-1,"serverAddress":%q,"authorization":{"credentials":{"name":"monitoring","key":"token"}}}`, server))
	eventually(t, "the author may refer to the Secret", func(ctx context.Context) string {
		if _, err := author.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	waitForReason(t, namespace, v1alpha1.ConditionTriggersHealthy, metav1.ConditionTrue, v1alpha1.ReasonTriggersAnswer)

	revoked := time.Now()
	revokeAuthor()
	revokeServer()
	paths := 0
	eventuallyWithin(t, time.Minute, "the author may not send the Secret elsewhere", func(ctx context.Context) string {
		paths++
		elsewhere := fmt.Appendf(nil, `{"spec":{"triggers":[{"type":"prometheus","metadata":{"query":"requests","threshold":-1,"serverAddress":"%s/%d","authorization":{"credentials":{"name":"monitoring","key":"token"}}}}]}}`, server, paths)
		_, err := author.Patch(ctx, "app", types.MergePatchType, elsewhere, metav1.PatchOptions{})
		if !apierrors.IsForbidden(err) {
			return fmt.Sprintf("got %v", err)
		}
		return ""
	})
	waitForReason(t, namespace, v1alpha1.ConditionTriggersHealthy, metav1.ConditionFalse, v1alpha1.ReasonCredentialsUnavailable)
	if after := time.Since(revoked); after > time.Minute {
		t.Errorf("the Secret was used for up to %s after the permission was revoked", after)
	}
}

// allowSecret allows a service account to get the Secret monitoring, until the returned
// function is called.
func allowSecret(t *testing.T, namespace, name, accountNamespace, account string) (revoke func()) {
	t.Helper()
	about := metav1.ObjectMeta{Name: name}
	if _, err := shared.Kubernetes.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: about, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"monitoring"}, Verbs: []string{"get"}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the Role %s: %v", name, err)
	}
	if _, err := shared.Kubernetes.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: about,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: accountNamespace, Name: account}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("binding the Role %s: %v", name, err)
	}
	return func() {
		t.Helper()
		if err := shared.Kubernetes.RbacV1().RoleBindings(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatalf("deleting the RoleBinding %s: %v", name, err)
		}
	}
}
