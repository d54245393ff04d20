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
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// With --namespaces, the controller needs roles in those namespaces only: it sends no
// request for the whole cluster.
func TestRolesInNamespacesAreEnough(t *testing.T) {
	stopServer(t)
	confineServer(t)
	inside, outside := newNamespace(t), newNamespace(t)
	bindServer(t, inside)
	replica := startReplica(t, "confined", "--namespaces="+inside)

	createApplication(t, inside, 0)
	createElastiService(t, inside, newElastiService("app"))
	if _, err := elastiServices(outside).Create(t.Context(), newElastiService("app"), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), inside) {
		t.Errorf("an ElastiService outside: got %v, want it rejected with the name of %s", err, inside)
	}
	waitForCondition(t, inside, v1alpha1.ConditionReady, metav1.ConditionTrue)
	waitForMode(t, inside, v1alpha1.ModeProxy)
	if _, err := elastiServices(inside).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking: %v", err)
	}
	pod := runPod(t, inside, "app")
	setReady(t, inside, pod, true)
	waitForMode(t, inside, v1alpha1.ModeServe)
	waitForNoResolverSlices(t, inside)

	for line := range strings.Lines(replica.Process().Output()) {
		if strings.Contains(line, "is forbidden") {
			t.Errorf("a request of the server was forbidden: %s", line)
		}
	}
}

// In a namespace that is removed from --namespaces all targets are awake and no finalizer
// is left that no controller removes.
func TestNamespaceTakenOffTheListIsLeftAwake(t *testing.T) {
	stopServer(t)
	leaving, staying := newNamespace(t), newNamespace(t)
	replica := startReplica(t, "both", "--namespaces="+leaving+","+staying)
	createApplication(t, leaving, 0)
	createElastiService(t, leaving, newElastiService("app"))
	waitForMode(t, leaving, v1alpha1.ModeProxy)
	if err := replica.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	startReplica(t, "one", "--namespaces="+staying)
	waitForDesired(t, leaving, 1)
	waitForNoResolverSlices(t, leaving)
	if err := elastiServices(leaving).Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForElastiServiceDeleted(t, leaving)
}

// confineServer revokes the server's permissions in all namespaces, as the component for
// --namespaces does, until the end of the test.
func confineServer(t *testing.T) {
	t.Helper()
	bindings := shared.Kubernetes.RbacV1().ClusterRoleBindings()
	kubectl := newKubectl(t, environment.SystemNamespace)
	component := []string{
		"--filename", filepath.Join(shared.Manifests(), "components", "namespaces", "resolver-endpoints.yaml"),
		"--filename", filepath.Join(shared.Manifests(), "components", "namespaces", "kubernetes-api.yaml"),
	}
	if _, err := kubectl.Run(t.Context(), "", append([]string{"apply"}, component...)...); err != nil {
		t.Fatal(err)
	}
	binding, err := bindings.Get(t.Context(), environment.ServerName, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the ClusterRoleBinding: %v", err)
	}
	subjects := binding.Subjects
	binding.Subjects = nil
	if binding, err = bindings.Update(t.Context(), binding, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("emptying the ClusterRoleBinding: %v", err)
	}
	t.Cleanup(func() {
		binding.Subjects = subjects
		if _, err := bindings.Update(context.Background(), binding, metav1.UpdateOptions{}); err != nil {
			t.Errorf("filling the ClusterRoleBinding: %v", err)
		}
		if _, err := kubectl.Run(context.Background(), "", append([]string{"delete"}, component...)...); err != nil {
			t.Error(err)
		}
	})
}

// bindServer gives the server its permissions in one namespace.
func bindServer(t *testing.T, namespace string) {
	t.Helper()
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: environment.ServerName},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: environment.ServerName},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: environment.SystemNamespace, Name: environment.ServerName}},
	}
	if _, err := shared.Kubernetes.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatalf("binding the server's role in %s: %v", namespace, err)
	}
}
