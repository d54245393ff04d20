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
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// waitForAPIService waits until the condition Available of the APIService has a status.
func waitForAPIService(t *testing.T, kubectl *environment.Kubectl, want string) {
	t.Helper()
	eventuallyWithin(t, discoveryTimeout, "the APIService has Available="+want, func(ctx context.Context) string {
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

// A server that accepts connections and does not respond must not affect other APIs.
func TestAHangingServerAffectsNoOtherAPI(t *testing.T) {
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

// tooSlow is longer than the discovery timeout of the aggregator, 5 s.
const tooSlow = 6 * time.Second

// A server that is slow must not delay requests to other APIs.
func TestASlowServerIsUnavailableAndAffectsNoOtherAPI(t *testing.T) {
	namespace := newNamespace(t)
	createElastiService(t, namespace, newElastiService("app"))
	kubectl := newKubectl(t, namespace)

	port := startSlowLink(t, tooSlow)
	leadThrough := func(ctx context.Context, port int) {
		if err := shared.Server.LeadThrough(ctx, port); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { leadThrough(context.Background(), shared.Server.Port) })
	leadThrough(t.Context(), port)
	waitForAPIService(t, kubectl, "False")

	reason, err := kubectl.Run(t.Context(), "", "get", "apiservice", environment.APIServiceName, `--output=jsonpath={.status.conditions[?(@.type=="Available")].reason}`)
	if err != nil || reason != "FailedDiscoveryCheck" {
		t.Errorf("the APIService says %q (error: %v), want the failed discovery", reason, err)
	}
	_, err = elastiServices(namespace).Get(t.Context(), "app", metav1.GetOptions{})
	if !apierrors.IsServiceUnavailable(err) {
		t.Errorf("reading an ElastiService returns %v, want at once that the service is unavailable", err)
	}
	for _, resource := range []string{"pods", "deployments.apps", "namespaces"} {
		if _, err := kubectl.Run(t.Context(), "", "get", resource); err != nil {
			t.Errorf("while the server is slow: %v", err)
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/apis", "/apis/apps/v1", "/openapi/v2", "/openapi/v3"} {
		if _, err := kubectl.Run(t.Context(), "", "get", "--raw", path); err != nil {
			t.Errorf("%s of the cluster while the server is slow: %v", path, err)
		}
	}
	// The probes of the server do not depend on the link, so that it is not restarted.
	for _, path := range []string{"/livez", "/readyz"} {
		if err := shared.Server.Health(t.Context(), path); err != nil {
			t.Errorf("%s of the server: %v", path, err)
		}
	}

	leadThrough(t.Context(), shared.Server.Port)
	waitForAPIService(t, kubectl, "True")
	eventually(t, "the ElastiService can be read again", func(ctx context.Context) string {
		_, err := elastiServices(namespace).Get(ctx, "app", metav1.GetOptions{})
		return errorText(err)
	})
}

// A reinstallation or the restore of a backup creates the APIService without the
// certificate authority that the server has published in it.
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
		// All following tests need the APIService.
		if _, err := kubectl.Run(context.Background(), string(manifest), "apply", "--filename=-"); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the API is no longer served", func(ctx context.Context) string {
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
