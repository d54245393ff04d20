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
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

func TestChangeOfTargetRestoresThePreviousOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("basket", 0, 0)
	elastiService := cartElastiService()
	elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
	c.create(elastiService)
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	// The change comes while no controller runs.
	stop()
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.ScaleTargetRef.Name = "basket"
		elastiService.Spec.Autoscaler = nil
	})
	c.start()
	c.eventually(func() string {
		if c.scaling.replicas(t, "cart") != 2 {
			return "the previous target to be awake"
		}
		return ""
	})
	if replicas := c.scaling.replicas(t, "basket"); replicas != 0 {
		t.Errorf("the new target was scaled to %d", replicas)
	}
}

// The target is awake by then. What records it is kept for another attempt only where there
// is an error.
func TestAutoscalerThatCannotBeResumedIsAnError(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.Scaling = &failingScaling{fakeScaling: c.scaling, autoscalerError: errUnavailable}
	controller, err := New(c.options)
	if err != nil {
		t.Fatal(err)
	}
	elastiService := cartElastiService()
	elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
	_, ctx := ktesting.NewTestContext(t)
	defer func() {
		stopped, stop := context.WithCancel(ctx)
		stop()
		_ = controller.Run(stopped)
	}()
	state, err := controller.restoreTarget(ctx, restorationOf(elastiService))
	if state != restoredAwake || !errors.Is(err, errUnavailable) {
		t.Errorf("the target is in state %d, the error is %v", state, err)
	}
	c.eventuallyEventWith(corev1.EventTypeWarning, v1alpha1.ReasonAutoscalerNotResumed, errUnavailable.Error())
}

// What records the previous target is an object of the previous Service.
func TestPreviousTargetOfAnotherServiceIsWokenWhenItCanBe(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("basket", 1, 1)
	basket := cartService()
	basket.Name = "basket"
	c.create(basket)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.scaling.fail(errors.New("a webhook rejects it"))
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Service = "basket"
		elastiService.Spec.ScaleTargetRef.Name = "basket"
	})
	moved := time.Now()
	c.eventually(func() string {
		if c.scaling.attempts() < 2 || time.Since(moved) < lingerTime+time.Second {
			return "attempts to wake the previous target for longer than a private Service lingers"
		}
		return ""
	})
	c.scaling.fail(nil)
	c.eventuallyReplicas(2)
	c.eventually(func() string {
		if names := c.serviceNames(); !slices.Equal(names, []string{"basket", "cart", resources.PrivateServiceName("basket")}) {
			return fmt.Sprintf("the end of the previous private Service, there are %v", names)
		}
		return ""
	})
}

// The ElastiService is deleted before any controller has seen the change.
func TestPreviousTargetOfADeletedElastiServiceIsWoken(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("basket", 1, 1)
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	stop()
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Name = "basket" })
	c.markDeleted("cart", 0)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.start()
	c.eventuallyReleased("cart")
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("the previous target has %d replicas, want 2", replicas)
	}
}

// A tenant deletes what records the previous target, and changes the target, before the
// controller has seen either.
func TestPreviousTargetIsWokenWithoutItsPrivateService(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("basket", 2, 2)
	c.create(cartElastiService())
	var changing atomic.Bool
	informerstest.React(&c.host.Fake, "create", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		// What is missing is put back only after both changes.
		return changing.Load() && c.elastiService("cart").Spec.ScaleTargetRef.Name == "cart", nil, errUnavailable
	})
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	changing.Store(true)
	c.deleteService(resources.PrivateServiceName("cart"))
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.ScaleTargetRef.Name = "basket" })
	c.eventuallyReplicas(2)
}

// Likewise when the target gets another name at the same time: nothing names the
// previous one any more.
func TestPreviousTargetOfAServiceThatIsNotThereYetIsWoken(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("basket", 1, 1)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Service = "basket"
		elastiService.Spec.ScaleTargetRef.Name = "basket"
		elastiService.Generation++
	})
	c.eventuallyReplicas(2)
	if len(c.resolverSlices("cart")) == 0 {
		t.Error("the resolvers left before an endpoint was ready")
	}
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventually(func() string {
		if found := c.resolverSlices("cart"); len(found) > 0 || len(c.serviceNames()) > 1 {
			return fmt.Sprintf("the end of %v, %v", found, c.serviceNames())
		}
		return ""
	})
}
