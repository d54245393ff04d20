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
	"fmt"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/scheme"
)

func TestScaleShowsTheTargetsScale(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 3)
	created, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale, err := services.GetScale(t.Context(), "cart", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if scale.UID != created.UID || scale.Name != "cart" {
		t.Errorf("got the scale of %s %s, want that of the ElastiService", scale.Name, scale.UID)
	}
	if scale.Spec.Replicas != 3 || scale.Status.Replicas != 3 || scale.Status.Selector != "app=cart" {
		t.Errorf("got %+v %+v, want 3 replicas and the selector of the target", scale.Spec, scale.Status)
	}
}

func TestScaleUpAndDownReachesTheTarget(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 0)
	if _, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, replicas := range []int32{4, 2} {
		scale, err := services.UpdateScale(t.Context(), "cart", &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Name: "cart", Namespace: namespace},
			Spec:       autoscalingv1.ScaleSpec{Replicas: replicas},
		}, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		target, err := s.scaler.Get(t.Context(), deployment("cart"))
		if err != nil {
			t.Fatal(err)
		}
		if scale.Spec.Replicas != replicas || target.Spec.Replicas != replicas {
			t.Errorf("scaled to %d: got the response %d and the target at %d", replicas, scale.Spec.Replicas, target.Spec.Replicas)
		}
	}
}

func TestScaleToZeroRequestsSleepAndAWakeCancelsIt(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 3)
	if _, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := patchScale(t, s, 0, metav1.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if isSleepRequested(t, s) {
		t.Error("a dry run requested sleep")
	}

	if err := patchScale(t, s, 0); err != nil {
		t.Fatal(err)
	}
	if !isSleepRequested(t, s) {
		t.Error("scaling to 0 did not request sleep")
	}
	scale, err := services.GetScale(t.Context(), "cart", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if scale.Spec.Replicas != 0 || scale.Status.Replicas != 3 {
		t.Errorf("got %d desired and %d actual replicas while sleep is requested, want 0 and 3", scale.Spec.Replicas, scale.Status.Replicas)
	}
	target, err := s.scaler.Get(t.Context(), deployment("cart"))
	if err != nil {
		t.Fatal(err)
	}
	if target.Spec.Replicas != 3 {
		t.Errorf("the target has %d replicas: it was scaled without the controller", target.Spec.Replicas)
	}

	if _, err := services.Wake(t.Context(), "cart", wakeRequest(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if isSleepRequested(t, s) {
		t.Error("a wake did not cancel the request for sleep")
	}
}

// patchScale does what `kubectl scale` does, with the ElastiService called cart.
func patchScale(t *testing.T, s *server, replicas int, dryRun ...string) error {
	t.Helper()
	return s.client.ElastiV1alpha1().RESTClient().Patch(types.MergePatchType).
		Namespace(namespace).Resource("elastiservices").Name("cart").SubResource("scale").
		VersionedParams(&metav1.PatchOptions{DryRun: dryRun}, scheme.ParameterCodec).
		Body(fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)).
		Do(t.Context()).Error()
}

// isSleepRequested reports whether sleep is requested from the ElastiService called
// cart.
func isSleepRequested(t *testing.T, s *server) bool {
	t.Helper()
	elastiService, err := s.client.ElastiV1alpha1().ElastiServices(namespace).Get(t.Context(), "cart", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return elastiService.Status.SleepRequestedTime != nil
}

func TestScaleErrors(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	if _, err := services.GetScale(t.Context(), "cart", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the scale of a missing ElastiService: got %v, want not found", err)
	}
	if _, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := services.GetScale(t.Context(), "cart", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `Deployment "cart" does not exist`) {
		t.Errorf("the scale of a missing target: got %v, want a 404 that names the target", err)
	}

	s.scaler.put("cart", 1)
	_, err = services.UpdateScale(t.Context(), "cart", &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: "cart", Namespace: namespace, ResourceVersion: "77"},
		Spec:       autoscalingv1.ScaleSpec{Replicas: 2},
	}, metav1.UpdateOptions{})
	if !apierrors.IsConflict(err) {
		t.Errorf("an old resource version: got %v, want a conflict", err)
	}
	if err := patchScale(t, s, -1); !apierrors.IsInvalid(err) {
		t.Errorf("-1 replicas: got %v, want invalid", err)
	}
}
