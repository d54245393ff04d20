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

package servingcert

import (
	"bytes"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
)

const testAPIService = "v1.example.com"

func TestBundleIsPublishedInTheAPIService(t *testing.T) {
	cluster := fake.NewSimpleClientset(&apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: testAPIService},
		Spec:       apiregistrationv1.APIServiceSpec{Group: "example.com", Version: "v1", VersionPriority: 15},
	})
	apiServices := cluster.ApiregistrationV1().APIServices()
	publisher := APIServicePublisher{APIServices: apiServices, Name: testAPIService}
	for _, bundle := range []string{"first", "second", "second"} {
		if err := publisher.Publish(t.Context(), []byte(bundle)); err != nil {
			t.Fatalf("publishing: %v", err)
		}
		current, err := apiServices.Get(t.Context(), testAPIService, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(current.Spec.CABundle, []byte(bundle)) {
			t.Errorf("the caBundle is %q, want %q", current.Spec.CABundle, bundle)
		}
		if current.Spec.VersionPriority != 15 {
			t.Errorf("publishing has changed more: %+v", current.Spec)
		}
	}
	writes := 0
	for _, action := range cluster.Actions() {
		if action.GetVerb() != "get" {
			writes++
		}
	}
	if writes != 2 {
		t.Errorf("there were %d writes for two changes", writes)
	}
}

func TestPublishingWithoutAPIServiceFails(t *testing.T) {
	publisher := APIServicePublisher{APIServices: fake.NewSimpleClientset().ApiregistrationV1().APIServices(), Name: testAPIService}
	if err := publisher.Publish(t.Context(), []byte("bundle")); !apierrors.IsNotFound(err) {
		t.Errorf("publishing ends with %v, want not found", err)
	}
}
