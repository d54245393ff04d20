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

package target

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/target/targettest"
)

const namespace = "shop"

func TestAutoscalerHasStopped(t *testing.T) {
	for name, test := range map[string]struct {
		object *unstructured.Unstructured
		want   bool
	}{
		"running":                        {targettest.ScaledObject(namespace, "cart", nil, false), false},
		"annotated, in the middle of it": {targettest.ScaledObject(namespace, "cart", targettest.PausedAnnotations(), false), false},
		"paused for something else":      {targettest.ScaledObject(namespace, "cart", nil, true), false},
		"stopped":                        {targettest.ScaledObject(namespace, "cart", targettest.PausedAnnotations(), true), true},
	} {
		kept, err := keepAutoscaler(test.object)
		if err != nil {
			t.Fatal(err)
		}
		observation := AutoscalerObservation{Autoscaler: kept.(*Autoscaler)}
		if got := observation.Stopped(); got != test.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
	if (AutoscalerObservation{Pending: true}).Stopped() {
		t.Error("stopped although nothing is known of it")
	}
	if !(AutoscalerObservation{Problem: errors.New("not there")}).Stopped() {
		t.Error("waits for an autoscaler that is not there")
	}
}
