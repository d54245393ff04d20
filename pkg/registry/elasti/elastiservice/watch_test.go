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

package elastiservice_test

import (
	"strconv"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestWatchOfAVersionThatTheStoreHasNotReachedIsExpired(t *testing.T) {
	s := startServer(t, nil)
	client := s.client.ElastiV1alpha1().ElastiServices(namespace)
	created, err := client.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	newest, err := strconv.ParseUint(created.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for what, options := range map[string]metav1.ListOptions{
		"none":                   {},
		"any":                    {ResourceVersion: "0"},
		"the newest":             {ResourceVersion: created.ResourceVersion},
		"none, with all objects": {SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true},
	} {
		watching, err := client.Watch(t.Context(), options)
		if err != nil {
			t.Errorf("watching from version %s: %v", what, err)
			continue
		}
		watching.Stop()
	}
	later := strconv.FormatUint(newest+1000, 10)
	for what, options := range map[string]metav1.ListOptions{
		"changes only":     {ResourceVersion: later},
		"with all objects": {ResourceVersion: later, SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true},
	} {
		watching, err := client.Watch(t.Context(), options)
		if !apierrors.IsResourceExpired(err) {
			t.Errorf("watching %s from a later version ended with %v, want that it is expired", what, err)
		}
		if err == nil {
			watching.Stop()
		}
	}
}
