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
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestWakeFromZero(t *testing.T) {
	for _, test := range []struct {
		name              string
		replicas, minimum int32
		rejected          bool
		want              int32
		writes            []string
		requests          int
	}{
		{"at zero", 0, 3, false, 3, []string{"PATCH " + cartScale}, 1},
		{"at zero, a minimum of zero", 0, 0, false, 1, []string{"PATCH " + cartScale}, 1},
		{"above the minimum after all", 8, 3, false, 8, nil, 2},
		{"below the minimum after all", 1, 3, false, 3, []string{"PUT " + cartScale}, 3},
		{"patches are rejected", 0, 2, true, 2, []string{"PUT " + cartScale}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := newCart(t, test.replicas)
			server.rejectsPatches = test.rejected
			result, err := server.client().WakeFromZero(t.Context(), cart, Autoscaler{}, test.minimum)
			if err != nil {
				t.Fatal(err)
			}
			if result.Replicas != test.want || result.Scaled != (test.writes != nil) {
				t.Errorf("got %+v, want %d replicas, scaled %t", result, test.want, test.writes != nil)
			}
			if writes := server.written(); !slices.Equal(writes, test.writes) {
				t.Errorf("wrote %q, want %q", writes, test.writes)
			}
			if requests := server.requested(cartScale); requests != test.requests {
				t.Errorf("%d requests about the scale, want %d", requests, test.requests)
			}
		})
	}
}

func TestWakeFromZeroResumesTheAutoscalerFirst(t *testing.T) {
	server := newCart(t, 0)
	putScaledObject(server, nil)
	client := server.client()
	if err := client.PauseAutoscaler(t.Context(), "shop", cartKEDA); err != nil {
		t.Fatal(err)
	}
	result, err := client.WakeFromZero(t.Context(), cart, cartKEDA, 2)
	if err != nil || result.AutoscalerError != nil || !result.Scaled || result.Replicas != 2 {
		t.Fatalf("got %+v, %v", result, err)
	}
	want := []string{"PATCH " + cartScaledObject, "PATCH " + cartScaledObject, "PATCH " + cartScale}
	if writes := server.written(); !slices.Equal(writes, want) {
		t.Errorf("wrote %q, want %q", writes, want)
	}
}

// KEDA, which scales to zero by itself, does not undo the wake.
func TestAWakeFromZeroKeepsTheAutoscalerAwake(t *testing.T) {
	server := newCart(t, 0)
	server.put(cartScaledObject, scaledObject(nil, nil))
	if result, err := server.client().WakeFromZero(t.Context(), cart, cartKEDA, 1); err != nil || result.AutoscalerError != nil {
		t.Fatalf("got %+v, %v", result, err)
	}
	if got := server.annotations(cartScaledObject); got[KEDAPausedScaleIn] != "true" || got[v1alpha1.AnnotationPausedScaleIn] == "" {
		t.Errorf("the annotations are %v", got)
	}
}

func TestWakeFromZeroOfAMissingTargetIsNotFound(t *testing.T) {
	server := newCart(t, 0)
	missing := cart
	missing.Name = "missing"
	if _, err := server.client().WakeFromZero(t.Context(), missing, Autoscaler{}, 1); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want not found", err)
	}
}

// Earlier checks do not hold for an object that has changed since.
func TestScaleToZeroIsForTheScaleThatWasRead(t *testing.T) {
	server := newCart(t, 2)
	client := server.client()
	read, err := client.Get(t.Context(), cart)
	if err != nil {
		t.Fatal(err)
	}
	server.putScale(cartScale, "shop", "cart", 2)
	if err := client.ScaleToZero(t.Context(), cart, read); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	if writes := server.written(); len(writes) > 0 {
		t.Errorf("wrote %q", writes)
	}
	if read, err = client.Get(t.Context(), cart); err != nil {
		t.Fatal(err)
	}
	if err := client.ScaleToZero(t.Context(), cart, read); err != nil {
		t.Error(err)
	}
	if scale, err := client.Get(t.Context(), cart); err != nil || scale.Spec.Replicas != 0 {
		t.Errorf("the scale is %+v (%v)", scale, err)
	}
	read.ResourceVersion = ""
	if err := client.ScaleToZero(t.Context(), cart, read); err == nil {
		t.Error("scaled without a precondition")
	}
}
