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
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// newMember returns how a new ServiceAccount with a role of the cluster, such as
// admin, in its namespace reaches the cluster.
func newMember(t *testing.T, namespace, role string) *rest.Config {
	t.Helper()
	config := newServiceAccount(t, namespace, role)
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role, Namespace: namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: role}},
	}
	if _, err := shared.Kubernetes.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatalf("binding the role %s: %v", role, err)
	}
	return config
}

// The permission to wake is for what needs an application, and not for deciding
// on its size.
func TestAWakeOfThoseThatMayOnlyWakeIsBounded(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	object := newElastiService("app")
	object.Spec.MinTargetReplicas = ptr.To[int32](2)
	createElastiService(t, namespace, object)
	waker := elastiClient(t, newServiceAccount(t, namespace, "waker", mayWake)).ElastiV1alpha1().ElastiServices(namespace)
	editor := elastiClient(t, newMember(t, namespace, "edit")).ElastiV1alpha1().ElastiServices(namespace)
	wakeTo := func(replicas int32) *v1alpha1.WakeRequest {
		return &v1alpha1.WakeRequest{Spec: v1alpha1.WakeRequestSpec{Replicas: ptr.To(replicas)}}
	}

	for _, replicas := range []int32{3, 100_000} {
		_, err := waker.Wake(t.Context(), "app", wakeTo(replicas), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may update elastiservices/scale") {
			t.Errorf("waking to %d replicas answers %v, want a refusal that names the permission", replicas, err)
		}
	}
	if replicas := wantedReplicas(t, namespace); replicas != 0 {
		t.Errorf("the target is asked for %d replicas after refused wakes, want 0", replicas)
	}
	if woken, err := waker.Wake(t.Context(), "app", wakeTo(2), metav1.CreateOptions{}); err != nil || woken.Status.Replicas != 2 {
		t.Errorf("waking to minTargetReplicas answers %+v (%v), want 2 replicas", woken, err)
	}
	if woken, err := editor.Wake(t.Context(), "app", wakeTo(3), metav1.CreateOptions{}); err != nil || woken.Status.Replicas != 3 {
		t.Errorf("waking to 3 replicas with the permission to scale answers %+v (%v), want 3", woken, err)
	}
}

// A value of a wrong type is refused with the path of its field, however it is
// sent.
func TestTypeErrorsNameTheField(t *testing.T) {
	namespace := newNamespace(t)
	kubectl := newKubectl(t, namespace)
	manifest := func(cooldown string) string {
		return fmt.Sprintf(`apiVersion: elasti.truefoundry.com/v1alpha1
kind: ElastiService
metadata: {name: app}
spec:
  service: app
  cooldownPeriod: %s
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: app}
`, cooldown)
	}
	if _, err := kubectl.Run(t.Context(), manifest("5"), "apply", "--filename=-"); err != nil {
		t.Fatal(err)
	}
	for _, typed := range []string{
		"apply --filename=-",
		"apply --server-side --force-conflicts --filename=-",
		"replace --filename=-",
		`patch elastiservice app --type=merge --patch={"spec":{"cooldownPeriod":"5"}}`,
		`patch elastiservice app --type=strategic --patch={"spec":{"cooldownPeriod":"5"}}`,
		`patch elastiservice app --type=json --patch=[{"op":"replace","path":"/spec/cooldownPeriod","value":"5"}]`,
	} {
		arguments := append(strings.Fields(typed), "--validate=false")
		if strings.HasPrefix(typed, "patch") {
			arguments = strings.Fields(typed)
		}
		_, err := kubectl.Run(t.Context(), manifest(`"5"`), arguments...)
		if err == nil || !strings.Contains(err.Error(), "spec.cooldownPeriod") || strings.Contains(err.Error(), "map[") || strings.Contains(err.Error(), "unrecognized type") {
			t.Errorf("kubectl %s answers %v, want a refusal that names spec.cooldownPeriod and does not repeat the patch", typed, err)
		}
	}
}

// A key of a trigger that is misspelt is warned about, at the first write and at
// each that changes the spec.
func TestAMisspeltKeyOfATriggerIsWarnedAbout(t *testing.T) {
	namespace := newNamespace(t)
	seen := &warnings{}
	config := rest.CopyConfig(shared.Admin)
	config.WarningHandler = seen
	client := elastiClient(t, config).ElastiV1alpha1().ElastiServices(namespace)
	expectWarning := func(what string, err error) {
		t.Helper()
		if texts := seen.take(); err != nil || !strings.Contains(texts, "spec.triggers[0].metadata.serverAdress") || !strings.Contains(texts, "serverAddress") {
			t.Errorf("%s warns %q (%v), want the misspelt key and the right ones", what, texts, err)
		}
	}
	object := newElastiService("app")
	object.Spec.Triggers = []v1alpha1.ScaleTrigger{prometheusTrigger(`{"query":"up","threshold":1,"serverAdress":"http://prometheus:9090"}`)}
	_, err := client.Create(t.Context(), object, metav1.CreateOptions{})
	expectWarning("creating", err)
	_, err = client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"spec":{"cooldownPeriod":60}}`), metav1.PatchOptions{})
	expectWarning("patching", err)
	apply := []byte(`{"apiVersion":"elasti.truefoundry.com/v1alpha1","kind":"ElastiService","spec":{"cooldownPeriod":70}}`)
	_, err = client.Patch(t.Context(), "app", types.ApplyYAMLPatchType, apply, metav1.PatchOptions{FieldManager: "team", Force: ptr.To(true)})
	expectWarning("applying", err)
}
