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
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// firstMinorWithMutatingPolicies is the first minor of Kubernetes 1 that
// serves mutating admission policies at v1.
const firstMinorWithMutatingPolicies = 36

func TestHostsOfEarlierVersionsAreServed(t *testing.T) {
	version, err := shared.Kubernetes.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	current, err := strconv.Atoi(version.Minor)
	if err != nil {
		t.Fatalf("reading the minor version of %s: %v", version, err)
	}
	for _, minor := range []int{current - 1, current - 2} {
		t.Run(fmt.Sprintf("1.%d", minor), func(t *testing.T) {
			host, err := shared.StartBeside(t.Context(), fmt.Sprintf("host-1.%d", minor), fmt.Sprintf("--emulated-version=kube=1.%d", minor))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := host.Stop(context.Background()); err != nil {
					t.Error(err)
				}
			})
			expectWrites(t, host)
			output := host.Server.Process().Output()
			switchedOff := strings.Contains(output, "Admission plugin is switched off") && strings.Contains(output, "MutatingAdmissionPolicy")
			if want := minor < firstMinorWithMutatingPolicies; switchedOff != want {
				t.Errorf("the server says that it does without MutatingAdmissionPolicy: %t, want %t\n%s", switchedOff, want, host.Server.Process().Tail())
			}
			expectEnoughPermissions(t, output)
		})
	}
}

// expectWrites sends the requests that admission handles: create, update, delete, and a
// wake.
func expectWrites(t *testing.T, host *environment.Environment) {
	t.Helper()
	namespace, err := host.Kubernetes.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating a namespace: %v", err)
	}
	client := host.Elasti.ElastiV1alpha1().ElastiServices(namespace.Name)
	if _, err := client.Create(t.Context(), newElastiService("app"), metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating: %v", err)
	}
	if _, err := client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"spec":{"cooldownPeriod":60}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("patching: %v", err)
	}
	// Its target is missing, which only an admitted wake reports.
	if _, err := client.Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("waking returns %v, want that the target is not found", err)
	}
	if err := client.Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting: %v", err)
	}
}

// expectEnoughPermissions expects no messages in the log of a server about missing
// permissions of its ServiceAccount, or about resources that the host does not serve.
func expectEnoughPermissions(t *testing.T, output string) {
	t.Helper()
	for line := range strings.Lines(output) {
		if strings.Contains(line, "is forbidden: User") || strings.Contains(line, "could not find the requested resource") {
			t.Errorf("the server logs %s", line)
		}
	}
}

func TestShippedPermissionsAreEnough(t *testing.T) {
	stopServer(t)
	before := len(shared.Server.Process().Output())
	startAgain(t)
	namespace := newNamespace(t)
	createApplication(t, namespace, 1)
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeServe)
	if _, err := newKubectl(t, namespace).Run(t.Context(), "", "scale", "elastiservice/app", "--replicas=0"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the target is put to sleep", func(context.Context) string {
		if replicas := desiredReplicas(t, namespace); replicas != 0 {
			return fmt.Sprintf("spec.replicas is %d", replicas)
		}
		return ""
	})
	if _, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking: %v", err)
	}
	// A deletion waits until the target serves.
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	if err := elastiServices(namespace).Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting: %v", err)
	}
	waitForElastiServiceDeleted(t, namespace)
	expectEnoughPermissions(t, shared.Server.Process().Output()[before:])
}
