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

package compatibility

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// What cannot be read is no permission to delete data.
func TestTargetThatCannotBeReadIsKeptAwakeUnlessItsKindKeepsVolumes(t *testing.T) {
	accepted := map[string]string{v1alpha1.AnnotationAcceptVolumeDeletion: "true"}
	for _, test := range []struct {
		resource schema.GroupResource
		want     bool
	}{
		{schema.GroupResource{Group: "apps", Resource: "statefulsets"}, true},
		{schema.GroupResource{Group: "monitoring.coreos.com", Resource: "alertmanagers"}, true},
		{schema.GroupResource{Group: "example.com", Resource: "deployments"}, true},

		{schema.GroupResource{Group: "apps", Resource: "deployments"}, false},
		{schema.GroupResource{Group: "apps", Resource: "replicasets"}, false},
		{schema.GroupResource{Resource: "replicationcontrollers"}, false},
		{schema.GroupResource{Group: "argoproj.io", Resource: "rollouts"}, false},
	} {
		findings := OfTarget(test.resource, "Kind", "cart", nil, nil)
		condition := ConditionOf(v1alpha1.ConditionTargetCompatible, findings)
		if kept, forbidden := KeepsAwake(findings) != nil, ForbidsSleep(&condition); kept != test.want || forbidden != test.want {
			t.Errorf("%s: kept awake: %t, sleep forbidden: %t, want %t", test.resource, kept, forbidden, test.want)
		}
		if !test.want {
			continue
		}
		if condition.Reason != v1alpha1.ReasonVolumePolicyUnknown || !strings.Contains(condition.Message, "get, list and watch "+test.resource.String()) {
			t.Errorf("%s: the condition is %+v, want it to name the permission", test.resource, condition)
		}
		if findings := OfTarget(test.resource, "Kind", "cart", accepted, nil); len(findings) > 0 {
			t.Errorf("%s: got %v, want a loss accepted", test.resource, findings)
		}
	}
}
