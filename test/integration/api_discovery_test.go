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
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// waitForAPIService waits until the APIService is available, or is not.
func waitForAPIService(t *testing.T, kubectl *environment.Kubectl, want string) {
	t.Helper()
	eventuallyWithin(t, discoveryPatience, "the APIService has Available="+want, func(ctx context.Context) string {
		condition, err := kubectl.Run(ctx, "", "get", "apiservice", environment.APIServiceName,
			`--output=jsonpath={.status.conditions[?(@.type=="Available")]}`)
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(condition, fmt.Sprintf("%q:%q", "status", want)) {
			return "its condition is " + condition
		}
		return ""
	})
}

// A server that accepts connections and says nothing is worse than none.
func TestServerThatHangsHarmsNobodyElse(t *testing.T) {
	namespace := newNamespace(t)
	createElastiService(t, namespace, newElastiService("app"))
	kubectl := newKubectl(t, namespace)

	process := shared.Server.Process().PID()
	if err := syscall.Kill(process, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume := func() {
		if err := syscall.Kill(process, syscall.SIGCONT); err != nil {
			t.Errorf("resuming the server: %v", err)
		}
	}
	t.Cleanup(resume)
	waitForAPIService(t, kubectl, "False")
	for _, resource := range []string{"pods", "deployments.apps", "namespaces"} {
		if _, err := kubectl.Run(t.Context(), "", "get", resource); err != nil {
			t.Errorf("while the server hangs: %v", err)
		}
	}
	resume()
	waitForAPIService(t, kubectl, "True")
	eventually(t, "the ElastiService can be read again", func(ctx context.Context) string {
		if _, err := kubectl.Run(ctx, "", "get", "elastiservice", "app"); err != nil {
			return err.Error()
		}
		return ""
	})
}

// Whoever installs again, or has the APIService in a backup, creates it without
// the certificate authority that the server has published in it.
func TestAPIServiceMayBeDeletedAndCreatedAgain(t *testing.T) {
	namespace := newNamespace(t)
	created := createElastiService(t, namespace, newElastiService("app"))
	kubectl := newKubectl(t, namespace)
	saved, err := kubectl.Run(t.Context(), "", "get", "apiservice", environment.APIServiceName, "--output=json")
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(saved), object); err != nil {
		t.Fatal(err)
	}
	again := &unstructured.Unstructured{Object: map[string]any{"spec": object.Object["spec"]}}
	unstructured.RemoveNestedField(again.Object, "spec", "caBundle")
	again.SetAPIVersion(object.GetAPIVersion())
	again.SetKind(object.GetKind())
	again.SetName(object.GetName())
	again.SetLabels(object.GetLabels())
	manifest, err := json.Marshal(again)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := kubectl.Run(t.Context(), "", "delete", "apiservice", environment.APIServiceName); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Without it, all that follows would fail.
		if _, err := kubectl.Run(context.Background(), string(manifest), "apply", "--filename=-"); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the API is gone", func(ctx context.Context) string {
		_, err := kubectl.Run(ctx, "", "get", "--raw", groupPath+"/v1alpha1")
		if err == nil {
			return "it is still served"
		}
		return ""
	})
	if _, err := kubectl.Run(t.Context(), string(manifest), "apply", "--filename=-"); err != nil {
		t.Fatal(err)
	}
	waitForAPIService(t, kubectl, "True")
	eventually(t, "the ElastiService can be read again", func(ctx context.Context) string {
		uid, err := kubectl.Run(ctx, "", "get", "elastiservice", "app", "--output=jsonpath={.metadata.uid}")
		if err != nil {
			return err.Error()
		}
		if uid != string(created.UID) {
			t.Fatalf("it has the UID %s, want %s", uid, created.UID)
		}
		return ""
	})
}
