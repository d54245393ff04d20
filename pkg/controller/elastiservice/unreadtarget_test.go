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
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// forbidWatching has the controller not be allowed to list and watch a resource.
func (c *cluster) forbidWatching(resource string) {
	informerstest.React(&c.dynamic.Fake, "list", resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", nil)
	})
	c.dynamic.PrependWatchReactor(resource, func(action clienttesting.Action) (bool, watch.Interface, error) {
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", nil)
	})
}

// The server may scale every kind and read few. What it cannot read may have the policy that
// volumes are deleted when it is scaled down, as kinds of operators do.
func TestTargetOfAKindThatCannotBeWatchedStaysAwake(t *testing.T) {
	t.Parallel()
	c, failing := newScaleDown(t, func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.ScaleTargetRef = v1alpha1.ScaleTargetRef{APIVersion: "example.com/v1", Kind: "Widget", Name: "cart"}
	})
	c.scaling.serveKind("Widget", "widgets")
	c.setWidget(2)
	c.setEndpoints(shop, resources.PrivateServiceName("cart"), "10.1.0.1")
	c.forbidWatching("widgets")
	failing.toZero = func(func() error) error {
		if c.elastiService("cart").Annotations[v1alpha1.AnnotationAcceptVolumeDeletion] == "" {
			t.Error("scaled to zero")
		}
		c.setWidget(0)
		return nil
	}
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetCompatible, metav1.ConditionFalse, v1alpha1.ReasonVolumePolicyUnknown)
	condition := meta.FindStatusCondition(c.elastiService("cart").Status.Conditions, v1alpha1.ConditionTargetCompatible)
	if !strings.Contains(condition.Message, "get, list and watch widgets.example.com") {
		t.Errorf("the condition says %q, want the permission", condition.Message)
	}
	c.requestSleep("cart")
	c.eventuallyEvent(v1alpha1.ReasonSleepFailed)
	c.eventually(func() string {
		if c.elastiService("cart").Status.SleepRequestedTime != nil {
			return "the request for sleep to be given up"
		}
		return ""
	})

	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Annotations = map[string]string{v1alpha1.AnnotationAcceptVolumeDeletion: "true"}
	})
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetCompatible, metav1.ConditionTrue, v1alpha1.ReasonCompatible)
	c.requestSleep("cart")
	c.eventuallyEvent(v1alpha1.ReasonSlept)
}
