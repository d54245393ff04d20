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
	"errors"
	"maps"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// wakesByResult returns how many wakes were counted by result.
func wakesByResult(t *testing.T, s *server) map[string]uint64 {
	t.Helper()
	families, err := s.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]uint64{}
	for _, family := range families {
		if family.GetName() != "elasti_operator_wake_seconds" {
			continue
		}
		for _, series := range family.GetMetric() {
			counts[series.GetLabel()[0].GetValue()] = series.GetHistogram().GetSampleCount()
		}
	}
	return counts
}

func TestWakesAreCountedByResult(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 0)
	if _, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	want := map[string]uint64{"scaled": 0, "unchanged": 0, "rejected": 0, "canceled": 0, "error": 0}
	if got := wakesByResult(t, s); !maps.Equal(got, want) {
		t.Errorf("before any wake: got %v, want %v", got, want)
	}
	wake := func(name string, options metav1.CreateOptions) error {
		_, err := services.Wake(t.Context(), name, wakeRequest(), options)
		return err
	}
	for _, name := range []string{"cart", "cart", "cart", "missing"} {
		if err := wake(name, metav1.CreateOptions{}); (err != nil) != (name == "missing") {
			t.Errorf("a wake of %s ends with %v", name, err)
		}
	}
	s.scaler.put("cart", 0)
	if err := wake("cart", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Error(err)
	}
	s.scaler.failWith = apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments/scale"}, "cart", errors.New("no permission"))
	if err := wake("cart", metav1.CreateOptions{}); err == nil {
		t.Error("a wake that fails reports success")
	}
	want = map[string]uint64{"scaled": 1, "unchanged": 2, "rejected": 1, "canceled": 0, "error": 1}
	if got := wakesByResult(t, s); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
