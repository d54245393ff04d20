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
	"maps"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// What users say in annotations has to reach the scheduler.
func TestAnnotationsOfUsersAreKept(t *testing.T) {
	want := map[string]string{v1alpha1.AnnotationDryRun: "true"}
	given := maps.Clone(want)
	given["kubectl.kubernetes.io/last-applied-configuration"] = "{}"
	kept, err := keepElastiService(&v1alpha1.ElastiService{ObjectMeta: metav1.ObjectMeta{Annotations: given}})
	if err != nil {
		t.Fatal(err)
	}
	if got := kept.(*v1alpha1.ElastiService).Annotations; !maps.Equal(got, want) {
		t.Errorf("kept %v, want %v", got, want)
	}
}

// The rules for probes may be most of an object, and resolvers read their own copies.
func TestRulesForProbesAreNotKept(t *testing.T) {
	given := &v1alpha1.ElastiService{Spec: v1alpha1.ElastiServiceSpec{Service: "cart", ProbeResponse: []v1alpha1.ProbeResponseRule{{Method: "GET"}}}}
	result, err := keepElastiService(given)
	if err != nil {
		t.Fatal(err)
	}
	if kept := result.(*v1alpha1.ElastiService); len(kept.Spec.ProbeResponse) > 0 || kept.Spec.Service != "cart" || len(given.Spec.ProbeResponse) != 1 {
		t.Errorf("kept %+v of %+v", kept.Spec, given.Spec)
	}
}

// A pod of a Service with two families is in a slice of each.
func TestAPodInTwoFamiliesIsOnePod(t *testing.T) {
	keep := keepSlice(newSigner(t), types.NamespacedName{})
	var kept []*observedSlice
	for _, slice := range []struct {
		family discoveryv1.AddressType
		ready  []bool
	}{
		{discoveryv1.AddressTypeIPv4, []bool{true, true}},
		{discoveryv1.AddressTypeIPv4, []bool{true, false}},
		{discoveryv1.AddressTypeIPv6, []bool{true}},
	} {
		object := &discoveryv1.EndpointSlice{AddressType: slice.family}
		for _, ready := range slice.ready {
			object.Endpoints = append(object.Endpoints, discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
		}
		result, err := keep(object)
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, result.(*observedSlice))
	}
	if got := readyPods(kept); got != 3 {
		t.Errorf("%d pods are ready, want 3", got)
	}
}
