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

package sleep

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Users see the remarks of a server, and the share of the traffic that a trigger sees,
// although the trigger is healthy.
func TestNotesOfTriggersAreReported(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		noted := idle
		noted.Note = "PromQL info: a metric might not be a counter"
		f.trigger.always(noted)
		f.create("shop", nil)
		pass(2 * testInterval)
		healthy := meta.FindStatusCondition(f.get("shop").Status.Conditions, v1alpha1.ConditionTriggersHealthy)
		if healthy == nil || healthy.Status != metav1.ConditionTrue || !strings.Contains(healthy.Message, "triggers[0] (fake): "+noted.Note) {
			t.Errorf("TriggersHealthy is %+v", healthy)
		}
	})
}
