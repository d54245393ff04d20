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
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// mayWake has the permissions that a resolver, or a user's script, needs for a wake.
var mayWake = rbacv1.PolicyRule{APIGroups: []string{"elasti.truefoundry.com"}, Resources: []string{"elastiservices/wake"}, Verbs: []string{"create"}}

func wakePath(namespace, name string) string {
	return "/apis/elasti.truefoundry.com/v1alpha1/namespaces/" + namespace + "/elastiservices/" + name + "/wake"
}

func TestWakeScalesTheTarget(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))

	woken, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("waking: %v", err)
	}
	if woken.Status.Replicas != 1 || !woken.Status.Scaled {
		t.Errorf("waking returns %+v, want 1 replica, scaled", woken.Status)
	}
	if replicas := desiredReplicas(t, namespace); replicas != 1 {
		t.Errorf("spec.replicas of the target is %d, want 1", replicas)
	}

	again, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("waking again: %v", err)
	}
	if again.Status.Replicas != 1 || again.Status.Scaled {
		t.Errorf("waking again returns %+v, want 1 replica, not scaled", again.Status)
	}
}

// The condition names the client regardless of the replica that it called, and after a
// restart.
func TestSleepingNamesTheCallerOfAWake(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForSleeping(t, namespace, "app", v1alpha1.ReasonAsleep, "")
	caller := elastiClient(t, newServiceAccount(t, namespace, "waker", mayWake)).ElastiV1alpha1().ElastiServices(namespace)
	request := &v1alpha1.WakeRequest{Spec: v1alpha1.WakeRequestSpec{Reason: "nightly report"}}
	if _, err := caller.Wake(t.Context(), "app", request, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking: %v", err)
	}
	waitForSleeping(t, namespace, "app", v1alpha1.ReasonNoTriggers, "by ServiceAccount "+namespace+"/waker: nightly report")
	restartServerWith(t)
	scaleTarget(t, namespace, 0)
	waitForSleeping(t, namespace, "app", v1alpha1.ReasonAsleep, "by ServiceAccount "+namespace+"/waker: nightly report")
}

func TestWakeScalesToMinTargetReplicasOrTheRequestedReplicas(t *testing.T) {
	for _, test := range []struct {
		name    string
		request v1alpha1.WakeRequest
		want    int32
	}{
		{name: "minTargetReplicas", want: 2},
		{name: "spec.replicas", request: v1alpha1.WakeRequest{Spec: v1alpha1.WakeRequestSpec{Replicas: ptr.To[int32](3)}}, want: 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			namespace := newNamespace(t)
			createApplication(t, namespace, 0)
			object := newElastiService("app")
			object.Spec.MinTargetReplicas = ptr.To[int32](2)
			createElastiService(t, namespace, object)
			woken, err := elastiServices(namespace).Wake(t.Context(), "app", &test.request, metav1.CreateOptions{})
			if err != nil {
				t.Fatalf("waking: %v", err)
			}
			if replicas := desiredReplicas(t, namespace); replicas != test.want || woken.Status.Replicas != test.want {
				t.Errorf("spec.replicas of the target is %d, the response has %d, want %d", replicas, woken.Status.Replicas, test.want)
			}
		})
	}
}

func TestWakeNeverLowers(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 5)
	createElastiService(t, namespace, newElastiService("app"))
	woken, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("waking: %v", err)
	}
	if replicas := desiredReplicas(t, namespace); replicas != 5 || woken.Status.Replicas != 5 || woken.Status.Scaled {
		t.Errorf("spec.replicas of the target is %d and the response is %+v, want 5, not scaled", replicas, woken.Status)
	}
}

func TestDryRunOfWakeSaysWhatItWouldDoAndDoesNothing(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	woken, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatalf("waking: %v", err)
	}
	if woken.Status.Replicas != 1 || !woken.Status.Scaled {
		t.Errorf("waking returns %+v, want 1 replica, scaled", woken.Status)
	}
	if replicas := desiredReplicas(t, namespace); replicas != 0 {
		t.Errorf("spec.replicas of the target is %d, want 0 still", replicas)
	}
}

func TestWakeNeedsPermissionAndNothingElse(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	without := newServiceAccount(t, namespace, "without")
	with := newServiceAccount(t, namespace, "with", mayWake)
	const request = `{"apiVersion":"elasti.truefoundry.com/v1alpha1","kind":"WakeRequest","spec":{"reason":"a test","pending":3}}`
	wake := func(kubectl *environment.Kubectl) (string, error) {
		return kubectl.Run(t.Context(), request, "create", "--raw", wakePath(namespace, "app"), "-f", "-")
	}

	if _, err := wake(newKubectlAs(t, without, namespace)); err == nil || !strings.Contains(err.Error(), "Forbidden") {
		t.Errorf("a service account without permission gets %v, want Forbidden", err)
	}
	if replicas := desiredReplicas(t, namespace); replicas != 0 {
		t.Fatalf("spec.replicas of the target is %d after a forbidden wake, want 0", replicas)
	}

	response, err := wake(newKubectlAs(t, with, namespace))
	if err != nil {
		t.Fatalf("a service account with permission cannot wake: %v", err)
	}
	if replicas := desiredReplicas(t, namespace); replicas != 1 {
		t.Errorf("spec.replicas of the target is %d, want 1", replicas)
	}
	var woken v1alpha1.WakeRequest
	if err := json.Unmarshal([]byte(response), &woken); err != nil {
		t.Fatalf("the response is no WakeRequest: %v: %s", err, response)
	}
	if woken.Kind != "WakeRequest" || woken.Name != "app" || woken.Namespace != namespace || woken.Spec.Pending != 3 || !woken.Status.Scaled {
		t.Errorf("the response is %s", response)
	}
	// The status of the request has only values that the caller did not send.
	for _, secret := range []string{"scaleTargetRef", "Deployment", "uid", "resourceVersion"} {
		if strings.Contains(response, secret) {
			t.Errorf("the response to a caller that may only wake contains %s: %s", secret, response)
		}
	}
	if _, err := elastiClient(t, with).ElastiV1alpha1().ElastiServices(namespace).Get(t.Context(), "app", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("reading with the permission to wake returns %v, want forbidden", err)
	}
}

func TestWakeTakesAnyBody(t *testing.T) {
	for _, test := range []struct{ name, body string }{
		{"none", ""},
		{"empty object", "{}"},
		{"full object", `{"apiVersion":"elasti.truefoundry.com/v1alpha1","kind":"WakeRequest","metadata":{"name":"app"},"spec":{"reason":"a test","pending":1,"replicas":1}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			namespace := newNamespace(t)
			createApplication(t, namespace, 0)
			createElastiService(t, namespace, newElastiService("app"))
			code := 0
			result := shared.Elasti.ElastiV1alpha1().RESTClient().Post().AbsPath(wakePath(namespace, "app")).
				SetHeader("Content-Type", "application/json").Body([]byte(test.body)).Do(t.Context()).StatusCode(&code)
			if err := result.Error(); err != nil {
				t.Fatalf("waking: %v", err)
			}
			if code != http.StatusCreated {
				t.Errorf("waking returns %d, want 201", code)
			}
			if replicas := desiredReplicas(t, namespace); replicas != 1 {
				t.Errorf("spec.replicas of the target is %d, want 1", replicas)
			}
		})
	}
}

func TestWakeOfMissingElastiServiceIsNotFound(t *testing.T) {
	_, err := elastiServices(newNamespace(t)).Wake(t.Context(), "missing", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("waking returns %v, want not found", err)
	}
}

func TestWakeOfMissingTargetNamesTheTarget(t *testing.T) {
	for _, test := range []struct{ apiVersion, kind, group string }{
		{"apps/v1", "Deployment", "apps"},
		{"example.com/v1", "Unknown", "example.com"},
	} {
		t.Run(test.kind, func(t *testing.T) {
			namespace := newNamespace(t)
			object := newElastiService("app")
			object.Spec.ScaleTargetRef = v1alpha1.ScaleTargetRef{APIVersion: test.apiVersion, Kind: test.kind, Name: "missing"}
			createElastiService(t, namespace, object)
			_, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
			var status apierrors.APIStatus
			if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
				t.Fatalf("waking returns %v, want not found", err)
			}
			details := status.Status().Details
			if details == nil || details.Group != test.group || details.Kind != test.kind || details.Name != "missing" {
				t.Errorf("the details are %+v, want the target", details)
			}
		})
	}
}

func TestInvalidWakeIsRejected(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	for _, spec := range []v1alpha1.WakeRequestSpec{
		{Replicas: ptr.To[int32](0)},
		{Pending: -1},
		{Reason: strings.Repeat("x", 257)},
	} {
		_, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{Spec: spec}, metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) {
			t.Errorf("waking with %+v returns %v, want invalid", spec, err)
		}
	}
	if replicas := desiredReplicas(t, namespace); replicas != 0 {
		t.Errorf("spec.replicas of the target is %d, want 0", replicas)
	}
}

// A target whose last pods are terminating is at zero.
func TestWakeDependsOnSpecReplicasAndNotOnPods(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 1)
	pod := runPod(t, namespace, "app")
	setReady(t, namespace, pod, true)
	createElastiService(t, namespace, newElastiService("app"))
	scaleTarget(t, namespace, 0)
	waitForTerminating(t, namespace, pod)

	woken, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("waking: %v", err)
	}
	if !woken.Status.Scaled || desiredReplicas(t, namespace) != 1 {
		t.Errorf("waking returns %+v, want scaled to 1", woken.Status)
	}
}
