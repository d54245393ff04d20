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
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// What decides when targets sleep owns the condition from then on.
func TestSleepingIsThereFromTheFirstStatusOn(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionSleeping, metav1.ConditionUnknown, v1alpha1.ReasonDecisionPending)
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		sleeping := findCondition(elastiService, v1alpha1.ConditionSleeping)
		sleeping.Status, sleeping.Reason = metav1.ConditionTrue, v1alpha1.ReasonAsleep
	})
	c.sync("cart")
	c.eventuallyCondition("cart", v1alpha1.ConditionSleeping, metav1.ConditionTrue, v1alpha1.ReasonAsleep)
}

// A store that takes a second for a write must not cost a Service its
// endpoints.
func TestSliceDoesNotWaitForAStatusThatIsBeingWritten(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1", "10.1.0.2")
	c.create(cartElastiService())
	writing, released := make(chan struct{}), make(chan struct{})
	started, release := sync.OnceFunc(func() { close(writing) }), sync.OnceFunc(func() { close(released) })
	c.beforeStatus = func(status *v1alpha1.ElastiServiceStatus) {
		if status.Replicas == 3 {
			started()
			<-released
		}
	}
	c.start()
	t.Cleanup(release)
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	c.eventually(func() string {
		if c.elastiService("cart").Status.Replicas != 2 {
			return "the replicas"
		}
		return ""
	})

	c.setDeployment("cart", 3, 2)
	<-writing
	c.setDeployment("cart", 0, 2)
	c.setEndpoints(shop, "cart")
	c.eventually(func() string {
		if len(c.resolverSlices("cart")) == 0 {
			return "the resolver slice, while a status is being written"
		}
		return ""
	})
	release()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventually(func() string {
		if status := c.elastiService("cart").Status; status.Replicas != 0 || status.SleptTime == nil {
			return "the last status"
		}
		return ""
	})
}
