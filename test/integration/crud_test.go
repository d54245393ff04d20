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
	"io"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestCreateReadUpdateDelete(t *testing.T) {
	client := elastiServices(newNamespace(t))

	created, err := client.Create(t.Context(), newElastiService("app"), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating: %v", err)
	}
	if got := ptr.Deref(created.Spec.MinTargetReplicas, 0); got != 1 {
		t.Errorf("minTargetReplicas of an object without one is %d, want the default 1", got)
	}
	if created.Generation != 1 {
		t.Errorf("generation of a new object is %d, want 1", created.Generation)
	}

	created.Spec.CooldownPeriod = ptr.To[int32](60)
	updated, err := client.Update(t.Context(), created, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		// The controller may have written the status meanwhile.
		updated, err = client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"spec":{"cooldownPeriod":60}}`), metav1.PatchOptions{})
	}
	if err != nil {
		t.Fatalf("updating: %v", err)
	}
	if updated.Generation != 2 {
		t.Errorf("generation after a change of the spec is %d, want 2", updated.Generation)
	}
	labeled, err := client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"a"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("patching: %v", err)
	}
	if labeled.Generation != 2 {
		t.Errorf("generation after a change of the labels is %d, want 2 still", labeled.Generation)
	}

	read, err := client.Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading: %v", err)
	}
	if read.UID != created.UID || ptr.Deref(read.Spec.CooldownPeriod, 0) != 60 || read.Labels["team"] != "a" {
		t.Errorf("read %+v, which is not what was written", read)
	}
	for _, selector := range []metav1.ListOptions{
		{LabelSelector: "team=a"},
		{FieldSelector: "metadata.name=app"},
		{FieldSelector: "spec.service=app"},
	} {
		list, err := client.List(t.Context(), selector)
		if err != nil || len(list.Items) != 1 {
			t.Errorf("listing with %+v found %d objects (error: %v), want 1", selector, len(list.Items), err)
		}
	}

	if err := client.Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting: %v", err)
	}
	eventually(t, "the object is deleted", func(ctx context.Context) string {
		if _, err := client.Get(ctx, "app", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return "reading it does not return 404"
		}
		return ""
	})
}

func TestObjectThatIsNotThereIsNotFound(t *testing.T) {
	client := elastiServices(newNamespace(t))
	if _, err := client.Get(t.Context(), "missing", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("reading returns %v, want not found", err)
	}
	object := newElastiService("missing")
	object.ResourceVersion = "1"
	if _, err := client.Update(t.Context(), object, metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("updating returns %v, want not found", err)
	}
	if err := client.Delete(t.Context(), "missing", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("deleting returns %v, want not found", err)
	}
}

func TestInvalidObjectIsRejectedWithItsFieldPath(t *testing.T) {
	client := elastiServices(newNamespace(t))
	object := newElastiService("app")
	object.Spec.Service = "Not A Name"
	object.Spec.ScaleTargetRef.Kind = ""
	_, err := client.Create(t.Context(), object, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Fatalf("creating returns %v, want invalid", err)
	}
	for _, path := range []string{"spec.service", "spec.scaleTargetRef.kind"} {
		if !strings.Contains(err.Error(), path) {
			t.Errorf("the response %q does not name %s", err, path)
		}
	}
}

func TestUpdateOfAnOldVersionIsAConflict(t *testing.T) {
	client := elastiServices(newNamespace(t))
	old, err := client.Create(t.Context(), newElastiService("app"), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating: %v", err)
	}
	if _, err := client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"spec":{"cooldownPeriod":60}}`), metav1.PatchOptions{}); err != nil {
		t.Fatalf("patching: %v", err)
	}
	old.Spec.CooldownPeriod = ptr.To[int32](70)
	if _, err := client.Update(t.Context(), old, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("updating returns %v, want a conflict", err)
	}
}

func TestWatchSeesEveryChange(t *testing.T) {
	client := elastiServices(newNamespace(t))
	watcher, err := client.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("watching: %v", err)
	}
	defer watcher.Stop()

	if _, err := client.Create(t.Context(), newElastiService("app"), metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating: %v", err)
	}
	expectEvent(t, watcher, watch.Added, func(object *v1alpha1.ElastiService) bool { return object.Name == "app" })
	if _, err := client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"spec":{"cooldownPeriod":61}}`), metav1.PatchOptions{}); err != nil {
		t.Fatalf("patching: %v", err)
	}
	expectEvent(t, watcher, watch.Modified, func(object *v1alpha1.ElastiService) bool {
		return ptr.Deref(object.Spec.CooldownPeriod, 0) == 61
	})
	if err := client.Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting: %v", err)
	}
	expectEvent(t, watcher, watch.Deleted, func(object *v1alpha1.ElastiService) bool { return object.Name == "app" })
}

// expectEvent reads until the event comes, and ignores those of the controller's writes.
func expectEvent(t *testing.T, watcher watch.Interface, kind watch.EventType, match func(*v1alpha1.ElastiService) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	for {
		select {
		case event, open := <-watcher.ResultChan():
			if !open {
				t.Fatalf("the watch ended before the event %s", kind)
			}
			if object, ok := event.Object.(*v1alpha1.ElastiService); ok && event.Type == kind && match(object) {
				return
			}
		case <-ctx.Done():
			t.Fatalf("no event %s came within %s", kind, waitTimeout)
		}
	}
}

func TestStatusChangesThroughItsSubresourceOnly(t *testing.T) {
	client := elastiServices(newNamespace(t))
	checked := func(status v1alpha1.ElastiServiceStatus) bool {
		return meta.FindStatusCondition(status.Conditions, "Checked") != nil
	}
	const status = `"status":{"conditions":[{"type":"Checked","status":"True","reason":"Test","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}`
	object := newElastiService("app")
	meta.SetStatusCondition(&object.Status.Conditions, metav1.Condition{Type: "Checked", Status: metav1.ConditionTrue, Reason: "Test"})
	created, err := client.Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating: %v", err)
	}
	if checked(created.Status) {
		t.Errorf("a create has written the status")
	}
	patch := []byte(`{"spec":{"cooldownPeriod":62},` + status + `}`)
	throughMain, err := client.Patch(t.Context(), "app", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("patching: %v", err)
	}
	if checked(throughMain.Status) {
		t.Error("a patch of the object has written the status")
	}

	patch = []byte(`{"metadata":{"labels":{"through":"status"}},"spec":{"cooldownPeriod":63},` + status + `}`)
	throughStatus, err := client.Patch(t.Context(), "app", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatalf("patching the status: %v", err)
	}
	if !checked(throughStatus.Status) {
		t.Error("a patch of the status has not written the status")
	}
	if got := ptr.Deref(throughStatus.Spec.CooldownPeriod, 0); got != 62 {
		t.Errorf("a patch of the status has changed the spec: cooldownPeriod is %d", got)
	}
	if len(throughStatus.Labels) > 0 {
		t.Errorf("a patch of the status has changed the labels: %v", throughStatus.Labels)
	}
	if throughStatus.Generation != throughMain.Generation {
		t.Errorf("a patch of the status has changed the generation")
	}
}

func TestDryRunOfCreateStoresNothing(t *testing.T) {
	client := elastiServices(newNamespace(t))
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	if _, err := client.Create(t.Context(), newElastiService("app"), dryRun); err != nil {
		t.Fatalf("creating: %v", err)
	}
	if _, err := client.Get(t.Context(), "app", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("reading returns %v, want not found", err)
	}
}

// A client of built-in kinds accepts protobuf, and JSON as the second choice.
func TestClientThatPrefersProtobufGetsJSON(t *testing.T) {
	namespace := newNamespace(t)
	createElastiService(t, namespace, newElastiService("app"))
	client, err := rest.HTTPClientFor(shared.Admin)
	if err != nil {
		t.Fatalf("making an HTTP client: %v", err)
	}
	path := "/apis/elasti.truefoundry.com/v1alpha1/namespaces/" + namespace + "/elastiservices"
	for _, path := range []string{path, path + "/app"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, shared.Admin.Host+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept", "application/vnd.kubernetes.protobuf,application/json")
		response, err := client.Do(request)
		if err != nil {
			t.Fatalf("GET %s: %v", path, err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatalf("reading the response to GET %s: %v", path, err)
		}
		if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "application/json" || !json.Valid(body) {
			t.Errorf("GET %s returns %s with %q: %.200s", path, response.Status, response.Header.Get("Content-Type"), body)
		}
	}
}

func TestKubectlSeesABuiltInKind(t *testing.T) {
	kubectl := newKubectl(t, newNamespace(t))
	run := func(input string, arguments ...string) string {
		t.Helper()
		output, err := kubectl.Run(t.Context(), input, arguments...)
		if err != nil {
			t.Fatal(err)
		}
		return output
	}
	run(`apiVersion: elasti.truefoundry.com/v1alpha1
kind: ElastiService
metadata:
  name: app
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: app}
  service: app
`, "apply", "-f", "-")
	table := run("", "get", "elastiservices")
	for _, column := range []string{"NAME", "TARGET", "SERVICE", "MODE", "READY", "LAST ACTIVITY", "AGE", "deployment/app"} {
		if !strings.Contains(table, column) {
			t.Errorf("kubectl get elastiservices does not show %s:\n%s", column, table)
		}
	}
	if byCategory := run("", "get", "elasti", "-o", "name"); byCategory != "elastiservice.elasti.truefoundry.com/app\n" {
		t.Errorf("kubectl get elasti shows %q", byCategory)
	}
	if explained := run("", "explain", "elastiservice.spec.cooldownPeriod"); !strings.Contains(explained, "seconds") {
		t.Errorf("kubectl explain does not give the unit of cooldownPeriod:\n%s", explained)
	}
	run("", "delete", "elastiservice", "app", "--timeout=30s")
}
