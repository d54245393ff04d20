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

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestSleepOnRequest(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1", "10.1.0.2")
	elastiService := cartElastiService()
	elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
	c.create(elastiService)
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)

	c.requestSleep("cart")
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("scaled to %d as soon as the slice was in place", replicas)
	}
	c.eventually(func() string {
		if c.scaling.replicas(t, "cart") != 0 {
			return "the target to sleep"
		}
		return ""
	})
	c.eventually(func() string {
		if status := c.elastiService("cart").Status; status.SleepRequestedTime != nil || status.SleptTime == nil {
			return "the end of the request in the status"
		}
		return ""
	})
	c.scaling.mu.Lock()
	paused := slices.Clone(c.scaling.paused)
	c.scaling.mu.Unlock()
	if !slices.Equal(paused, []string{"cart"}) {
		t.Errorf("paused %v", paused)
	}
	c.eventuallyEvent(v1alpha1.ReasonSlept)
}

func TestSleepRequestTakenBackLeavesTheTargetAwake(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.requestSleep("cart")
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = nil })
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("scaled to %d", replicas)
	}
}
