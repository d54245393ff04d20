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

package elastiservice

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// stored returns an object with a spec, a status and metadata of its own.
func stored() *elasti.ElastiService {
	return &elasti.ElastiService{
		ObjectMeta: metav1.ObjectMeta{
			Name: "cart", Namespace: "shop", ResourceVersion: "7", Generation: 3,
			Labels: map[string]string{"team": "a"}, Finalizers: []string{elasti.Finalizer},
		},
		Spec: elasti.ElastiServiceSpec{
			Service:        "cart",
			ScaleTargetRef: elasti.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "cart"},
			CooldownPeriod: ptr.To[int32](90),
			Triggers:       []elasti.ScaleTrigger{{Type: "cpu"}, {Type: "traffic"}},
		},
		Status: elasti.ElastiServiceStatus{Mode: elasti.ModeProxy, Replicas: 2, LastWake: &elasti.WakeRecord{By: "user alice"}},
	}
}

func TestPrepareForCreate(t *testing.T) {
	for name, finalizers := range map[string][]string{
		"without finalizers": nil,
		"with the finalizer": {elasti.Finalizer},
	} {
		t.Run(name, func(t *testing.T) {
			object := stored()
			object.Finalizers = finalizers
			newStrategy(runtime.NewScheme()).PrepareForCreate(t.Context(), object)
			if object.Status.Mode != "" || object.Generation != 1 {
				t.Errorf("got status %+v in generation %d, want none in 1", object.Status, object.Generation)
			}
			if !slices.Equal(object.Finalizers, []string{elasti.Finalizer}) {
				t.Errorf("got the finalizers %v, want that of the controller once", object.Finalizers)
			}
		})
	}
}

func TestPrepareForUpdate(t *testing.T) {
	for _, test := range []struct {
		name       string
		change     func(*elasti.ElastiService)
		generation int64
		check      func(*elasti.ElastiService) bool
	}{
		{"labels", func(e *elasti.ElastiService) { e.Labels = nil }, 3, func(e *elasti.ElastiService) bool { return e.Labels == nil }},
		{"spec", func(e *elasti.ElastiService) { e.Spec.CooldownPeriod = ptr.To[int32](1) }, 4, func(e *elasti.ElastiService) bool { return *e.Spec.CooldownPeriod == 1 }},
		{"target", func(e *elasti.ElastiService) { e.Spec.ScaleTargetRef.Name = "other" }, 4, func(e *elasti.ElastiService) bool { return e.Status.LastWake == nil && e.Status.Replicas == 2 }},
		{"all but the target", func(e *elasti.ElastiService) { e.Spec.Service = "other" }, 4, func(e *elasti.ElastiService) bool { return e.Status.LastWake != nil }},
		{"status", func(e *elasti.ElastiService) { e.Status.Mode = elasti.ModeServe }, 3, func(e *elasti.ElastiService) bool { return e.Status.Mode == elasti.ModeProxy }},
	} {
		t.Run(test.name, func(t *testing.T) {
			updated := stored()
			test.change(updated)
			newStrategy(runtime.NewScheme()).PrepareForUpdate(t.Context(), updated, stored())
			if updated.Generation != test.generation || !test.check(updated) {
				t.Errorf("got %+v in generation %d, want generation %d", updated, updated.Generation, test.generation)
			}
		})
	}
}

func TestPrepareForStatusUpdate(t *testing.T) {
	updated := stored()
	updated.Labels, updated.Finalizers, updated.Generation = nil, nil, 9
	updated.Spec.Service, updated.Status.Mode = "other", elasti.ModeServe
	statusStrategy{newStrategy(runtime.NewScheme())}.PrepareForUpdate(t.Context(), updated, stored())
	if updated.Status.Mode != elasti.ModeServe {
		t.Error("the status did not change")
	}
	if updated.Spec.Service != "cart" || updated.Labels["team"] != "a" || len(updated.Finalizers) != 1 || updated.Generation != 3 {
		t.Errorf("got %+v, want nothing but the status changed", updated)
	}
}

func TestSelectableFields(t *testing.T) {
	for selector, matches := range map[string]bool{
		"spec.service=cart":                    true,
		"spec.service=other":                   false,
		"spec.scaleTargetRef.name=cart":        true,
		"status.mode=proxy":                    true,
		"status.mode!=proxy":                   false,
		"metadata.name=cart,status.mode=proxy": true,
		"metadata.namespace=other":             false,
	} {
		parsed, err := fields.ParseSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		predicate := matchElastiService(labels.Everything(), parsed)
		if got, err := predicate.Matches(stored()); err != nil || got != matches {
			t.Errorf("%s: got %v %v, want %v", selector, got, err, matches)
		}
	}
}

func TestTable(t *testing.T) {
	object := stored()
	object.CreationTimestamp = metav1.NewTime(time.Now().Add(-5 * time.Hour))
	object.Status.ReadyReplicas = 1
	object.Status.LastActivityTime = ptr.To(metav1.NewTime(time.Now().Add(-5 * time.Minute)))
	object.Status.ProxyPorts = []elasti.ProxyPort{{Port: 80, ProxyPort: 10000}, {Port: 443, ProxyPort: 10001}}
	object.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTargetNotFound}}
	table, err := tableConvertor{}.ConvertToTable(t.Context(), object, nil)
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]any{}
	for i, column := range table.ColumnDefinitions {
		shown[column.Name] = table.Rows[0].Cells[i]
	}
	for column, want := range map[string]string{
		"Name": "cart", "Target": "deployment/cart", "Service": "cart", "Mode": "proxy", "Ready": "1/2",
		"Last Activity": "5m", "Age": "5h", "Status": "TargetNotFound", "Cooldown": "90s",
		"Triggers": "cpu,traffic", "Proxy Ports": "80:10000,443:10001", "Reason": "TargetNotFound",
	} {
		if shown[column] != want {
			t.Errorf("%s: got %v, want %s", column, shown[column], want)
		}
	}

	// Of a list, and without headers.
	list := &elasti.ElastiServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []elasti.ElastiService{*stored(), {}}}
	table, err = tableConvertor{}.ConvertToTable(t.Context(), list, &metav1.TableOptions{NoHeaders: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 2 || len(table.ColumnDefinitions) != 0 || table.ResourceVersion != "9" {
		t.Errorf("got %d rows with %d headers of version %s, want 2 with 0 of 9", len(table.Rows), len(table.ColumnDefinitions), table.ResourceVersion)
	}
}

func TestTableShowsTheReasonThatMattersMost(t *testing.T) {
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, Message: "all is well"}
	stuck := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonImageNotPulled, Message: "no such image"}
	sleeping := metav1.Condition{Type: v1alpha1.ConditionSleeping, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonCoolingDown, Message: "not yet"}
	available := metav1.Condition{Type: v1alpha1.ConditionTargetAvailable, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPodReady, Message: "a pod is ready"}
	for name, test := range map[string]struct {
		conditions      []metav1.Condition
		reason, message string
	}{
		"the target does not start": {[]metav1.Condition{sleeping, stuck, available}, "ImageNotPulled", "no such image"},
		"awake":                     {[]metav1.Condition{available, ready, sleeping}, "CoolingDown", "not yet"},
		"nothing decides yet":       {[]metav1.Condition{ready, available}, "PodReady", "a pod is ready"},
		"new":                       {nil, "<none>", "<none>"},
	} {
		t.Run(name, func(t *testing.T) {
			object := stored()
			object.Status.Conditions = test.conditions
			table, err := tableConvertor{}.ConvertToTable(t.Context(), object, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, column := range table.ColumnDefinitions {
				want, compared := map[string]string{"Reason": test.reason, "Message": test.message}[column.Name]
				if compared && table.Rows[0].Cells[i] != want {
					t.Errorf("%s: got %v, want %s", column.Name, table.Rows[0].Cells[i], want)
				}
				if wide := column.Priority > 0; column.Name == "Reason" && wide || column.Name == "Message" && !wide {
					t.Errorf("%s has the priority %d", column.Name, column.Priority)
				}
			}
		})
	}
}

// Both endpoints keep server-side apply from owning what they never change.
func TestResetFields(t *testing.T) {
	strategy := newStrategy(runtime.NewScheme())
	for name, resetter := range map[string]rest.ResetFieldsStrategy{"status": strategy, "spec": statusStrategy{strategy}} {
		fields, ok := resetter.GetResetFields()["elasti.truefoundry.com/v1alpha1"]
		if !ok || !fields.Has(fieldpath.MakePathOrDie(name)) {
			t.Errorf("%s is not among the fields that are reset: %v", name, fields)
		}
	}
}
