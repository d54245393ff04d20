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

package elastiservice_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// forged returns changes of all that only the server may write in the status, by
// the field that the error names.
func forged() map[string]func(*v1alpha1.ElastiServiceStatus) {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	forged := map[string]func(*v1alpha1.ElastiServiceStatus){
		"mode":               func(s *v1alpha1.ElastiServiceStatus) { s.Mode = v1alpha1.ModeServe },
		"lastReconciledTime": func(s *v1alpha1.ElastiServiceStatus) { s.LastReconciledTime = &now },
		"lastScaledUpTime":   func(s *v1alpha1.ElastiServiceStatus) { s.LastScaledUpTime = &now },
		"lastWake":           func(s *v1alpha1.ElastiServiceStatus) { s.LastWake = &v1alpha1.WakeRecord{Time: now, By: "forged"} },
		"lastActivityTime":   func(s *v1alpha1.ElastiServiceStatus) { s.LastActivityTime = &now },
		"activity": func(s *v1alpha1.ElastiServiceStatus) {
			s.Activity = append(s.Activity, v1alpha1.ResolverActivity{Resolver: "forged", ReportTime: metav1.NowMicro(), ObservedSince: metav1.NowMicro(), Open: 1})
		},
		"sleptTime":          func(s *v1alpha1.ElastiServiceStatus) { s.SleptTime = &now },
		"sleepRequestedTime": func(s *v1alpha1.ElastiServiceStatus) { s.SleepRequestedTime = &now },
		"sleepRequestedBy":   func(s *v1alpha1.ElastiServiceStatus) { s.SleepRequestedBy = "forged" },
		"observedGeneration": func(s *v1alpha1.ElastiServiceStatus) { s.ObservedGeneration = 7 },
		"replicas":           func(s *v1alpha1.ElastiServiceStatus) { s.Replicas = 7 },
		"readyReplicas":      func(s *v1alpha1.ElastiServiceStatus) { s.ReadyReplicas = 7 },
		"targetSharedWith":   func(s *v1alpha1.ElastiServiceStatus) { s.TargetSharedWith = []string{"forged"} },
		"privateService":     func(s *v1alpha1.ElastiServiceStatus) { s.PrivateService = "database" },
		"managedTarget": func(s *v1alpha1.ElastiServiceStatus) {
			s.ManagedTarget = &v1alpha1.ManagedTarget{ScaleTargetRef: v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "database"}}
		},
		"proxyPorts": func(s *v1alpha1.ElastiServiceStatus) { s.ProxyPorts[0].ProxyPort = 20000 },
		"readinessProbes": func(s *v1alpha1.ElastiServiceStatus) {
			s.ReadinessProbes = &v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{{TCPSocket: &v1alpha1.TCPSocketAction{Port: 1}}}}
		},
	}
	for _, conditionType := range v1alpha1.ConditionTypes() {
		forged[fmt.Sprintf("conditions[%s]", conditionType)] = func(s *v1alpha1.ElastiServiceStatus) {
			for i := range s.Conditions {
				if s.Conditions[i].Type == conditionType {
					s.Conditions[i].Message = "forged"
					return
				}
			}
			s.Conditions = append(s.Conditions, metav1.Condition{Type: conditionType, Status: metav1.ConditionTrue, Reason: "Forged", LastTransitionTime: now})
		}
	}
	return forged
}

// ownStatus is a status as the controller writes it.
func ownStatus() v1alpha1.ElastiServiceStatus {
	then := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	return v1alpha1.ElastiServiceStatus{
		Mode: v1alpha1.ModeProxy, Replicas: 1, ObservedGeneration: 1, LastActivityTime: &then, PrivateService: "elasti-cart-pvt",
		ProxyPorts: []v1alpha1.ProxyPort{{Port: 80, ProxyPort: 10000}, {Port: 81, ProxyPort: 10001}},
		Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: then}},
	}
}

// written is an ElastiService with a status of the controller.
func written(t *testing.T, s *server) *v1alpha1.ElastiService {
	t.Helper()
	created, err := s.client.ElastiV1alpha1().ElastiServices(namespace).Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := s.statuses.UpdateStatus(t.Context(), keyOf(created), created.UID, func(e *v1alpha1.ElastiService) error {
		e.Status = ownStatus()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// A request cannot change the server's part of the status, whatever its verb, its
// path and its user are.
func TestRequestsCannotWriteTheServersPartOfTheStatus(t *testing.T) {
	s := startServer(t, nil)
	stored := written(t, s)
	client := s.client.ElastiV1alpha1().ElastiServices(namespace)
	changes := forged()
	for _, field := range reflect.VisibleFields(reflect.TypeFor[v1alpha1.ElastiServiceStatus]()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if _, ok := changes[name]; !ok && name != "conditions" {
			t.Errorf("status.%s is not tested", name)
		}
	}
	for name, forge := range changes {
		object := stored.DeepCopy()
		forge(&object.Status)
		for verb, write := range writes(t, s, object) {
			err := write("status")
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "status."+name) {
				t.Errorf("%s of status.%s through the status: got %v, want an error that names the field", verb, name, err)
			}
			// Through the object itself the status is left out, as it always was.
			if err := write(""); err != nil {
				t.Errorf("%s of status.%s through the object: %v", verb, name, err)
			}
		}
	}
	current, err := client.Get(t.Context(), "cart", metav1.GetOptions{})
	if err != nil || !apiequality.Semantic.DeepEqual(current.Status, stored.Status) {
		t.Errorf("the status was %+v and is %+v (%v)", stored.Status, current.Status, err)
	}
}

// writes are the ways to write an object through a subresource.
func writes(t *testing.T, s *server, object *v1alpha1.ElastiService) map[string]func(subresource string) error {
	t.Helper()
	client := s.client.ElastiV1alpha1().RESTClient()
	encode := func(value any) []byte {
		encoded, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return encoded
	}
	path := func(subresource string) []string {
		parts := []string{"/apis/elasti.truefoundry.com/v1alpha1/namespaces", namespace, "elastiservices", "cart"}
		if subresource != "" {
			parts = append(parts, subresource)
		}
		return parts
	}
	patch := func(kind types.PatchType, body []byte, parameters ...string) func(string) error {
		return func(subresource string) error {
			request := client.Patch(kind).AbsPath(path(subresource)...).Param("fieldManager", "tenant").Body(body)
			for _, parameter := range parameters {
				request.Param(parameter, "true")
			}
			return request.Do(t.Context()).Error()
		}
	}
	partial := map[string]any{"apiVersion": "elasti.truefoundry.com/v1alpha1", "kind": "ElastiService", "status": object.Status}
	unowned := map[string]any{"metadata": map[string]any{"managedFields": []map[string]any{{}}}, "status": object.Status}
	put := func(body *v1alpha1.ElastiService, dryRun bool) func(string) error {
		body = body.DeepCopy()
		body.ResourceVersion, body.APIVersion, body.Kind = "", "elasti.truefoundry.com/v1alpha1", "ElastiService"
		return func(subresource string) error {
			request := client.Put().AbsPath(path(subresource)...).Body(encode(body))
			if dryRun {
				request.Param("dryRun", metav1.DryRunAll)
			}
			return request.Do(t.Context()).Error()
		}
	}
	emptied := object.DeepCopy()
	emptied.ManagedFields = nil
	return map[string]func(string) error{
		"PUT":                          put(object, false),
		"PUT without managed fields":   put(emptied, false),
		"dry run of PUT":               put(object, true),
		"merge patch":                  patch(types.MergePatchType, encode(map[string]any{"status": object.Status})),
		"merge patch of its ownership": patch(types.MergePatchType, encode(unowned)),
		"strategic merge patch":        patch(types.StrategicMergePatchType, encode(map[string]any{"status": object.Status})),
		"JSON patch":                   patch(types.JSONPatchType, encode([]map[string]any{{"op": "add", "path": "/status", "value": object.Status}})),
		"server-side apply":            patch(types.ApplyYAMLPatchType, encode(partial), "force"),
	}
}

// Conditions of other types are for tools to write.
func TestToolsWriteTheirOwnConditions(t *testing.T) {
	s := startServer(t, nil)
	stored := written(t, s)
	object := stored.DeepCopy()
	object.Status.Conditions = append(object.Status.Conditions, metav1.Condition{Type: "Checked", Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second))})
	for verb, write := range writes(t, s, object) {
		if err := write("status"); err != nil {
			t.Errorf("%s of a condition: %v", verb, err)
		}
	}
	current, err := s.client.ElastiV1alpha1().ElastiServices(namespace).Get(t.Context(), "cart", metav1.GetOptions{})
	if err != nil || !apiequality.Semantic.DeepEqual(current.Status, object.Status) {
		t.Errorf("the status is %+v (%v), want %+v", current.Status, err, object.Status)
	}
}

// A request that creates an object cannot bring a status.
func TestAnElastiServiceBeginsWithoutAStatus(t *testing.T) {
	s := startServer(t, nil)
	object := newElastiService("cart", "cart")
	object.Status = ownStatus()
	created, err := s.client.ElastiV1alpha1().ElastiServices(namespace).Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil || !apiequality.Semantic.DeepEqual(created.Status, v1alpha1.ElastiServiceStatus{}) {
		t.Errorf("created with the status %+v (%v), want none", created.Status, err)
	}
	apply := map[string]any{"apiVersion": "elasti.truefoundry.com/v1alpha1", "kind": "ElastiService", "metadata": map[string]any{"name": "stock"}, "spec": newElastiService("stock", "stock").Spec, "status": ownStatus()}
	encoded, err := json.Marshal(apply)
	if err != nil {
		t.Fatal(err)
	}
	options := metav1.PatchOptions{FieldManager: "tenant", Force: ptr.To(true)}
	applied, err := s.client.ElastiV1alpha1().ElastiServices(namespace).Patch(t.Context(), "stock", types.ApplyYAMLPatchType, encoded, options)
	if err != nil || !apiequality.Semantic.DeepEqual(applied.Status, v1alpha1.ElastiServiceStatus{}) {
		t.Errorf("applied with the status %+v (%v), want none", applied.Status, err)
	}
	if _, err = s.client.ElastiV1alpha1().ElastiServices(namespace).Patch(t.Context(), "missing", types.ApplyYAMLPatchType, []byte(strings.ReplaceAll(string(encoded), "stock", "missing")), options, "status"); !apierrors.IsNotFound(err) {
		t.Errorf("applying the status of an object that does not exist: got %v, want not found", err)
	}
}

// The server's own writes replace what is there, whichever manager an earlier
// version recorded for it, and change only the object with the UID.
func TestTheServersWriteReplacesWhatOthersOwned(t *testing.T) {
	s := startServer(t, nil)
	stored := written(t, s)
	owned := []metav1.ManagedFieldsEntry{
		{Manager: "elasti-controller", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "elasti.truefoundry.com/v1alpha1", FieldsType: "FieldsV1", Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:mode":{}}}`)},
		{Manager: "tenant", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "elasti.truefoundry.com/v1alpha1", FieldsType: "FieldsV1", Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:proxyPorts":{"k:{\"port\":81}":{".":{},"f:port":{},"f:proxyPort":{}}}}}`)},
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"managedFields": owned}})
	if err != nil {
		t.Fatal(err)
	}
	client := s.client.ElastiV1alpha1().ElastiServices(namespace)
	if _, err := client.Patch(t.Context(), "cart", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	current, err := s.statuses.UpdateStatus(t.Context(), keyOf(stored), stored.UID, func(e *v1alpha1.ElastiService) error {
		e.Status.ProxyPorts = e.Status.ProxyPorts[:1]
		e.Spec.Service, e.Labels = "database", map[string]string{"forged": "true"}
		return nil
	})
	if err != nil || len(current.Status.ProxyPorts) != 1 || current.Status.Mode != v1alpha1.ModeProxy || current.Spec.Service != "cart" || len(current.Labels) != 0 {
		t.Errorf("got %+v (%v), want one proxy port and everything else as it was", current, err)
	}
	for _, entry := range current.ManagedFields {
		if entry.Manager == "elasti-controller" {
			t.Errorf("%s still owns fields", entry.Manager)
		}
	}

	if _, err := s.statuses.UpdateStatus(t.Context(), keyOf(stored), "another", func(*v1alpha1.ElastiService) error {
		t.Error("the change was made to another object")
		return nil
	}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v for another UID, want not found", err)
	}
	rejected := errors.New("not now")
	if _, err := s.statuses.UpdateStatus(t.Context(), keyOf(stored), stored.UID, func(*v1alpha1.ElastiService) error { return rejected }); !errors.Is(err, rejected) {
		t.Errorf("got %v, want the error of the change", err)
	}
	same, err := s.statuses.UpdateStatus(t.Context(), keyOf(stored), stored.UID, func(*v1alpha1.ElastiService) error { return nil })
	if err != nil || same.ResourceVersion != current.ResourceVersion {
		t.Errorf("a change of nothing wrote version %s after %s (%v)", same.ResourceVersion, current.ResourceVersion, err)
	}
}
