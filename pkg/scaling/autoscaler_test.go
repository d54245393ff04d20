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

package scaling

import (
	"maps"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const cartScaledObject = "/apis/keda.sh/v1alpha1/namespaces/shop/scaledobjects/cart"

var cartKEDA = Autoscaler{Type: AutoscalerKEDA, Name: "cart"}

func putScaledObject(server *fakeServer, annotations map[string]string) {
	server.put(cartScaledObject, scaledObject(annotations, map[string]any{"minReplicaCount": 1}))
}

// scaledObject is a ScaledObject whose annotations an administrator has set.
func scaledObject(annotations map[string]string, spec map[string]any) map[string]any {
	return annotatedScaledObject("kubectl-annotate", annotations, spec)
}

func annotatedScaledObject(manager string, annotations map[string]string, spec map[string]any) map[string]any {
	owned := map[string]any{}
	for key := range annotations {
		owned["f:"+key] = map[string]any{}
	}
	return map[string]any{
		"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
		"metadata": map[string]any{
			"namespace": "shop", "name": "cart", "annotations": annotations,
			"managedFields": []any{map[string]any{
				"manager": manager, "operation": "Update", "apiVersion": "keda.sh/v1alpha1", "fieldsType": "FieldsV1",
				"fieldsV1": map[string]any{"f:metadata": map[string]any{"f:annotations": owned}},
			}},
		},
		"spec": spec,
	}
}

func TestPauseAndWakeKeepWhatTheUserHadSet(t *testing.T) {
	for _, test := range []struct {
		name          string
		manager       string
		before, after map[string]string
	}{
		{"no annotations", "helm", nil, nil},
		{"others", "helm", map[string]string{"team": "shop"}, map[string]string{"team": "shop"}},
		{"said not paused", "helm", map[string]string{KEDAPaused: "false"}, map[string]string{KEDAPaused: "false"}},
		{"pinned to two replicas", "helm", map[string]string{KEDAPausedReplicas: "2"}, map[string]string{KEDAPausedReplicas: "2"}},
		{"pinned to none", "helm", map[string]string{KEDAPausedReplicas: "0"}, map[string]string{KEDAPausedReplicas: "0"}},
		{"paused by the user", "helm", map[string]string{KEDAPaused: "true"}, map[string]string{KEDAPaused: "true"}},
		{"paused and pinned to none by the user", "kubectl-annotate", map[string]string{KEDAPaused: "true", KEDAPausedReplicas: "0"}, map[string]string{KEDAPaused: "true", KEDAPausedReplicas: "0"}},
		{"kept from scaling in by the user", "helm", map[string]string{KEDAPausedScaleIn: "true"}, map[string]string{KEDAPausedScaleIn: "true"}},
		{"put to sleep by KubeElasti", "manager", map[string]string{KEDAPaused: "true", KEDAPausedReplicas: "0", "team": "shop"}, map[string]string{"team": "shop"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := newCart(t, 0)
			server.put(cartScaledObject, annotatedScaledObject(test.manager, test.before, map[string]any{"minReplicaCount": 1}))
			client := server.client()
			for range 2 {
				if err := client.PauseAutoscaler(t.Context(), "shop", cartKEDA); err != nil {
					t.Fatal(err)
				}
			}
			paused := server.annotations(cartScaledObject)
			if _, pinned := paused[KEDAPausedReplicas]; paused[KEDAPaused] != "true" || pinned {
				t.Errorf("paused with %v", paused)
			}
			if writes := len(server.written()); writes != 1 {
				t.Errorf("%d writes for two pauses, want 1", writes)
			}
			result, err := client.Wake(t.Context(), cart, cartKEDA, 1, false)
			if err != nil || result.AutoscalerError != nil || !result.Scaled {
				t.Fatalf("got %+v, %v", result, err)
			}
			if got := server.annotations(cartScaledObject); !maps.Equal(got, test.after) {
				t.Errorf("after the wake: %v, want %v", got, test.after)
			}
		})
	}
}

// What the user changes while the product has a pause in place is the user's.
func TestPausesThatTheUserChangedMeanwhileStayAsTheyAre(t *testing.T) {
	for _, test := range []struct {
		name          string
		change, after map[string]string
	}{
		{"ended the pause", map[string]string{KEDAPaused: "false"}, map[string]string{KEDAPaused: "false", KEDAPausedReplicas: "2"}},
		{"pinned to three", map[string]string{KEDAPausedReplicas: "3"}, map[string]string{KEDAPausedReplicas: "3"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := newCart(t, 0)
			putScaledObject(server, map[string]string{KEDAPausedReplicas: "2"})
			client := server.client()
			if err := client.PauseAutoscaler(t.Context(), "shop", cartKEDA); err != nil {
				t.Fatal(err)
			}
			changed := server.annotations(cartScaledObject)
			maps.Copy(changed, test.change)
			putScaledObject(server, changed)
			if err := client.ResumeAutoscaler(t.Context(), "shop", cartKEDA); err != nil {
				t.Fatal(err)
			}
			if got := server.annotations(cartScaledObject); !maps.Equal(got, test.after) {
				t.Errorf("after resuming: %v, want %v", got, test.after)
			}
		})
	}
}

// A wake of a target that KEDA scales to zero by itself lasts: KEDA may not
// undo it until the target sleeps, or is not managed any more.
func TestAutoscalerThatScalesToZeroIsKeptAwake(t *testing.T) {
	for _, test := range []struct {
		name        string
		spec        map[string]any
		annotations map[string]string
		want        bool
	}{
		{"no minimum", map[string]any{}, nil, true},
		{"a minimum of zero", map[string]any{"minReplicaCount": 0}, nil, true},
		{"idle at zero", map[string]any{"minReplicaCount": 2, "idleReplicaCount": 0}, nil, true},
		{"a minimum of one", map[string]any{"minReplicaCount": 1}, nil, false},
		{"idle at one", map[string]any{"minReplicaCount": 2, "idleReplicaCount": 1}, nil, false},
		{"paused by the user", nil, map[string]string{KEDAPaused: "true"}, false},
		{"paused by the user, in a way of their own", nil, map[string]string{KEDAPaused: "yes, please"}, false},
		{"pinned by the user", nil, map[string]string{KEDAPausedReplicas: "2"}, false},
		{"kept from scaling in by the user", nil, map[string]string{KEDAPausedScaleIn: "true"}, false},
		{"allowed to scale in by the user", nil, map[string]string{KEDAPausedScaleIn: "false"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := newCart(t, 0)
			server.put(cartScaledObject, scaledObject(test.annotations, test.spec))
			client := server.client()
			check := func(when string, want bool) {
				t.Helper()
				got := server.annotations(cartScaledObject)
				if held := got[v1alpha1.AnnotationPausedScaleIn] != ""; held != want || want && got[KEDAPausedScaleIn] != "true" {
					t.Errorf("%s: %v, want kept from scaling in: %t", when, got, want)
				}
			}
			for range 2 {
				if result, err := client.Wake(t.Context(), cart, cartKEDA, 1, false); err != nil || result.AutoscalerError != nil {
					t.Fatalf("got %+v, %v", result, err)
				}
			}
			check("awake", test.want)
			writes := len(server.written())
			if want := 1 + map[bool]int{true: 1}[test.want]; writes != want {
				t.Errorf("%d writes for two wakes, want %d", writes, want)
			}
			if err := client.PauseAutoscaler(t.Context(), "shop", cartKEDA); err != nil {
				t.Fatal(err)
			}
			check("asleep", false)
			if err := client.KeepAutoscalerAwake(t.Context(), "shop", cartKEDA); err != nil {
				t.Fatal(err)
			}
			check("awake again", test.want)
			if _, err := client.Restore(t.Context(), cart, cartKEDA, 1); err != nil {
				t.Fatal(err)
			}
			if got := server.annotations(cartScaledObject); !maps.Equal(got, test.annotations) {
				t.Errorf("restored: %v, want %v", got, test.annotations)
			}
		})
	}
}

// The minimum may change while the target is awake.
func TestAutoscalerThatScalesToZeroNoMoreIsReleased(t *testing.T) {
	server := newCart(t, 0)
	server.put(cartScaledObject, scaledObject(nil, nil))
	client := server.client()
	if err := client.KeepAutoscalerAwake(t.Context(), "shop", cartKEDA); err != nil {
		t.Fatal(err)
	}
	server.put(cartScaledObject, scaledObject(server.annotations(cartScaledObject), map[string]any{"minReplicaCount": 1}))
	if err := client.KeepAutoscalerAwake(t.Context(), "shop", cartKEDA); err != nil {
		t.Fatal(err)
	}
	if got := server.annotations(cartScaledObject); len(got) != 0 {
		t.Errorf("left with %v", got)
	}
}

func TestWakeResumesBeforeItScales(t *testing.T) {
	server := newCart(t, 0)
	putScaledObject(server, nil)
	client := server.client()
	if err := client.PauseAutoscaler(t.Context(), "shop", cartKEDA); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Wake(t.Context(), cart, cartKEDA, 1, false); err != nil {
		t.Fatal(err)
	}
	writes := server.written()
	want := []string{"PATCH " + cartScaledObject, "PATCH " + cartScaledObject, "PUT " + cartScale}
	if len(writes) != 3 || writes[0] != want[0] || writes[1] != want[1] || writes[2] != want[2] {
		t.Errorf("wrote %v, want %v", writes, want)
	}
}

func TestWakeSucceedsWithoutItsAutoscaler(t *testing.T) {
	server := newCart(t, 0)
	client := server.client()
	for _, autoscaler := range []Autoscaler{cartKEDA, {Type: AutoscalerHPA, Name: "cart"}, {Type: "vpa", Name: "cart"}} {
		server.putScale(cartScale, "shop", "cart", 0)
		result, err := client.Wake(t.Context(), cart, autoscaler, 2, false)
		if err != nil || result.Replicas != 2 {
			t.Errorf("%s: got %+v, %v", autoscaler.Type, result, err)
		}
		if result.AutoscalerError == nil {
			t.Errorf("%s: the missing autoscaler is not reported", autoscaler.Type)
		}
	}
}

func TestWakeRespectsMinReplicasOfHPA(t *testing.T) {
	server := newCart(t, 0)
	server.put("/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers/cart", map[string]any{
		"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
		"metadata": map[string]any{"namespace": "shop", "name": "cart"},
		"spec":     map[string]any{"minReplicas": 4, "maxReplicas": 9},
	})
	result, err := server.client().Wake(t.Context(), cart, Autoscaler{Type: AutoscalerHPA, Name: "cart"}, 2, false)
	if err != nil || result.AutoscalerError != nil || result.Replicas != 4 {
		t.Errorf("got %+v, %v", result, err)
	}
}

func TestResumeRejectsWhatItCannotRead(t *testing.T) {
	server := newCart(t, 0)
	putScaledObject(server, map[string]string{v1alpha1.AnnotationPausedAnnotations: "not JSON", KEDAPaused: "true"})
	if err := server.client().ResumeAutoscaler(t.Context(), "shop", cartKEDA); err == nil {
		t.Error("no error")
	}
}
