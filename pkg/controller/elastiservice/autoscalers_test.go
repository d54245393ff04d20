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
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target/targettest"
)

func TestAutoscalerCondition(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	elastiService := cartElastiService()
	elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
	c.create(elastiService)
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionAutoscalerFound, metav1.ConditionFalse, v1alpha1.ReasonNotFound)
	c.eventuallyEvent(v1alpha1.AutoscalerReasonPrefix + v1alpha1.ReasonNotFound)
	c.put(c.dynamic.Tracker(), targettest.ScaledObject(shop, "other", nil, false))
	c.eventuallyCondition("cart", v1alpha1.ConditionAutoscalerFound, metav1.ConditionFalse, v1alpha1.ReasonOtherTarget)
	c.put(c.dynamic.Tracker(), targettest.ScaledObject(shop, "cart", nil, false))
	c.eventuallyCondition("cart", v1alpha1.ConditionAutoscalerFound, metav1.ConditionTrue, v1alpha1.ReasonFound)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Autoscaler = nil
		elastiService.Generation++
	})
	c.eventually(func() string {
		if found := findCondition(c.elastiService("cart"), v1alpha1.ConditionAutoscalerFound); found != nil {
			return fmt.Sprintf("the end of %+v", found)
		}
		return ""
	})
}

func TestHorizontalPodAutoscalerCondition(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	autoscaler := targettest.ScaledObject(shop, "cart", nil, false)
	autoscaler.SetGroupVersionKind(schema.GroupVersionKind{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"})
	if err := unstructured.SetNestedField(autoscaler.Object, "Deployment", "spec", "scaleTargetRef", "kind"); err != nil {
		t.Fatal(err)
	}
	c.put(c.dynamic.Tracker(), autoscaler)
	elastiService := cartElastiService()
	elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerHPA, Name: "cart"}
	c.create(elastiService)
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionAutoscalerFound, metav1.ConditionTrue, v1alpha1.ReasonFound)
}

// Whatever wakes a target, in the middle of a scale-down or past the controller, its autoscaler
// must not stay paused.
func TestAutoscalerOfAnAwakeTargetIsResumed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.put(c.dynamic.Tracker(), targettest.ScaledObject(shop, "cart", targettest.PausedAnnotations(), true))
	elastiService := cartElastiService()
	elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
	c.create(elastiService)
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyCondition("cart", v1alpha1.ConditionAutoscalerFound, metav1.ConditionTrue, v1alpha1.ReasonFound)
	resumed := func() bool {
		c.scaling.mu.Lock()
		defer c.scaling.mu.Unlock()
		return slices.Contains(c.scaling.resumed, "cart")
	}
	if resumed() {
		t.Error("resumed while the target sleeps")
	}
	c.setDeployment("cart", 1, 0)
	c.eventually(func() string {
		if !resumed() {
			return "the autoscaler to go on"
		}
		return ""
	})
}
