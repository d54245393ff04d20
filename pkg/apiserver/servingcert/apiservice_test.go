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
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
)

const testAPIService = "v1.example.com"

// testNow is the time of the publishers of these tests.
var testNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newAPIService returns the APIService of the server, which leads to it.
func newAPIService() *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: testAPIService, CreationTimestamp: metav1.NewTime(testNow)},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "example.com", Version: "v1", VersionPriority: 15,
			Service: &apiregistrationv1.ServiceReference{Namespace: "system", Name: "server"},
		},
	}
}

func newPublisher(cluster *fake.Clientset) APIServicePublisher {
	return APIServicePublisher{
		APIServices: cluster.ApiregistrationV1().APIServices(),
		Name:        testAPIService,
		Service:     types.NamespacedName{Namespace: "system", Name: "server"},
		Clock:       clocktesting.NewFakePassiveClock(testNow),
	}
}

// writesTo returns how many requests have changed something.
func writesTo(cluster *fake.Clientset) int {
	writes := 0
	for _, action := range cluster.Actions() {
		if action.GetVerb() != "get" {
			writes++
		}
	}
	return writes
}

func TestBundleIsPublishedInTheAPIService(t *testing.T) {
	cluster := fake.NewSimpleClientset(newAPIService())
	publisher := newPublisher(cluster)
	for _, bundle := range []string{"first", "second", "second"} {
		if err := publisher.Publish(t.Context(), []byte(bundle)); err != nil {
			t.Fatalf("publishing: %v", err)
		}
		current, err := publisher.APIServices.Get(t.Context(), testAPIService, metav1.GetOptions{})
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
	if writes := writesTo(cluster); writes != 2 {
		t.Errorf("there were %d writes for two changes", writes)
	}
}

func TestPublishingWithoutAPIServiceFails(t *testing.T) {
	err := newPublisher(fake.NewSimpleClientset()).Publish(t.Context(), []byte("bundle"))
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "apply the manifests again") {
		t.Errorf("publishing ends with %v, want not found, and what to do", err)
	}
}

// The APIService of KubeElasti's CustomResourceDefinition cannot have a bundle, and that of
// another installation must not have this one.
func TestAPIServiceOfAnotherServerIsLeftAsItIs(t *testing.T) {
	for want, service := range map[string]*apiregistrationv1.ServiceReference{
		"uninstall KubeElasti":    nil,
		"Uninstall the other one": {Namespace: "other", Name: "server"},
	} {
		apiService := newAPIService()
		apiService.Spec.Service = service
		cluster := fake.NewSimpleClientset(apiService)
		if err := newPublisher(cluster).Publish(t.Context(), []byte("bundle")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("publishing ends with %v, want %q", err, want)
		}
		if writes := writesTo(cluster); writes != 0 {
			t.Errorf("the APIService that leads to %v was changed", service)
		}
	}
}

func TestMissingPermissionToPublishNamesTheRole(t *testing.T) {
	for _, verb := range []string{"get", "patch"} {
		cluster := fake.NewSimpleClientset(newAPIService())
		informerstest.React(&cluster.Fake, verb, "apiservices", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "apiservices"}, testAPIService, errors.New("no"))
		})
		if err := newPublisher(cluster).Publish(t.Context(), []byte("bundle")); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), clusterRole) {
			t.Errorf("%s: publishing ends with %v, want %s in it", verb, err, clusterRole)
		}
	}
}

func TestServerThatIsNotReachedForLongLogsWhatToDo(t *testing.T) {
	unreached := func(since time.Duration) []apiregistrationv1.APIServiceCondition {
		return []apiregistrationv1.APIServiceCondition{{
			Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionFalse, LastTransitionTime: metav1.NewTime(testNow.Add(-since)),
			Reason: "FailedDiscoveryCheck", Message: "failing or missing response from https://10.0.0.1:8443: context deadline exceeded",
		}}
	}
	reached := unreached(time.Hour)
	reached[0].Status = apiregistrationv1.ConditionTrue
	for _, test := range []struct {
		name       string
		conditions []apiregistrationv1.APIServiceCondition
		created    time.Duration
		want       string
	}{
		{"it is reached", reached, time.Hour, ""},
		{"it has just started", unreached(unavailableAfter - time.Second), time.Hour, ""},
		{"it is not reached", unreached(unavailableAfter), time.Hour, "8443 by default, in firewalls"},
		{"the APIService is new", nil, 0, ""},
		{"it was never tried", nil, time.Hour, "the aggregation layer of the cluster is enabled"},
	} {
		apiService := newAPIService()
		apiService.CreationTimestamp = metav1.NewTime(testNow.Add(-test.created))
		apiService.Spec.CABundle, apiService.Status.Conditions = []byte("bundle"), test.conditions
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		if err := newPublisher(fake.NewSimpleClientset(apiService)).Publish(klog.NewContext(t.Context(), logger), []byte("bundle")); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		logged := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if (logged == "") != (test.want == "") || !strings.Contains(logged, test.want) {
			t.Errorf("%s: the log is %q, want %q", test.name, logged, test.want)
		}
	}
}
