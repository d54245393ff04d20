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
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elasticlientset "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	elastiv1alpha1client "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment/environmenttest"
)

const (
	// waitTimeout bounds how long a test waits for something that is due soon.
	waitTimeout     = 30 * time.Second
	namespacePrefix = "test-"
)

// newNamespace returns the name of a new namespace, which is deleted after
// the test. A test that fails shows the end of the server's log.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace := environmenttest.NewNamespace(t, shared, namespacePrefix)
	showServerAfterFailure(t)
	return namespace
}

// newDisposableNamespace is a namespace that the test deletes itself.
func newDisposableNamespace(t *testing.T) string {
	t.Helper()
	namespace := environmenttest.NewDisposableNamespace(t, shared, namespacePrefix)
	showServerAfterFailure(t)
	return namespace
}

func showServerAfterFailure(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(shared.Server.Process().Tail())
		}
	})
}

// elastiServices is the client of the cluster's administrator.
func elastiServices(namespace string) elastiv1alpha1client.ElastiServiceInterface {
	return shared.Elasti.ElastiV1alpha1().ElastiServices(namespace)
}

// newElastiService returns an object for the Deployment and Service "app".
func newElastiService(name string) *v1alpha1.ElastiService {
	return &v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ElastiServiceSpec{
			ScaleTargetRef: v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "app"},
			Service:        "app",
		},
	}
}

func createElastiService(t *testing.T, namespace string, object *v1alpha1.ElastiService) *v1alpha1.ElastiService {
	t.Helper()
	created, err := elastiServices(namespace).Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating the ElastiService %s: %v", object.Name, err)
	}
	return created
}

// newServiceAccount returns the client configuration of a new ServiceAccount with these
// permissions in its namespace.
func newServiceAccount(t *testing.T, namespace, name string, rules ...rbacv1.PolicyRule) *rest.Config {
	t.Helper()
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	if _, err := shared.Kubernetes.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the service account %s: %v", name, err)
	}
	config, err := shared.AsServiceAccount(t.Context(), namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	if len(rules) > 0 {
		if _, err := shared.Kubernetes.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
			t.Fatalf("creating the role %s: %v", name, err)
		}
		bindRole(t, namespace, name, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, config)
	}
	return config
}

// bindRole binds a role to the service account of the same name, whose client configuration
// is config, and returns when the authorizer of kube-apiserver, which has a cache, has
// received it.
func bindRole(t *testing.T, namespace, account string, role rbacv1.RoleRef, config *rest.Config) {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatalf("making a client: %v", err)
	}
	rules := func(ctx context.Context) (int, error) {
		review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
		response, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return 0, err
		}
		return len(response.Status.ResourceRules), nil
	}
	before, err := rules(t.Context())
	if err != nil {
		t.Fatalf("reading the rules for %s: %v", account, err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: namespace},
		RoleRef:    role,
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	}
	if _, err := shared.Kubernetes.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatalf("binding the role %s: %v", role.Name, err)
	}
	eventually(t, "the binding of "+account+" counts", func(ctx context.Context) string {
		now, err := rules(ctx)
		if err != nil {
			return err.Error()
		}
		if now <= before {
			return "its rules are as before"
		}
		return ""
	})
}

// elastiClient returns a client of ElastiServices for a user.
func elastiClient(t *testing.T, config *rest.Config) elasticlientset.Interface {
	t.Helper()
	client, err := elasticlientset.NewForConfig(config)
	if err != nil {
		t.Fatalf("making a client: %v", err)
	}
	return client
}

// newKubectl returns a kubectl of the cluster's administrator.
func newKubectl(t *testing.T, namespace string) *environment.Kubectl {
	t.Helper()
	return newKubectlAs(t, shared.Admin, namespace)
}

func newKubectlAs(t *testing.T, config *rest.Config, namespace string) *environment.Kubectl {
	t.Helper()
	kubectl, err := shared.NewKubectl(t.TempDir(), config, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return kubectl
}

// eventually waits until check returns nothing to complain about.
func eventually(t *testing.T, what string, check func(ctx context.Context) (complaint string)) {
	t.Helper()
	eventuallyWithin(t, waitTimeout, what, check)
}

func eventuallyWithin(t *testing.T, timeout time.Duration, what string, check func(ctx context.Context) (complaint string)) {
	t.Helper()
	environmenttest.Eventually(t, timeout, what, check)
}
