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
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elastiapply "github.com/truefoundry/elasti-apiserver/pkg/generated/applyconfiguration/elasti/v1alpha1"
)

func appliedElastiService(namespace string) *elastiapply.ElastiServiceApplyConfiguration {
	return elastiapply.ElastiService("app", namespace).WithSpec(elastiapply.ElastiServiceSpec().
		WithService("app").
		WithScaleTargetRef(elastiapply.ScaleTargetRef().WithAPIVersion("apps/v1").WithKind("Deployment").WithName("app")))
}

func TestServerSideApplyKnowsTheOwnersOfFields(t *testing.T) {
	namespace := newNamespace(t)
	client := elastiServices(namespace)
	team := appliedElastiService(namespace)
	team.Spec.WithCooldownPeriod(60)
	// Fields that the client may not set are not owned by it.
	team.WithStatus(elastiapply.ElastiServiceStatus().WithMode(v1alpha1.ModeServe))
	if _, err := client.Apply(t.Context(), team, metav1.ApplyOptions{FieldManager: "team"}); err != nil {
		t.Fatalf("applying: %v", err)
	}

	operations := elastiapply.ElastiService("app", namespace).WithSpec(elastiapply.ElastiServiceSpec().WithCooldownPeriod(90))
	if _, err := client.Apply(t.Context(), operations, metav1.ApplyOptions{FieldManager: "operations"}); !apierrors.IsConflict(err) {
		t.Errorf("applying a field of another manager returns %v, want a conflict", err)
	}
	if _, err := client.Apply(t.Context(), operations, metav1.ApplyOptions{FieldManager: "operations", Force: true}); err != nil {
		t.Fatalf("applying by force: %v", err)
	}

	monitor := elastiapply.ElastiService("app", namespace).
		WithLabels(map[string]string{"seen": "true"}).
		WithStatus(elastiapply.ElastiServiceStatus().WithConditions(applymeta.Condition().
			WithType("Checked").WithStatus(metav1.ConditionTrue).WithReason("Test").WithMessage("").WithLastTransitionTime(metav1.Now())))
	if _, err := client.ApplyStatus(t.Context(), monitor, metav1.ApplyOptions{FieldManager: "monitor"}); err != nil {
		t.Fatalf("applying the status: %v", err)
	}

	object, err := client.Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ptr.Deref(object.Spec.CooldownPeriod, 0) != 90 || meta.FindStatusCondition(object.Status.Conditions, "Checked") == nil || object.Labels["seen"] != "" {
		t.Errorf("got cooldown %v, conditions %v and labels %v, want what each manager may write", object.Spec.CooldownPeriod, object.Status.Conditions, object.Labels)
	}
	for _, want := range []struct {
		manager, subresource, owns, ownsNot string
	}{
		{"team", "", `"f:service"`, `"f:status"`},
		{"team", "", `"f:scaleTargetRef"`, `"f:cooldownPeriod"`},
		{"operations", "", `"f:cooldownPeriod"`, `"f:service"`},
		{"monitor", "status", `"f:conditions"`, `"f:labels"`},
	} {
		fields := ownedFields(object, want.manager, want.subresource)
		if !strings.Contains(fields, want.owns) || strings.Contains(fields, want.ownsNot) {
			t.Errorf("%s owns %s through %q, want %s and not %s", want.manager, fields, want.subresource, want.owns, want.ownsNot)
		}
	}
}

func ownedFields(object *v1alpha1.ElastiService, manager, subresource string) string {
	for _, entry := range object.ManagedFields {
		if entry.Manager == manager && entry.Subresource == subresource && entry.FieldsV1 != nil {
			return entry.FieldsV1.GetRawString()
		}
	}
	return ""
}

func TestEveryKindOfPatch(t *testing.T) {
	namespace := newNamespace(t)
	client := elastiServices(namespace)
	createElastiService(t, namespace, newElastiService("app"))
	for i, patch := range []struct {
		kind types.PatchType
		body string
	}{
		{types.JSONPatchType, `[{"op":"replace","path":"/spec/cooldownPeriod","value":%d}]`},
		{types.MergePatchType, `{"spec":{"cooldownPeriod":%d}}`},
		{types.StrategicMergePatchType, `{"spec":{"cooldownPeriod":%d}}`},
	} {
		patched, err := client.Patch(t.Context(), "app", patch.kind, fmt.Appendf(nil, patch.body, i+1), metav1.PatchOptions{})
		if err != nil {
			t.Errorf("%s: %v", patch.kind, err)
			continue
		}
		if got := ptr.Deref(patched.Spec.CooldownPeriod, 0); got != int32(i+1) || patched.Generation != int64(i+2) {
			t.Errorf("%s: got cooldown %d in generation %d, want %d and %d", patch.kind, got, patched.Generation, i+1, i+2)
		}
	}
	// Conditions are merged by their type.
	now := metav1.Now().Format("2006-01-02T15:04:05Z")
	for _, condition := range []string{"First", "Second"} {
		body := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":"True","reason":"Test","message":"","lastTransitionTime":%q}]}}`, condition, now)
		if _, err := client.Patch(t.Context(), "app", types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status"); err != nil {
			t.Fatalf("patching the status: %v", err)
		}
	}
	object, err := client.Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, condition := range object.Status.Conditions {
		if condition.Reason == "Test" {
			found++
		}
	}
	if found != 2 {
		t.Errorf("got the conditions %+v, want both of the patches among them", object.Status.Conditions)
	}
}

func TestSelectors(t *testing.T) {
	namespace := newNamespace(t)
	client := elastiServices(namespace)
	for _, name := range []string{"a", "b"} {
		object := newElastiService(name)
		object.Spec.Service, object.Spec.ScaleTargetRef.Name = "service-"+name, "target-"+name
		object.Labels = map[string]string{"name": name}
		createElastiService(t, namespace, object)
	}
	for _, options := range []metav1.ListOptions{
		{LabelSelector: "name=a"},
		{LabelSelector: "name notin (b)"},
		{FieldSelector: "metadata.name=a"},
		{FieldSelector: "metadata.name!=b"},
		{FieldSelector: "spec.service=service-a"},
		{FieldSelector: "spec.scaleTargetRef.name=target-a,spec.service!=service-b"},
	} {
		list, err := client.List(t.Context(), options)
		if err != nil || len(list.Items) != 1 || list.Items[0].Name != "a" {
			t.Errorf("%+v finds %d objects (error: %v), want a", options, len(list.Items), err)
		}
	}
	if _, err := client.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.cooldownPeriod=900"}); !apierrors.IsBadRequest(err) {
		t.Errorf("selecting a field that cannot be selected returns %v, want a bad request", err)
	}
}

// Current clients request the list as the beginning of the watch.
func TestWatchCanBeginWithTheList(t *testing.T) {
	namespace := newNamespace(t)
	client := elastiServices(namespace)
	createElastiService(t, namespace, newElastiService("app"))
	watcher, err := client.Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	expectEvent(t, watcher, watch.Added, func(object *v1alpha1.ElastiService) bool { return object.Name == "app" })
	expectEvent(t, watcher, watch.Bookmark, func(object *v1alpha1.ElastiService) bool {
		return object.Annotations[metav1.InitialEventsAnnotationKey] == "true"
	})
}

func TestDeleteCollectionHonorsSelectorsAndDryRun(t *testing.T) {
	namespace := newNamespace(t)
	client := elastiServices(namespace)
	for i := range 5 {
		object := newElastiService(fmt.Sprintf("app-%d", i))
		object.Spec.Service = object.Name
		object.Labels = map[string]string{"even": fmt.Sprint(i%2 == 0)}
		createElastiService(t, namespace, object)
	}
	even := metav1.ListOptions{LabelSelector: "even=true"}
	if err := client.DeleteCollection(t.Context(), metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}, even); err != nil {
		t.Fatal(err)
	}
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 5 {
		t.Fatalf("after a dry run there are %d objects (error: %v), want 5", len(list.Items), err)
	}
	if err := client.DeleteCollection(t.Context(), metav1.DeleteOptions{}, even); err != nil {
		t.Fatal(err)
	}
	eventually(t, "only what was not selected is left", func(ctx context.Context) string {
		list, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		if len(list.Items) != 2 {
			return fmt.Sprintf("there are %d objects", len(list.Items))
		}
		return ""
	})
}

func TestTableWithWideColumns(t *testing.T) {
	namespace := newNamespace(t)
	object := newElastiService("app")
	object.Spec.CooldownPeriod = ptr.To[int32](90)
	object.Spec.Triggers = []v1alpha1.ScaleTrigger{prometheusTrigger(`{"query":"up","threshold":1}`)}
	createElastiService(t, namespace, object)
	kubectl := newKubectl(t, namespace)
	table, err := kubectl.Run(t.Context(), "", "get", "elastiservices", "-o", "wide")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"STATUS", "COOLDOWN", "TRIGGERS", "PROXY PORTS", "90s", "prometheus"} {
		if !strings.Contains(table, want) {
			t.Errorf("kubectl get -o wide does not show %s:\n%s", want, table)
		}
	}
	explained, err := kubectl.Run(t.Context(), "", "explain", "elastiservice.spec.triggers", "--recursive=false")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"prometheus", "traffic", "externalMetric", "cpu", "threshold", "serverAddress", "uptimeFilter", "authorization", "basicAuth", "tlsConfig", "selector", "milli-cores", "Always", "defaults to"} {
		if !strings.Contains(explained, want) {
			t.Errorf("kubectl explain does not mention %s:\n%s", want, explained)
		}
	}
}

func TestUnknownFieldsAreReportedAsStrictlyAsRequested(t *testing.T) {
	namespace := newNamespace(t)
	object, err := json.Marshal(newElastiService("app"))
	if err != nil {
		t.Fatal(err)
	}
	mistyped := strings.Replace(string(object), `"service":`, `"colldownPeriod":5,"service":`, 1)
	mistyped = strings.Replace(mistyped, `{`, `{"apiVersion":"elasti.truefoundry.com/v1alpha1","kind":"ElastiService",`, 1)
	create := func(fieldValidation string) error {
		return shared.Elasti.ElastiV1alpha1().RESTClient().Post().Namespace(namespace).Resource("elastiservices").
			Param("fieldValidation", fieldValidation).SetHeader("Content-Type", "application/json").Body([]byte(mistyped)).Do(t.Context()).Error()
	}
	if err := create(metav1.FieldValidationStrict); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "colldownPeriod") {
		t.Errorf("strict validation returns %v, want it to name the unknown field", err)
	}
	if err := create(metav1.FieldValidationIgnore); err != nil {
		t.Errorf("without validation: %v", err)
	}
}
