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
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// The target is scaled once for any number of callers, and the ElastiService has one Event
// for it.
func TestConcurrentWakesShareOneScaleCall(t *testing.T) {
	const callers = 20
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	object := createElastiService(t, namespace, newElastiService("app"))
	deployments := shared.Kubernetes.AppsV1().Deployments(namespace)
	before, err := deployments.Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			woken, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
			if err != nil || woken.Status.Replicas != 1 {
				t.Errorf("waking returns %+v (error: %v), want 1 replica", woken, err)
			}
		})
	}
	group.Wait()
	after, err := deployments.Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if after.Generation != before.Generation+1 {
		t.Errorf("the target was changed %d times, want once", after.Generation-before.Generation)
	}
	eventually(t, "there is one Event of the wakes", func(ctx context.Context) string {
		events, err := shared.Kubernetes.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=Woken"})
		if err != nil {
			return err.Error()
		}
		if len(events.Items) != 1 || events.Items[0].Regarding.Kind != "ElastiService" || events.Items[0].Regarding.UID != object.UID {
			return fmt.Sprintf("there are %+v", events.Items)
		}
		return ""
	})
}

func TestWakeThatWeMayNotDoSaysWhichPermissionIsMissing(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	withoutPermissionToScale(t)
	eventually(t, "a wake fails for want of permission", func(ctx context.Context) string {
		_, err := elastiServices(namespace).Wake(ctx, "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return "it succeeds"
		}
		status, ok := err.(apierrors.APIStatus)
		if !ok || status.Status().Code != http.StatusInternalServerError {
			t.Fatalf("waking returns %v, want 500", err)
		}
		for _, word := range []string{"system:serviceaccount:" + environment.SystemNamespace + ":" + environment.ServerName, "deployments/scale"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("the response does not name %s: %v", word, err)
			}
		}
		return ""
	})
}

// withoutPermissionToScale revokes the server's permission on scales until giveBack is
// called or the test has ended.
func withoutPermissionToScale(t *testing.T) (giveBack func()) {
	t.Helper()
	roles := shared.Kubernetes.RbacV1().ClusterRoles()
	setRules := func(ctx context.Context, change func([]rbacv1.PolicyRule) []rbacv1.PolicyRule) error {
		role, err := roles.Get(ctx, environment.ServerName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		role.Rules = change(role.Rules)
		_, err = roles.Update(ctx, role, metav1.UpdateOptions{})
		return err
	}
	var shipped []rbacv1.PolicyRule
	err := setRules(t.Context(), func(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
		shipped = rules
		return slices.DeleteFunc(slices.Clone(rules), func(rule rbacv1.PolicyRule) bool { return slices.Contains(rule.Resources, "*/scale") })
	})
	if err != nil {
		t.Fatalf("taking the permission to scale away: %v", err)
	}
	giveBack = sync.OnceFunc(func() {
		if err := setRules(context.Background(), func([]rbacv1.PolicyRule) []rbacv1.PolicyRule { return shipped }); err != nil {
			t.Errorf("giving the permission to scale back: %v", err)
		}
	})
	t.Cleanup(giveBack)
	return giveBack
}
