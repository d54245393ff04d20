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
	server.put(cartScaledObject, map[string]any{
		"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
		"metadata": map[string]any{"namespace": "shop", "name": "cart", "annotations": annotations},
	})
}

func TestPauseAndWakeKeepWhatTheUserHadSet(t *testing.T) {
	for _, test := range []struct {
		name          string
		before, after map[string]string
	}{
		{"no annotations", nil, nil},
		{"others", map[string]string{"team": "shop"}, map[string]string{"team": "shop"}},
		{"said not paused", map[string]string{kedaPaused: "false"}, map[string]string{kedaPaused: "false"}},
		{"pinned to two replicas", map[string]string{kedaPausedReplicas: "2"}, map[string]string{kedaPausedReplicas: "2"}},
		{"paused by the user", map[string]string{kedaPaused: "true"}, map[string]string{kedaPaused: "true"}},
		{"put to sleep by KubeElasti", map[string]string{kedaPaused: "true", kedaPausedReplicas: "0", "team": "shop"}, map[string]string{"team": "shop"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := newCart(t, 0)
			putScaledObject(server, test.before)
			client := server.client()
			for range 2 {
				if err := client.PauseAutoscaler(t.Context(), "shop", cartKEDA); err != nil {
					t.Fatal(err)
				}
			}
			paused := server.annotations(cartScaledObject)
			if _, pinned := paused[kedaPausedReplicas]; paused[kedaPaused] != "true" || pinned {
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

func TestWakeGoesOnWithoutItsAutoscaler(t *testing.T) {
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
	putScaledObject(server, map[string]string{v1alpha1.AnnotationPausedAnnotations: "not JSON", kedaPaused: "true"})
	if err := server.client().ResumeAutoscaler(t.Context(), "shop", cartKEDA); err == nil {
		t.Error("no error")
	}
}
