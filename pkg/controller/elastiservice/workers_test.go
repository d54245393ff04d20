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
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Calls of some namespaces that hang, such as behind a slow admission webhook, do not
// keep the controller from the ElastiServices of others.
func TestHangingCallsOfSomeNamespacesDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.Workers = 4
	for i := range 3 {
		namespace := fmt.Sprintf("crowd-%d", i)
		c.scaling.hanging = append(c.scaling.hanging, namespace)
		for j := range 10 {
			elastiService := cartElastiService()
			elastiService.Namespace, elastiService.Name = namespace, fmt.Sprintf("cart-%d", j)
			elastiService.UID = types.UID(fmt.Sprintf("%s-%d", namespace, j))
			c.create(elastiService)
		}
	}
	c.start()
	c.eventually(func() string {
		if hung := c.scaling.hungCalls(); hung < c.options.Workers {
			return fmt.Sprintf("%d calls that hang, they are %d", c.options.Workers, hung)
		}
		return ""
	})
	c.create(cartElastiService())
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if hung, limit := c.scaling.hungCalls(), 3*c.options.Workers/2; hung > limit {
		t.Errorf("%d calls of three namespaces hang, want %d at most", hung, limit)
	}
}
