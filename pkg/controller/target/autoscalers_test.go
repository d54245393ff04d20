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
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target/targettest"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

const namespace = "shop"

func TestAutoscalersKeepWhatPausesThem(t *testing.T) {
	hpa := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"minReplicas": int64(0)}}}
	toZero := targettest.ScaledObject(namespace, "cart", nil, false)
	unstructured.RemoveNestedField(toZero.Object, "spec", "minReplicaCount")
	kept := targettest.ScaledObject(namespace, "cart", map[string]string{v1alpha1.AnnotationPausedScaleIn: "{}", scaling.KEDAPausedScaleIn: "true"}, true)
	unstructured.RemoveNestedField(kept.Object, "spec", "minReplicaCount")
	if err := unstructured.SetNestedField(kept.Object, "keda-hpa-cart", "status", "hpaName"); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		resource schema.GroupVersionResource
		object   *unstructured.Unstructured
		want     Autoscaler
		finds    int
	}{
		"running":                    {scaling.ScaledObjects, targettest.ScaledObject(namespace, "cart", nil, false), Autoscaler{}, 0},
		"annotated":                  {scaling.ScaledObjects, targettest.ScaledObject(namespace, "cart", targettest.PausedAnnotations(), false), Autoscaler{PausedByController: true}, 0},
		"paused":                     {scaling.ScaledObjects, targettest.ScaledObject(namespace, "cart", targettest.PausedAnnotations(), true), Autoscaler{PausedByController: true, Paused: true}, 0},
		"scales to zero":             {scaling.ScaledObjects, toZero, Autoscaler{NeedsScaleInPause: true}, 1},
		"kept from scaling to zero":  {scaling.ScaledObjects, kept, Autoscaler{NeedsScaleInPause: true, ScaleInPausedByController: true, Paused: true, Scaler: "keda-hpa-cart"}, 1},
		"an HPA that scales to zero": {scaling.HorizontalPodAutoscalers, hpa, Autoscaler{}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			object, err := keepAutoscaler(test.resource)(test.object)
			if err != nil {
				t.Fatal(err)
			}
			got := *object.(*Autoscaler)
			if len(got.Findings) != test.finds {
				t.Errorf("%d findings, want %d", len(got.Findings), test.finds)
			}
			got.ObjectMeta, got.TargetKind, got.TargetName, got.Findings = metav1.ObjectMeta{}, "", "", nil
			if !equality.Semantic.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if again, err := keepAutoscaler(test.resource)(object); err != nil || again != object {
				t.Errorf("the second time: %v, %v", again, err)
			}
		})
	}
}
