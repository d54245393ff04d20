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
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: RequestResponse
    resources: [{group: elasti.truefoundry.com, resources: [elastiservices/wake]}]
  - level: Metadata
    verbs: [create, delete]
    resources: [{group: elasti.truefoundry.com, resources: [elastiservices]}]
  - level: None
`

// restartServerWith restarts the shared server with additional flags, until the end of the
// test.
func restartServerWith(t *testing.T, flags ...string) {
	t.Helper()
	before := shared.Server.Flags
	stopServer(t)
	t.Cleanup(func() {
		shared.Server.Flags = before
		if err := shared.Server.Stop(context.Background()); err != nil {
			t.Errorf("stopping the server: %v", err)
		}
	})
	shared.Server.Flags = slices.Concat(before, flags)
	startAgain(t)
}

func TestAuditLogHasTheUserAndTheTargetOfAWake(t *testing.T) {
	directory := t.TempDir()
	policy, log := filepath.Join(directory, "policy.yaml"), filepath.Join(directory, "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	restartServerWith(t, "--audit-policy-file="+policy, "--audit-log-path="+log)
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	role := newServiceAccount(t, namespace, "waker", mayWake)
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "waker"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}},
	}
	if _, err := shared.Kubernetes.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatalf("letting alice wake: %v", err)
	}
	asAlice := rest.CopyConfig(shared.Admin)
	asAlice.Impersonate = rest.ImpersonationConfig{UserName: "alice", Groups: []string{"team", "system:authenticated"}}

	for _, caller := range []struct {
		reason, user string
		config       *rest.Config
	}{
		{"a service account", "system:serviceaccount:" + namespace + ":waker", role},
		{"an impersonated user", "alice", asAlice},
	} {
		request := &v1alpha1.WakeRequest{Spec: v1alpha1.WakeRequestSpec{Reason: caller.reason}}
		if _, err := elastiClient(t, caller.config).ElastiV1alpha1().ElastiServices(namespace).Wake(t.Context(), "app", request, metav1.CreateOptions{}); err != nil {
			t.Fatalf("waking as %s: %v", caller.user, err)
		}
		event := waitForAuditEvent(t, log, func(event *auditv1.Event) bool {
			return event.ObjectRef != nil && event.ObjectRef.Namespace == namespace && event.ObjectRef.Subresource == "wake" && event.User.Username == caller.user
		})
		if event.Verb != "create" || event.ObjectRef.Resource != "elastiservices" || event.ObjectRef.Name != "app" || event.AuditID == types.UID("") {
			t.Errorf("the wake of %s is the event %+v", caller.user, event)
		}
		if event.ResponseStatus == nil || event.ResponseStatus.Code != 201 {
			t.Errorf("the wake of %s has the status %+v, want 201", caller.user, event.ResponseStatus)
		}
		var logged, response v1alpha1.WakeRequest
		if event.RequestObject == nil || event.ResponseObject == nil {
			t.Fatalf("the event of %s has no bodies", caller.user)
		}
		if err := json.Unmarshal(event.RequestObject.Raw, &logged); err != nil || logged.Spec.Reason != caller.reason {
			t.Errorf("the request of %s is %s (error: %v)", caller.user, event.RequestObject.Raw, err)
		}
		if err := json.Unmarshal(event.ResponseObject.Raw, &response); err != nil || response.Status.Replicas != 1 {
			t.Errorf("the response to %s is %s (error: %v)", caller.user, event.ResponseObject.Raw, err)
		}
	}
	created := waitForAuditEvent(t, log, func(event *auditv1.Event) bool {
		return event.ObjectRef != nil && event.ObjectRef.Namespace == namespace && event.ObjectRef.Subresource == ""
	})
	if created.Level != auditv1.LevelMetadata || created.RequestObject != nil {
		t.Errorf("the event of the creation is %+v, want metadata only", created)
	}
}

// waitForAuditEvent waits until the log has an event that matches.
func waitForAuditEvent(t *testing.T, log string, match func(*auditv1.Event) bool) (found *auditv1.Event) {
	t.Helper()
	eventually(t, "the audit log has the event", func(context.Context) string {
		content, err := os.ReadFile(log)
		if err != nil {
			return err.Error()
		}
		lines := bytes.Split(content, []byte("\n"))
		// The text after the last line break may be incomplete.
		for _, line := range lines[:len(lines)-1] {
			event := &auditv1.Event{}
			if err := json.Unmarshal(line, event); err != nil {
				t.Fatalf("the audit log has the line %s: %v", line, err)
			}
			if match(event) {
				found = event
				return ""
			}
		}
		return fmt.Sprintf("none of its %d events is", len(lines)-1)
	})
	return found
}
