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

package registration

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// What is wrong is tested as the check of an installation reports it.
func TestCheckIsAboutTheServiceOfTheInstallation(t *testing.T) {
	apiService := &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: Name},
		Spec:       apiregistrationv1.APIServiceSpec{Service: &apiregistrationv1.ServiceReference{Namespace: "here", Name: "server"}},
		Status: apiregistrationv1.APIServiceStatus{Conditions: []apiregistrationv1.APIServiceCondition{
			{Type: "Other", Status: apiregistrationv1.ConditionFalse},
			{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue},
		}},
	}
	if problem := Check(apiService, types.NamespacedName{Namespace: "here", Name: "server"}); problem != nil {
		t.Errorf("got %v, want no problem", problem)
	}
	for _, other := range []types.NamespacedName{{Namespace: "there", Name: "server"}, {Namespace: "here", Name: "other"}} {
		if problem := Check(apiService, other); problem == nil || !strings.Contains(problem.Error(), "here/server") {
			t.Errorf("%v: got %v, want that the APIService leads to another Service", other, problem)
		}
	}
	apiService.Status.Conditions[1].Status = apiregistrationv1.ConditionFalse
	apiService.Status.Conditions[1].Reason, apiService.Status.Conditions[1].Message = "MissingEndpoints", "no addresses."
	problem := Check(apiService, types.NamespacedName{Namespace: "here", Name: "server"})
	if problem == nil || !strings.Contains(problem.Do, "--namespace here --selector app.kubernetes.io/name=server") || strings.Contains(problem.Error(), "..") {
		t.Errorf("got %v, want where the pods are", problem)
	}
}
